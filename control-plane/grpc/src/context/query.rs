//! Live reads: what a policy must not answer from memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use assent_context::{
    Collection, CollectionId, CollectionSpec,
    sink::{AccessReview, AccessVerdict, ReadError},
};
use assent_core::{Policy, fleet::Name, policy::is_dns_subdomain};
use assent_proto::v1::{self, context_answer::Answer, context_query::Query};
use assent_wire::context as wire;
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};
use tonic::{Status, metadata::MetadataMap};

use crate::{auth::Principal, from_proto, hub::Hub, registry::Key};

/// The longest that a caller may wait: the longest evaluation.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Live reads at a time for one replica, and for all of them. Policies are asked for each
/// request, and API servers limit the control plane as a whole.
const PER_REPLICA: u32 = 16;
const IN_TOTAL: usize = 128;

/// Live reads of one replica per second, after as many at once.
const RATE: f64 = 50.0;

/// Reads the API server itself.
#[tonic::async_trait]
pub trait LiveReads: Send + Sync + 'static {
    /// One object; none if there is none.
    async fn get(
        &self,
        collection: &CollectionSpec,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ReadError>;

    /// What a subject may do.
    async fn review(&self, review: AccessReview) -> Result<AccessVerdict, ReadError>;
}

/// Answers queries within the limits of each replica.
pub(super) struct Queries {
    reads: Arc<dyn LiveReads>,
    total: Semaphore,
    replicas: Mutex<HashMap<Key, Allowance>>,
}

#[derive(Debug)]
struct Allowance {
    running: u32,
    tokens: f64,
    at: Instant,
}

/// A query that counts until it is dropped.
struct Running<'a> {
    queries: &'a Queries,
    key: Key,
}

/// When the caller gives up, as far as it says so.
pub(super) fn deadline(metadata: &MetadataMap) -> Instant {
    let given = metadata.get("grpc-timeout").and_then(|v| v.to_str().ok());
    let given = given.and_then(timeout).unwrap_or(MAX_WAIT);
    Instant::now() + given.min(MAX_WAIT)
}

/// `100m` is a hundred milliseconds.
fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(number.checked_mul(3_600)?),
        'M' => Duration::from_secs(number.checked_mul(60)?),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

// === impl Queries ===

impl Queries {
    pub(super) fn new(reads: Arc<dyn LiveReads>) -> Self {
        Self {
            reads,
            total: Semaphore::new(IN_TOTAL),
            replicas: Mutex::default(),
        }
    }

    pub(super) async fn answer(
        &self,
        hub: &Hub,
        caller: &Principal,
        query: v1::ContextQuery,
        deadline: Instant,
    ) -> Result<v1::ContextAnswer, Status> {
        let metrics = hub.context().metrics();
        metrics.queries.inc();
        let answered = self.answered(hub, caller, query, deadline).await;
        if answered.is_err() {
            metrics.queries_refused.inc();
        }
        answered
    }

    async fn answered(
        &self,
        hub: &Hub,
        caller: &Principal,
        query: v1::ContextQuery,
        deadline: Instant,
    ) -> Result<v1::ContextAnswer, Status> {
        let node = query.node.unwrap_or_default();
        if !is_dns_subdomain(&node.id) {
            let text = from_proto::Error::BadId.to_string();
            return Err(Status::invalid_argument(text));
        }
        let server = from_proto::server_or_default(node.policy_server);
        caller.check(&node.id, &server)?;
        let key = Key {
            server: Name::from(server),
            replica: Name::from(node.id),
        };
        let policy = announced(hub, &key.server, &query.revision).await?;
        let _running = self.begin(key.clone())?;
        let reading = async {
            let _turn = self.total.acquire().await;
            match query.query {
                Some(Query::Get(get)) => self.get(hub, &key.server, &policy, &get).await,
                Some(Query::CanI(review)) => self.review(&policy, review).await,
                None => Err(Status::invalid_argument("`query` must be given")),
            }
        };
        let answer = tokio::time::timeout_at(deadline, reading).await;
        let late = |_| Status::deadline_exceeded("the API server did not answer in time");
        let answer = answer.map_err(late)??;
        Ok(v1::ContextAnswer {
            answer: Some(answer),
        })
    }

