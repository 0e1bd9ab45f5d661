//! Authentication: tokens are reviewed by the API server, and the identity of a replica follows
//! from its pod, never from what it claims.
//!
//! Requests to the API server are bounded. A new stream costs a TokenReview and a read of its
//! pod. Health checks and module fetches use the identity that was found when the stream was
//! opened. Tokens that can't be valid are refused locally, and an address that keeps sending
//! invalid ones may only try a few per minute.
//!
//! [`Error::Unavailable`] means that the API server could not be asked. A caller that was
//! identified before is then served with that identity: an outage of the API server must not
//! turn into one of the evaluators.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::{Api, Client, api::PostParams};
use sha2::{Digest as _, Sha256};

use crate::names;

mod cache;
mod decide;
mod jwt;
mod lookup;
mod review;
#[cfg(test)]
mod tests;

use cache::Cache;
pub use lookup::{Found, Live, Lookup, Watched};
use review::Reviewer;

/// Checks tokens.
pub struct TokenChecker {
    client: Client,
    namespace: String,
    lookup: Arc<dyn Lookup>,
    reviewer: Reviewer,
    /// By the digest of the token: no token is kept.
    replicas: Mutex<Cache<TokenDigest, Replica>>,
    /// Valid tokens that belong to no replica, and why.
    strangers: Mutex<Cache<TokenDigest, Error>>,
    /// What users may do, by the digest of the question.
    decisions: Mutex<Cache<[u8; 32], Result<(), Error>>>,
    /// When a look-up failed, unless one succeeded since.
    failed: Mutex<Option<Instant>>,
    clock: fn() -> Instant,
}

type TokenDigest = [u8; 32];

/// A token, and where it came from.
#[derive(Clone, Copy)]
pub struct Credential<'a> {
    /// The bearer token.
    pub token: &'a str,
    /// The address of the connection, if it is known.
    pub peer: Option<IpAddr>,
}

/// The owner of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// An evaluator.
    Replica(Replica),
    /// Anybody else, who may do what a SubjectAccessReview allows.
    User(User),
}

/// An evaluator, as its pod proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// Its service account.
    pub service_account: String,
    /// The PolicyServer that it belongs to, and the only one that it may see.
    pub server: String,
    /// It is injected into a user's pod: reported, never counted.
    pub follower: bool,
    /// Where it listens; empty until the kubelet has reported it.
    pub pod_ips: Vec<IpAddr>,
    /// When the token expires, and streams end.
    pub expires: Option<SystemTime>,
}

/// The owner of a token, as the API server reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Uid; may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes, for authorization.
    pub extra: BTreeMap<String, Vec<String>>,
    /// When the token expires.
    pub expires: Option<SystemTime>,
}

/// What is done with the discovery state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Looking at it.
    Get,
    /// Changing policies through it.
    Update,
}

/// Why a caller is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The token is not valid, or its pod is gone.
    #[error("the token is not valid: {0}")]
    Invalid(String),
    /// The token is valid, but not for this.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The API server could not be asked.
    #[error("failed to check the token: {0}")]
    Unavailable(String),
}

/// How long health checks and module fetches use the identity of the last stream: longer than
/// streams live, which is at most 36 minutes. Until then a pod that was deleted could fetch
/// modules that it has fetched before; it can't open streams or get certificates.
const REPLICA: Duration = Duration::from_secs(60 * 60);

/// A replica has about a kilobyte: some megabytes together.
const MAX_REPLICAS: usize = 8_192;

/// How long a valid token of no replica is refused without a look-up. Short, because a pod may be
/// newer than what the control plane has seen of it.
const STRANGER: Duration = Duration::from_secs(2);
const MAX_STRANGERS: usize = 1_024;

/// How long an answer about a user's permissions is used: a permission takes effect within this
/// time.
const DECISION: Duration = Duration::from_secs(5);
const MAX_DECISIONS: usize = 1_024;

