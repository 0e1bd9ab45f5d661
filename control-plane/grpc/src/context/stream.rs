//! One context stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use assent_context::{CollectionId, Mark, feed::ClientId};
use assent_core::{Digest, Millis, fleet::Name};
use assent_proto::v1;
use assent_wire::context as wire;
use futures::stream::{BoxStream, StreamExt as _};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::hub::{Assigned, ContextHub};
use crate::{
    auth::{Caller, Principal},
    from_proto,
    hub::{Hub, not_found},
    registry::Key,
};

mod respond;

/// Responses that a client may leave unanswered (C4).
const MAX_UNANSWERED: usize = 4;

/// How long a client may take to read or to answer while it has unanswered responses: it applies
/// at most 3 MiB of objects for each.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// A stream whose first message was not read yet.
pub(super) struct Opening {
    hub: Hub,
    caller: Caller,
    requests: Streaming<v1::ContextRequest>,
    responses: mpsc::Sender<Result<v1::ContextResponse, Status>>,
}

struct Stream {
    hub: Hub,
    context: ContextHub,
    key: Key,
    client: ClientId,
    wake: Arc<Notify>,
    assigned: watch::Receiver<Arc<Assigned>>,
    requests: Streaming<v1::ContextRequest>,
    responses: mpsc::Sender<Result<v1::ContextResponse, Status>>,
    /// What the client said it holds, until it was told what it gets.
    claims: BTreeMap<CollectionId, Option<Digest>>,
    told: BTreeSet<CollectionId>,
    limits: Option<super::Limits>,
    next_nonce: u64,
    /// Responses without an answer, with their marks.
    unanswered: BTreeMap<u64, Vec<Mark>>,
    /// When the client sent something last, or was first asked to.
    heard: Instant,
    greeted: bool,
}

// === impl Opening ===

impl Opening {
    pub(super) fn new(
        hub: Hub,
        caller: Caller,
        requests: Streaming<v1::ContextRequest>,
    ) -> (
        Self,
        BoxStream<'static, Result<v1::ContextResponse, Status>>,
    ) {
        // One response waits while the connection takes another: what a client does not read
        // costs no more than these.
        let (responses, receiver) = mpsc::channel(1);
        let opening = Self {
            hub,
            caller,
            requests,
            responses,
        };
        (opening, ReceiverStream::new(receiver).boxed())
    }

    pub(super) async fn run(mut self) {
        let responses = self.responses.clone();
        let opened = tokio::select! {
            opened = self.first() => opened,
            () = responses.closed() => return,
        };
        let ended = match opened {
            Ok((key, claims)) => self.enter(key, claims).run().await,
            Err(status) => status,
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), responses.send(Err(ended))).await;
    }

    async fn first(&mut self) -> Result<(Key, Claims), Status> {
        let config = &self.hub.inner().config;
        let until = Instant::now() + config.sync_deadline;
        let first = tokio::time::timeout(config.first_message_deadline, self.requests.message());
        let first = first
            .await
            .map_err(|_| Status::deadline_exceeded("no first message came"))??;
        let no_node = || Status::invalid_argument(from_proto::Error::NoNode.to_string());
        let mut first = first.ok_or_else(no_node)?;
        let node = first.node.take().ok_or_else(no_node)?;
        let seen = node.lease_transitions;
        let node = from_proto::node(node);
        let node = node.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let principal = &self.caller.principal;
        principal.check(&node.id, &node.policy_server)?;
        if principal.is_counted() {
            self.hub.see_transitions(seen);
        }
        self.hub.resolve(&node.policy_server, until).await?;
        let key = Key {
            server: Name::from(node.policy_server),
            replica: Name::from(node.id),
        };
        Ok((key, claims(&first.held)?))
    }

    fn enter(self, key: Key, claims: Claims) -> Entered {
        let Opening {
            hub,
            caller,
            requests,
            responses,
        } = self;
        let context = hub.context().clone();
        let client = context.next_client();
        let ended = context.clients().enter(&key, client);
        let assigned = context.follow(&key.server);
        let age = hub.inner().config.max_stream_age;
        let stream = Stream {
            assigned,
            client,
            key,
            wake: Arc::new(Notify::new()),
            requests,
            responses,
            claims,
            told: BTreeSet::new(),
            limits: None,
            next_nonce: 0,
            unanswered: BTreeMap::new(),
            heard: Instant::now(),
            greeted: false,
            context,
            hub,
        };
        Entered {
            stream,
            ended,
            over: over(&caller.principal, age),
            in_use: caller.peer.as_ref().map(|peer| peer.use_stream()),
        }
    }
}

type Claims = BTreeMap<CollectionId, Option<Digest>>;

/// A stream that runs, and what ends it.
struct Entered {
    stream: Stream,
    ended: watch::Receiver<Option<Status>>,
    over: Instant,
    in_use: Option<crate::conn::Use>,
}

// === impl Entered ===

impl Entered {
    async fn run(self) -> Status {
        let Entered {
            mut stream,
            ended,
            over,
            in_use,
        } = self;
        stream.context.metrics().streams.inc();
        let status = stream.drive(ended, over).await;
        stream.context.metrics().streams.dec();
        stream.leave();
        drop(in_use);
        tracing::debug!(server = %stream.key.server, replica = %stream.key.replica, code = ?status.code(), "context stream ended");
        status
    }
}

