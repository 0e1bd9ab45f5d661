//! Reads that must not be answered from memory: they go to the control plane, within the evaluation's deadline.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use assent_context::{CollectionSpec, Key, collection::MAX_OBJECT_BYTES, sink::AccessReview};
use assent_core::Digest;
use assent_proto::v1::{self, context_service_client::ContextServiceClient};
use assent_wire::context as wire;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, future::Shared};
use prost::Message as _;
use tokio::runtime::Handle;

use super::{data::ContextData, request::AccessReply};
use crate::{
    client::Connection,
    registries::cache::{Bounds, Cache},
};

/// Answers live reads. The error is for the guest.
pub trait LiveReads: Send + Sync {
    /// One object as it is now, projected as its collection; none if there is none.
    fn get(
        &self,
        revision: &str,
        spec: &CollectionSpec,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Option<Vec<u8>>, String>;

    /// Whether a subject may do something: the reply for the guest. `fresh`: not from answers of the last seconds.
    fn can_i(
        &self,
        revision: &str,
        review: AccessReview,
        fresh: bool,
        within: Duration,
    ) -> Result<Vec<u8>, String>;
}

/// Objects from files are the cluster: a live read finds the same. Nobody may do anything, or everybody everything.
pub struct FixedReads {
    /// The objects.
    pub data: Arc<ContextData>,
    /// What every access review answers.
    pub allow_all_access: bool,
}

/// Asks the control plane.
pub(crate) struct RemoteReads {
    node: v1::Node,
    /// Of the open discovery stream; none while there is no control plane.
    connection: Arc<ArcSwapOption<Connection>>,
    runtime: Handle,
    memory: Arc<Mutex<Memory>>,
}

/// Answers to access reviews, and questions in progress.
struct Memory {
    cache: Cache,
    pending: HashMap<Digest, Pending>,
}

/// One question in progress. The same question of another guest waits for the same answer.
type Pending = Shared<BoxFuture<'static, Reply>>;
type Reply = Result<Bytes, Arc<str>>;

/// A permission that was withdrawn is noticed after this time. An answer has less than a KiB.
const ACCESS: Bounds = Bounds {
    fresh: Duration::from_secs(5),
    entries: 10_000,
    bytes: 16 << 20,
};

/// Concurrent questions to the control plane.
const MAX_PENDING: usize = 64;

/// The longest timeout of a webhook.
const LONGEST: Duration = Duration::from_secs(30);

// === impl FixedReads ===

impl LiveReads for FixedReads {
    fn get(
        &self,
        _: &str,
        spec: &CollectionSpec,
        namespace: &str,
        name: &str,
        _: Duration,
    ) -> Result<Option<Vec<u8>>, String> {
        let state = self.data.load();
        let snapshot = state
            .find(spec.declared())
            .and_then(|view| view.snapshot.as_ref());
        let object = snapshot.and_then(|snapshot| snapshot.get(namespace, name));
        Ok(object.map(|object| object.json().to_vec()))
    }

    fn can_i(&self, _: &str, _: AccessReview, _: bool, _: Duration) -> Result<Vec<u8>, String> {
        let reason = match self.allow_all_access {
            true => "",
            false => "nothing is allowed without --allow-all-access",
        };
        write(&AccessReply {
            allowed: self.allow_all_access,
            reason,
            ..AccessReply::default()
        })
    }
}

// === impl RemoteReads ===

impl RemoteReads {
    /// Runs on the current runtime.
    pub(crate) fn new(node: v1::Node, connection: Arc<ArcSwapOption<Connection>>) -> Self {
        let memory = Memory {
            cache: Cache::new(ACCESS),
            pending: HashMap::new(),
        };
        Self {
            node,
            connection,
            runtime: Handle::current(),
            memory: Arc::new(Mutex::new(memory)),
        }
    }

    fn query(&self, revision: &str, query: v1::context_query::Query) -> v1::ContextQuery {
        v1::ContextQuery {
            node: Some(v1::Node {
                id: self.node.id.clone(),
                policy_server: self.node.policy_server.clone(),
                instance_uid: self.node.instance_uid.clone(),
                ..v1::Node::default()
            }),
            revision: revision.to_owned(),
            query: Some(query),
        }
    }

