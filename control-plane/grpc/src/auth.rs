//! Authentication: who calls, and which replicas the caller may be.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use assent_core::Digest;
use futures::future::BoxFuture;
use http::{Extensions, HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use crate::{conn::Peer, encode::Settings};

mod tokens;

pub use tokens::{Error as TokensError, StaticTokens};

/// Identifies callers.
#[tonic::async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the owner of `token`, who requests `access`. `peer` is `None` if the address of the
    /// connection is not known.
    async fn authenticate(
        &self,
        token: Option<&str>,
        peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, Error>;

    /// Whether callers can be authenticated now. While they cannot, a stream that has reached its
    /// age stays open, because its replica could not open another one.
    async fn is_available(&self) -> bool {
        true
    }
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// An evaluator opens a stream or asks for a certificate.
    Stream,
    /// An evaluator that has a stream sends a health check or fetches a module. Such calls are
    /// frequent, so an authenticator reuses its result for the stream.
    Replica,
    /// Reading the discovery state.
    Read,
    /// Changing policies.
    Write,
}

/// The identity that a credential proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// May be any replica of any PolicyServer.
    Anyone {
        /// The name in the credential, for logs and status.
        identity: String,
    },
    /// Is this replica and no other.
    Replica {
        /// Its name.
        id: String,
        /// Its PolicyServer, if the credential names one.
        policy_server: Option<String>,
        /// The name in the credential, for logs and status.
        identity: String,
        /// When the credential expires. Its streams end then.
        expires: Option<SystemTime>,
        /// Whether it was injected into a pod of a user: it is reported, and never counted.
        follower: bool,
        /// The addresses that it listens on; empty if the credential names none.
        addresses: Vec<IpAddr>,
    },
}

/// Why a caller is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no token.
    #[error("no token: send `authorization: Bearer <token>`")]
    Missing,
    /// The token is not known or not valid.
    #[error("the token is not valid: {0}")]
    Invalid(String),
    /// The token is valid, but not for this.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The token cannot be checked now.
    #[error("failed to check the token: {0}")]
    Unavailable(String),
}

/// Accepts every caller on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

/// Accepts every caller on this machine. Changing policies needs a token.
#[derive(Clone, Debug)]
pub struct Local {
    /// Tokens are compared by their digests, so that the time does not depend on the token.
    token: Digest,
}

/// The authenticator in front of a service.
#[derive(Clone)]
pub(crate) struct Gate(Arc<dyn Authenticator>);

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) peer: Option<Peer>,
}

// === impl Principal ===

impl Principal {
    /// The name in the credential, for logs and status.
    pub fn identity(&self) -> &str {
        match self {
            Principal::Anyone { identity } | Principal::Replica { identity, .. } => identity,
        }
    }

    /// The PolicyServer that the caller may see; `None` for all.
    pub fn server(&self) -> Option<&str> {
        match self {
            Principal::Anyone { .. } => None,
            Principal::Replica { policy_server, .. } => policy_server.as_deref(),
        }
    }

    /// When the credential expires.
    pub fn expires(&self) -> Option<SystemTime> {
        match self {
            Principal::Anyone { .. } => None,
            Principal::Replica { expires, .. } => *expires,
        }
    }

    /// Whether the caller is a replica that decides when a webhook flips.
    pub(crate) fn is_counted(&self) -> bool {
        matches!(
            self,
            Principal::Replica {
                follower: false,
                ..
            }
        )
    }

    /// Whether the caller gets settings that come from Secrets: a follower runs in a pod of a
    /// user, who can read its memory and its token.
    pub(crate) fn settings(&self) -> Settings {
        match self {
            Principal::Replica { follower: true, .. } => Settings::Withheld,
            Principal::Replica { .. } | Principal::Anyone { .. } => Settings::Sent,
        }
    }

    /// The addresses that the credential proves.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        match self {
            Principal::Anyone { .. } => &[],
            Principal::Replica { addresses, .. } => addresses,
        }
    }

    /// Whether the caller may be replica `id` of `server`.
    pub(crate) fn check(&self, id: &str, server: &str) -> Result<(), Status> {
        self.check_server(server)?;
        match self {
            Principal::Replica { id: own, .. } if own != id => Err(Status::permission_denied(
                format!("the credential is of replica \"{own}\", not of \"{id}\""),
            )),
            _ => Ok(()),
        }
    }

    /// Whether the caller may see `server`.
    pub(crate) fn check_server(&self, server: &str) -> Result<(), Status> {
        match self.server() {
            Some(own) if own != server => Err(Status::permission_denied(format!(
                "the credential is for PolicyServer \"{own}\" only"
            ))),
            _ => Ok(()),
        }
    }
}

// === impl Error ===

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Missing | Error::Invalid(_) => Status::unauthenticated(text),
            Error::Forbidden(_) => Status::permission_denied(text),
            Error::Unavailable(_) => Status::unavailable(text),
        }
    }
}

// === impl Open ===

#[tonic::async_trait]
impl Authenticator for Open {
    async fn authenticate(
        &self,
        _token: Option<&str>,
        peer: Option<SocketAddr>,
        _access: Access,
    ) -> Result<Principal, Error> {
        match peer {
            Some(peer) if peer.ip().to_canonical().is_loopback() => Ok(Principal::Anyone {
                identity: "loopback".to_owned(),
            }),
            _ => Err(Error::Missing),
        }
    }
}

// === impl Local ===

impl Local {
    /// Changing policies needs `token`.
    pub fn new(token: &str) -> Self {
        let token = Digest::of(token.as_bytes());
        Self { token }
    }
}

#[tonic::async_trait]
impl Authenticator for Local {
    async fn authenticate(
        &self,
        token: Option<&str>,
        peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, Error> {
        if access == Access::Write {
            let token = token.ok_or(Error::Missing)?;
            if Digest::of(token.as_bytes()) != self.token {
                let why = "it is not the one that this control plane made when it started";
                return Err(Error::Invalid(why.to_owned()));
            }
        }
        Open.authenticate(token, peer, access).await
    }
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(authenticator: Arc<dyn Authenticator>) -> Self {
        Self(authenticator)
    }

    /// Whether callers can be authenticated now.
    pub(crate) fn is_available(&self) -> BoxFuture<'static, bool> {
        let authenticator = self.0.clone();
        Box::pin(async move { authenticator.is_available().await })
    }

    /// Authenticates a caller.
    pub(crate) async fn admit(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        access: Access,
    ) -> Result<Caller, Status> {
        let peer = extensions.get::<Peer>().cloned();
        let address = peer.as_ref().map(Peer::address);
        let principal = self
            .0
            .authenticate(bearer(headers), address, access)
            .await?;
        if let Some(peer) = &peer {
            peer.count_authenticated();
        }
        Ok(Caller { principal, peer })
    }

    /// The same for a decoded request.
    pub(crate) async fn admit_request<T>(
        &self,
        request: &tonic::Request<T>,
        access: Access,
    ) -> Result<Caller, Status> {
        let headers = request.metadata().clone().into_headers();
        self.admit(&headers, request.extensions(), access).await
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