/// A look-up that failed counts as an outage for this long, unless another one succeeds.
const OUTAGE: Duration = Duration::from_secs(60);

/// Tokens of the API server have one or two thousand bytes.
const MAX_TOKEN: usize = 16 << 10;

/// The API server's own limit for such requests is a minute, longer than callers wait.
const TIMEOUT: Duration = Duration::from_secs(10);

// === impl TokenChecker ===

impl TokenChecker {
    /// Reviews tokens at this API server; `namespace` is the control plane's own.
    pub fn new(client: Client, namespace: &str, lookup: Arc<dyn Lookup>) -> Self {
        Self {
            reviewer: Reviewer::new(client.clone(), Instant::now),
            client,
            namespace: namespace.to_owned(),
            lookup,
            replicas: Mutex::new(Cache::new(MAX_REPLICAS)),
            strangers: Mutex::new(Cache::new(MAX_STRANGERS)),
            decisions: Mutex::new(Cache::new(MAX_DECISIONS)),
            failed: Mutex::new(None),
            clock: Instant::now,
        }
    }

    /// The owner of the token. A pod that asks for an evaluator is a replica, or is refused.
    pub async fn identify(&self, credential: Credential<'_>) -> Result<Identity, Error> {
        let user = self.user(credential).await?;
        let Some(claim) = decide::claim(&user)? else {
            return Ok(Identity::User(user));
        };
        // Read each time: a cached review must not outlive the pod.
        let pod = self.lookup.pod(&claim.namespace, &claim.pod).await;
        let pod = self.looked_up(pod)?;
        let pod = decide::alive(&claim, pod)?;
        let Some(server) = decide::server(&pod) else {
            return Ok(Identity::User(user));
        };
        let set = match claim.namespace == self.namespace {
            true => self.looked_up(self.lookup.stateful_set(&server).await)?,
            false => None,
        };
        let allowed = match decide::is_member(&claim, &pod, set.as_deref(), &self.namespace) {
            true => None,
            false => Some(self.looked_up(self.lookup.allowed_namespaces(&server).await)?),
        };
        let allowed = allowed.map(Option::unwrap_or_default);
        let replica = decide::place(claim, &pod, server, allowed.as_deref(), user.expires)?;
        Ok(Identity::Replica(replica))
    }

    /// The evaluator that the token belongs to, checked now: for new streams and certificates.
    pub async fn replica(&self, credential: Credential<'_>) -> Result<Replica, Error> {
        let key = credential.digest();
        if let Some(error) = lock(&self.strangers).get(&key, self.now()) {
            return Err(error);
        }
        let identified = match jwt::cannot_be_a_replica(credential.token, SystemTime::now()) {
            Some(why) => Err(Error::Invalid(why)),
            None => self.identify(credential).await,
        };
        match identified {
            Ok(Identity::Replica(replica)) => {
                let keep = until(replica.expires, REPLICA);
                lock(&self.replicas).put(key, replica.clone(), self.now(), keep);
                Ok(replica)
            }
            Ok(Identity::User(user)) => {
                let error = Error::Forbidden(format!(
                    "the token belongs to {:?}, not to a pod with the label {}",
                    user.name,
                    names::SERVER_LABEL
                ));
                Err(self.refuse(key, error))
            }
            Err(error @ Error::Unavailable(_)) => {
                let known = lock(&self.replicas).get(&key, self.now());
                self.still_allowed(key, known.ok_or(error)?).await
            }
            Err(error) => Err(self.refuse(key, error)),
        }
    }

    /// Remembers a refusal for a moment: a valid token of no replica must not cost a look-up of its
    /// pod each time that it is sent.
    fn refuse(&self, key: TokenDigest, error: Error) -> Error {
        lock(&self.replicas).remove(&key);
        lock(&self.strangers).put(key, error.clone(), self.now(), STRANGER);
        error
    }

