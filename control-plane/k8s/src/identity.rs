//! Who calls: tokens are reviewed by the API server, and what a replica is follows from its
//! pod, never from what it says.
//!
//! An error says what becomes of a stream that is already open: [`Error::Unavailable`] means
//! that nothing is known, and it lives on and is checked again; the others end it.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::SubjectAccessReview,
};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest as _, Sha256};

use crate::names;

mod cache;
mod decide;
mod jwt;
mod lookup;
#[cfg(test)]
mod tests;

use cache::Cache;
pub use lookup::{Live, Lookup};

/// Checks tokens.
pub struct TokenChecker {
    client: Client,
    namespace: String,
    lookup: Arc<dyn Lookup>,
    /// By digest: a token itself is kept nowhere.
    accepted: Mutex<Cache<User>>,
    refused: Mutex<Cache<String>>,
}

/// Who a token is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// An evaluator.
    Replica(Replica),
    /// Anybody else: may do what a SubjectAccessReview allows.
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
    /// It sits in somebody else's pod: reported, never counted.
    pub follower: bool,
    /// Where it listens; none before the kubelet said so.
    pub pod_ip: Option<IpAddr>,
    /// When the token ends, and streams with it.
    pub expires: Option<SystemTime>,
}

/// What the API server says about the owner of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Uid; may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// More, for whoever authorizes.
    pub extra: BTreeMap<String, Vec<String>>,
    /// When the token ends.
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
    /// It cannot be said now.
    #[error("failed to check the token: {0}")]
    Unavailable(String),
}

/// A review is believed for this long: a thousand replicas that reconnect ask once each.
const ACCEPTED: Duration = Duration::from_secs(60);

/// A refused token is not asked about again for this long.
const REFUSED: Duration = Duration::from_secs(5);

/// A user is about a kilobyte: some megabytes.
const MAX_ACCEPTED: usize = 8_192;
const MAX_REFUSED: usize = 1_024;

/// Tokens of the API server have one or two thousand bytes.
const MAX_TOKEN: usize = 16 << 10;

/// The API server's own limit for such requests is much longer; nobody waits for that.
const TIMEOUT: Duration = Duration::from_secs(10);

// === impl TokenChecker ===

impl TokenChecker {
    /// Checks against this API server; `namespace` is our own, where PolicyServers' pods are.
    pub fn new(client: Client, namespace: &str, lookup: Arc<dyn Lookup>) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            lookup,
            accepted: Mutex::new(Cache::new(MAX_ACCEPTED)),
            refused: Mutex::new(Cache::new(MAX_REFUSED)),
        }
    }

    /// Who the token is of. A pod that asks for an evaluator is a replica, or is refused.
    pub async fn identify(&self, token: &str) -> Result<Identity, Error> {
        let user = self.user(token).await?;
        let Some(claim) = decide::claim(&user)? else {
            return Ok(Identity::User(user));
        };
        // Read each time: a cached review does not outlive the pod.
        let pod = self.lookup.pod(&claim.namespace, &claim.pod).await?;
        let pod = decide::alive(&claim, pod)?;
        let Some(server) = decide::server(&pod) else {
            return Ok(Identity::User(user));
        };
        let set = self.lookup.stateful_set(&names::server(&server)).await?;
        let follows = match decide::is_member(&claim, &pod, set.as_ref(), &self.namespace) {
            true => None,
            false => Some(self.lookup.policy_server(&server).await?),
        };
        let replica = decide::place(claim, &pod, server, follows, user.expires)?;
        Ok(Identity::Replica(replica))
    }

    /// The evaluator that the token is of.
    pub async fn replica(&self, token: &str) -> Result<Replica, Error> {
        match self.identify(token).await? {
            Identity::Replica(replica) => Ok(replica),
            Identity::User(user) => Err(Error::Forbidden(format!(
                "the token is of {:?}, not of a pod with the label {}",
                user.name,
                names::SERVER_LABEL
            ))),
        }
    }

    /// What the API server says about the token, or said within the last minute.
    pub async fn user(&self, token: &str) -> Result<User, Error> {
        if token.is_empty()
            || token.len() > MAX_TOKEN
            || !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Error::Invalid("it does not look like one".to_owned()));
        }
        let key = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = lock(&self.accepted).get(&key, Instant::now()) {
            return Ok(user);
        }
        if let Some(why) = lock(&self.refused).get(&key, Instant::now()) {
            return Err(Error::Invalid(why));
        }
        let status = self.review(token).await?;
        let now = SystemTime::now();
        let reviewed = decide::user(status, jwt::expires(token), now);
        match &reviewed {
            Ok(user) => {
                let left = user.expires.and_then(|ends| ends.duration_since(now).ok());
                let keep = left.map_or(ACCEPTED, |left| left.min(ACCEPTED));
                lock(&self.accepted).put(key, user.clone(), Instant::now(), keep);
            }
            Err(Error::Invalid(why)) => {
                lock(&self.refused).put(key, why.clone(), Instant::now(), REFUSED);
            }
            Err(_) => {}
        }
        reviewed
    }

    /// Whether a user may do this to the discovery state of a PolicyServer, or of all.
    pub async fn authorize(
        &self,
        user: &User,
        verb: Verb,
        server: Option<&str>,
    ) -> Result<(), Error> {
        let review = SubjectAccessReview {
            spec: decide::access(user, verb, server),
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = bounded(api.create(&PostParams::default(), &review)).await?;
        decide::allowed(user, verb, answer.status)
    }

    async fn review(&self, token: &str) -> Result<Option<TokenReviewStatus>, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![names::TOKEN_AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = bounded(api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status)
    }
}

// === impl Replica ===

impl Replica {
    /// Its name on the wire: the pod's name, and for a follower `<pod>.<namespace>`, because
    /// pods of different namespaces may share a name.
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

/// Whatever goes wrong between us and the API server says nothing about the caller.
async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| Error::Unavailable(error.to_string())),
        Err(_) => Err(Error::Unavailable(
            "no answer from the API server".to_owned(),
        )),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