// === impl Stream ===

impl Stream {
    /// Runs until the stream ends, and returns how.
    async fn drive(&mut self, mut ended: watch::Receiver<Option<Status>>, over: Instant) -> Status {
        let mut epoch = self.hub.epoch();
        let wake = self.wake.clone();
        loop {
            if let Err(status) = self.send_due().await {
                return status;
            }
            let due = self.next_due();
            let late = self.heard + ANSWER_DEADLINE;
            let answers = !self.unanswered.is_empty();
            let step = tokio::select! {
                biased;
                _ = ended.changed() => {
                    let status = ended.borrow().clone();
                    Err(status.unwrap_or_else(|| Status::unavailable("the control plane is ending")))
                }
                Ok(()) = epoch.changed() => self.check_server(),
                () = self.responses.closed() => Err(Status::cancelled("the client has left")),
                () = tokio::time::sleep_until(over) => {
                    Err(Status::ok("the stream has reached its age: connect again"))
                }
                () = tokio::time::sleep_until(late), if answers => {
                    Err(Status::deadline_exceeded("responses were not answered: connect again"))
                }
                changed = self.assigned.changed() => changed.map_err(|_| not_found(&self.key.server)),
                message = self.requests.message() => self.message(message),
                () = wake.notified() => Ok(()),
                () = sleep_until(due) => Ok(()),
            };
            if let Err(status) = step {
                return status;
            }
        }
    }

    fn check_server(&self) -> Result<(), Status> {
        self.hub.check_serving()?;
        match self.hub.has_server(&self.key.server) {
            true => Ok(()),
            false => Err(not_found(&self.key.server)),
        }
    }

    fn message(
        &mut self,
        message: Result<Option<v1::ContextRequest>, Status>,
    ) -> Result<(), Status> {
        let Some(message) = message? else {
            return Err(Status::ok("the client has closed its side"));
        };
        self.heard = Instant::now();
        if let Some(error) = &message.error_detail {
            self.context.metrics().rejected.inc();
            tracing::warn!(
                server = %self.key.server, replica = %self.key.replica,
                "an evaluator did not take objects: {}", from_proto::cut(error.message.clone())
            );
        }
        if !message.response_nonce.is_empty() {
            self.answered(&message.response_nonce, message.error_detail.is_none());
        }
        for held in &message.held {
            let id = wire::collection_id(&held.id).map_err(invalid)?;
            self.resync(&id, held)?;
        }
        Ok(())
    }

    fn answered(&mut self, nonce: &str, taken: bool) {
        let marks = nonce
            .parse()
            .ok()
            .and_then(|nonce: u64| self.unanswered.remove(&nonce));
        match marks {
            Some(marks) if taken => {
                let clients = self.context.clients();
                clients.acknowledge(&self.key, self.client, marks);
            }
            Some(_) => {}
            None => drop(self.context.metrics().protocol_errors.inc()),
        }
    }

    /// The client holds something else than it should: only what differs is sent (C8).
    fn resync(&mut self, id: &CollectionId, held: &v1::CollectionHeld) -> Result<(), Status> {
        let is_whole = held.root.is_empty() && held.buckets.is_empty();
        if !self.told.contains(id) || held.buckets.is_empty() && !is_whole {
            return Ok(());
        }
        let Some(cell) = self.context.feed(id) else {
            return Ok(());
        };
        self.context.metrics().resyncs.inc();
        let resynced = cell.lock().feed.held(self.client, &held.buckets);
        resynced.map_err(invalid)
    }

    /// When something has to be sent, if nothing happens before.
    fn next_due(&self) -> Option<Instant> {
        if self.unanswered.len() >= MAX_UNANSWERED {
            return None;
        }
        let due = |id: &CollectionId| self.context.feed(id)?.lock().feed.due(self.client);
        let due: Option<Millis> = self.told.iter().filter_map(due).min();
        due.map(|at| self.context.instant(at))
    }

    fn leave(&self) {
        for id in &self.told {
            if let Some(cell) = self.context.feed(id) {
                cell.lock().unsubscribe(self.client);
            }
        }
        self.context.clients().leave(&self.key, self.client);
    }
}

/// When the stream must end, whatever happens: its credential is checked again then.
fn over(principal: &Principal, age: Duration) -> Instant {
    let jitter = age.mul_f64(0.2 * rand::random::<f64>());
    let expires = principal.expires().map(|at| {
        let left = at.duration_since(SystemTime::now()).unwrap_or_default();
        Instant::now() + left
    });
    let aged = Instant::now() + age - jitter;
    expires.map_or(aged, |expires| expires.min(aged))
}

fn claims(held: &[v1::CollectionHeld]) -> Result<Claims, Status> {
    let claim = |held: &v1::CollectionHeld| {
        let id = wire::collection_id(&held.id)?;
        let root = match held.root.is_empty() {
            true => None,
            false => Some(wire::root(&held.root)?),
        };
        Ok((id, root))
    };
    let claims: Result<Claims, wire::Error> = held.iter().map(claim).collect();
    claims.map_err(invalid)
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