    /// The same, without a request if the token was checked before: for health checks and module
    /// fetches of an evaluator that has a stream.
    pub async fn known_replica(&self, credential: Credential<'_>) -> Result<Replica, Error> {
        let key = credential.digest();
        let known = lock(&self.replicas).get(&key, self.now());
        match known {
            Some(replica) => self.still_allowed(key, replica).await,
            None => self.replica(credential).await,
        }
    }

    /// A replica that was identified before, unless it is a follower whose namespace lost its
    /// permission since. That is known from a watch and costs no request; if it is not known,
    /// nothing says that the permission is gone.
    async fn still_allowed(&self, key: TokenDigest, replica: Replica) -> Result<Replica, Error> {
        if !replica.follower {
            return Ok(replica);
        }
        let allowed = self.lookup.allowed_namespaces(&replica.server).await;
        let allowed = allowed.map(Option::unwrap_or_default);
        if allowed.is_ok_and(|allowed| !allowed.contains(&replica.namespace)) {
            let Replica {
                namespace,
                pod,
                server,
                ..
            } = &replica;
            return Err(self.refuse(key, decide::may_not_follow(namespace, pod, server)));
        }
        Ok(replica)
    }

    /// The owner of the token, as the API server reports it or reported within the last minute.
    pub async fn user(&self, credential: Credential<'_>) -> Result<User, Error> {
        let token = credential.token;
        if token.is_empty()
            || token.len() > MAX_TOKEN
            || !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Error::Invalid("it is malformed".to_owned()));
        }
        self.reviewer.user(credential).await
    }

    /// Whether tokens can be checked now. While they can't, a stream that ends could not be opened
    /// again.
    pub async fn is_available(&self) -> bool {
        let recent = |at: Instant| self.now().saturating_duration_since(at) < OUTAGE;
        let failed = lock(&self.failed).is_some_and(recent);
        !failed && self.reviewer.is_answering().await
    }

    fn looked_up<T>(&self, found: Result<T, Error>) -> Result<T, Error> {
        *lock(&self.failed) = match &found {
            Err(Error::Unavailable(_)) => Some(self.now()),
            _ => None,
        };
        found
    }

    fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Checks that a user may do this with the discovery state of a PolicyServer, or of all.
    pub async fn authorize(
        &self,
        user: &User,
        verb: Verb,
        server: Option<&str>,
    ) -> Result<(), Error> {
        let spec = decide::access(user, verb, server);
        let question = serde_json::to_vec(&spec).expect("a review must be JSON");
        let key = Sha256::digest(&question).into();
        let known = lock(&self.decisions).get(&key, self.now());
        if let Some(decision) = known {
            return decision;
        }
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = bounded(api.create(&PostParams::default(), &review)).await?;
        let decision = decide::allowed(user, verb, answer.status);
        lock(&self.decisions).put(key, decision.clone(), self.now(), DECISION);
        decision
    }
}

// === impl Credential ===

impl Credential<'_> {
    fn digest(&self) -> TokenDigest {
        Sha256::digest(self.token.as_bytes()).into()
    }
}

// === impl Replica ===

impl Replica {
    /// Its name in the discovery protocol: the pod's name, and for a follower
    /// `<pod>.<namespace>`, because pods of different namespaces may share a name.
    pub fn replica_id(&self) -> String {
        if self.follower {
            names::follower(&self.pod, &self.namespace)
        } else {
            self.pod.clone()
        }
    }
}

// === impl Verb ===

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Update => "update",
        }
    }
}

/// A failed request tells nothing about the caller.
async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| Error::Unavailable(error.to_string())),
        Err(_) => Err(Error::Unavailable(
            "no answer from the API server".to_owned(),
        )),
    }
}

/// How long an identity may be cached: never longer than its token is valid.
fn until(expires: Option<SystemTime>, longest: Duration) -> Duration {
    let left = expires.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
    left.map_or(longest, |left| left.min(longest))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the stream of a replica is known by: this pod, and no other pod of its name.
pub fn pod_identity(namespace: &str, pod: &str, uid: &str) -> String {
    format!("pod {namespace}/{pod} ({uid})")
}
