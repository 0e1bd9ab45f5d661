//! What a stream sends next.

use assent_context::{
    CollectionId, Key as ObjectKey, Mark, Object,
    feed::{Budget, Part, Resets},
};
use assent_proto::v1;
use assent_wire::context as wire;
use tonic::Status;

use super::{ANSWER_DEADLINE, MAX_UNANSWERED, Stream};
use crate::{context::hub::Assigned, to_proto};

impl Stream {
    /// Sends responses as long as there is something to say and the client answers.
    pub(super) async fn send_due(&mut self) -> Result<(), Status> {
        while self.unanswered.len() < MAX_UNANSWERED {
            let Some((response, marks)) = self.next_response()? else {
                return Ok(());
            };
            if self.unanswered.is_empty() {
                self.heard = tokio::time::Instant::now();
            }
            self.unanswered.insert(self.next_nonce, marks);
            let sent = self.responses.send(Ok(response));
            let sent = tokio::time::timeout(ANSWER_DEADLINE, sent).await;
            let unread = || Status::deadline_exceeded("responses were not read: connect again");
            let left = |_| Status::cancelled("the client has left");
            sent.map_err(|_| unread())?.map_err(left)?;
        }
        Ok(())
    }

    fn next_response(&mut self) -> Result<Option<(v1::ContextResponse, Vec<Mark>)>, Status> {
        let mut response = v1::ContextResponse::default();
        let assigned = self.assigned.borrow_and_update().clone();
        self.tell(&assigned, &mut response);
        let mut marks = Vec::new();
        let now = self.context.now();
        let mut budget = Budget::default();
        for id in &self.told {
            let Some(cell) = self.context.feed(id) else {
                continue;
            };
            let part = cell.lock().feed.fill(self.client, now, &mut budget);
            let part = part.map_err(|error| Status::aborted(error.to_string()))?;
            if let Some(part) = part {
                self.add(*id, part, &mut response, &mut marks);
            }
        }
        // An evaluator without collections must know that there are none.
        let greets = assigned.complete && !self.greeted;
        if response == v1::ContextResponse::default() && !greets {
            return Ok(None);
        }
        self.greeted |= greets;
        self.next_nonce += 1;
        response.nonce = self.next_nonce.to_string();
        response.control_plane = Some(to_proto::control_plane(&self.hub.control_plane()));
        Ok(Some((response, marks)))
    }

    /// Tells the client which collections it gets (C1) and which it must forget.
    fn tell(&mut self, assigned: &Assigned, response: &mut v1::ContextResponse) {
        for (id, spec) in &assigned.collections {
            let Some(cell) = self.context.feed(id) else {
                continue;
            };
            if self.told.insert(*id) {
                let root = self.claims.remove(id).flatten();
                cell.lock().subscribe(self.client, root, &self.wake);
                response.collections.push(wire::collection_to_proto(spec));
            }
        }
        let is_over = |id: &CollectionId| !assigned.collections.contains_key(id);
        let gone: Vec<CollectionId> = self.told.iter().copied().filter(is_over).collect();
        for id in gone {
            self.told.remove(&id);
            if let Some(cell) = self.context.feed(&id) {
                cell.lock().unsubscribe(self.client);
            }
            self.context.clients().forget(&self.key, &id);
            response.removed_collections.push(id.to_string());
        }
        if assigned.complete {
            let unknown = std::mem::take(&mut self.claims).into_keys();
            response
                .removed_collections
                .extend(unknown.map(|id| id.to_string()));
        }
        if assigned.complete && self.limits != Some(assigned.limits) {
            self.limits = Some(assigned.limits);
            response.limits = Some(v1::ContextLimits {
                memory_bytes: assigned.limits.memory_bytes,
                max_staleness_ms: assigned.limits.max_staleness_ms,
            });
        }
    }

    fn add(
        &self,
        id: CollectionId,
        part: Part,
        response: &mut v1::ContextResponse,
        marks: &mut Vec<Mark>,
    ) {
        let collection = id.to_string();
        if part.wants_buckets {
            response.want_buckets.push(collection.clone());
        }
        if let Some(resets) = part.resets {
            let (all, buckets) = match resets {
                Resets::All => (true, Vec::new()),
                Resets::Buckets(buckets) => (false, buckets.into_iter().map(u32::from).collect()),
            };
            response.resets.push(v1::BucketReset {
                collection: collection.clone(),
                buckets,
                all,
            });
        }
        for (key, object) in part.changes {
            response
                .changes
                .push(self.change(&collection, &key, object.as_deref()));
        }
        if let Some(mark) = part.mark {
            response.marks.push(wire::mark_to_proto(&mark));
            marks.push(mark);
        }
    }

    fn change(
        &self,
        collection: &str,
        key: &ObjectKey,
        object: Option<&Object>,
    ) -> v1::ObjectChange {
        let json = object
            .map(|object| object.json().clone())
            .unwrap_or_default();
        let metrics = self.context.metrics();
        metrics.objects_sent.inc();
        metrics.bytes_sent.inc_by(json.len() as u64);
        v1::ObjectChange {
            collection: collection.to_owned(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            deleted: object.is_none(),
            object: json,
        }
    }
}