    async fn get(
        &self,
        hub: &Hub,
        server: &str,
        policy: &Policy,
        query: &v1::ObjectQuery,
    ) -> Result<Answer, Status> {
        require(policy, "kubernetes/get_resource")?;
        let id: CollectionId = wire::collection_id(&query.collection)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let spec = hub.context().assigned_spec(server, &id);
        let declared = &policy.content.context_resources;
        let spec = spec.filter(|spec| declared.iter().any(|resource| spec.serves(resource)));
        let missing = || Status::not_found("the revision declares no such collection");
        let spec = spec.ok_or_else(missing)?;
        if spec.namespaced() && !spec.has_namespace(&query.namespace) {
            let text = "the namespace is outside of the collection";
            return Err(Status::permission_denied(text));
        }
        let object = self.reads.get(&spec, &query.namespace, &query.name);
        let object = object.await.map_err(unread)?;
        // Projected and narrowed as the collection is: a live read shows nothing more.
        let projector = Collection::new(spec);
        let object = object.map(|object| projector.project(object));
        let object = object
            .transpose()
            .map_err(|error| Status::internal(error.to_string()))?;
        let object = object.flatten().and_then(|(_, json)| json);
        Ok(Answer::Object(v1::ObjectAnswer {
            found: object.is_some(),
            object: object.unwrap_or_default().into(),
        }))
    }

    async fn review(&self, policy: &Policy, query: v1::AccessQuery) -> Result<Answer, Status> {
        require(policy, "kubernetes/can_i")?;
        let review = wire::access(query);
        let verdict = self.reads.review(review).await.map_err(unread)?;
        Ok(Answer::Access(v1::AccessAnswer {
            allowed: verdict.allowed,
            denied: verdict.denied,
            reason: verdict.reason,
            evaluation_error: verdict.evaluation_error,
        }))
    }

    fn begin(&self, key: Key) -> Result<Running<'_>, Status> {
        let now = Instant::now();
        let mut all = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        // Replicas that asked nothing for a while have their whole allowance again.
        all.retain(|_, a| a.running > 0 || now - a.at < Duration::from_secs(60));
        let allowance = all.entry(key.clone()).or_insert(Allowance {
            running: 0,
            tokens: RATE,
            at: now,
        });
        let earned = (now - allowance.at).as_secs_f64() * RATE;
        allowance.tokens = (allowance.tokens + earned).min(RATE);
        allowance.at = now;
        if allowance.running >= PER_REPLICA || allowance.tokens < 1.0 {
            return Err(Status::resource_exhausted(
                "too many live reads by this replica; read replicated objects instead, or less often",
            ));
        }
        allowance.tokens -= 1.0;
        allowance.running += 1;
        Ok(Running { queries: self, key })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let all = self.queries.replicas.lock();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        if let Some(allowance) = all.get_mut(&self.key) {
            allowance.running = allowance.running.saturating_sub(1);
        }
    }
}

/// The revision, if it is published for the server.
async fn announced(hub: &Hub, server: &str, revision: &str) -> Result<Arc<Policy>, Status> {
    let published = hub.published(server).await?;
    let policy = published.snapshot.get(revision);
    let unknown = || Status::not_found("the revision is not announced to this PolicyServer");
    policy.cloned().ok_or_else(unknown)
}

/// Whether the revision may make a host call.
fn require(policy: &Policy, call: &str) -> Result<(), Status> {
    let grants = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => call.starts_with(prefix),
        None => pattern == call,
    };
    match policy.content.host_capabilities.iter().any(grants) {
        true => Ok(()),
        false => Err(Status::permission_denied(format!(
            "the revision may not call {call}"
        ))),
    }
}

fn unread(error: ReadError) -> Status {
    match error {
        ReadError::Forbidden(text) => Status::permission_denied(text),
        ReadError::Unavailable(text) => Status::unavailable(text),
    }
}