    /// The answer as it came, encoded.
    fn ask(
        &self,
        query: v1::ContextQuery,
        use_cache: bool,
        within: Duration,
    ) -> Result<v1::ContextAnswer, String> {
        let key = Digest::of(&query.encode_to_vec());
        let known = self.lock().cache.get(&key, Instant::now()).cloned();
        let bytes = match known.filter(|_| use_cache) {
            Some(bytes) => bytes,
            None => self.wait(self.pending(key, query, use_cache)?, within)?,
        };
        v1::ContextAnswer::decode(bytes).map_err(|error| error.to_string())
    }

    fn pending(&self, key: Digest, query: v1::ContextQuery, keep: bool) -> Result<Pending, String> {
        let connection = self.connection.load_full();
        let Some(connection) = connection else {
            return Err(
                "there is no control plane, and this read must not be answered from memory"
                    .to_owned(),
            );
        };
        let mut memory = self.lock();
        if let Some(pending) = memory.pending.get(&key) {
            return Ok(pending.clone());
        }
        if memory.pending.len() >= MAX_PENDING {
            return Err("too many live reads are waiting".to_owned());
        }
        let task = self.runtime.spawn(send((*connection).clone(), query));
        let remembered = self.memory.clone();
        let pending = async move {
            let reply = task.await;
            let reply = reply.unwrap_or_else(|_| Err("the evaluator is shutting down".into()));
            let mut memory = remembered.lock().unwrap_or_else(PoisonError::into_inner);
            memory.pending.remove(&key);
            // Errors are not cached.
            if let Some(answer) = reply.as_ref().ok().filter(|_| keep) {
                memory.cache.put(key, answer.clone(), Instant::now());
            }
            reply
        };
        let pending = pending.boxed().shared();
        memory.pending.insert(key, pending.clone());
        // Drives it to its end even if every guest that waits for it is gone.
        self.runtime.spawn(pending.clone().map(drop));
        Ok(pending)
    }

    /// Guests run on threads that may block; those of the runtime may not.
    fn wait(&self, pending: Pending, within: Duration) -> Result<Bytes, String> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(pending.map(move |reply| {
            let _ = sender.send(reply);
        }));
        match receiver.recv_timeout(within) {
            Ok(reply) => reply.map_err(|why| why.to_string()),
            Err(_) => Err("the control plane did not answer in time".to_owned()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveReads for RemoteReads {
    fn get(
        &self,
        revision: &str,
        spec: &CollectionSpec,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Option<Vec<u8>>, String> {
        if Key::new(namespace, name).is_none() {
            return Ok(None);
        }
        let query = self.query(
            revision,
            v1::context_query::Query::Get(v1::ObjectQuery {
                collection: spec.id().to_string(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
        );
        match self.ask(query, false, within)?.answer {
            Some(v1::context_answer::Answer::Object(answer)) if !answer.found => Ok(None),
            Some(v1::context_answer::Answer::Object(answer)) => {
                if answer.object.len() > MAX_OBJECT_BYTES {
                    return Err("the object is too large".to_owned());
                }
                Ok(Some(answer.object.to_vec()))
            }
            _ => Err("the control plane gave another answer than asked for".to_owned()),
        }
    }

    fn can_i(
        &self,
        revision: &str,
        review: AccessReview,
        fresh: bool,
        within: Duration,
    ) -> Result<Vec<u8>, String> {
        let query = self.query(
            revision,
            v1::context_query::Query::CanI(wire::access_to_proto(review)),
        );
        match self.ask(query, !fresh, within)?.answer {
            Some(v1::context_answer::Answer::Access(answer)) => write(&AccessReply {
                allowed: answer.allowed,
                denied: answer.denied,
                reason: &answer.reason,
                evaluation_error: &answer.evaluation_error,
            }),
            _ => Err("the control plane gave another answer than asked for".to_owned()),
        }
    }
}

async fn send(connection: Connection, query: v1::ContextQuery) -> Reply {
    let mut client = ContextServiceClient::new(connection).max_decoding_message_size(8 << 20);
    match tokio::time::timeout(LONGEST, client.query_context(query)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().encode_to_vec().into()),
        Ok(Err(status)) => Err(format!("{:?}: {}", status.code(), status.message()).into()),
        Err(_) => Err("the control plane did not answer in time".into()),
    }
}

fn write(reply: &AccessReply<'_>) -> Result<Vec<u8>, String> {
    serde_json::to_vec(reply).map_err(|error| error.to_string())
}
