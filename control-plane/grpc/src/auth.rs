//! Who calls, and what they may be.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use assent_core::Digest;
use futures::future::BoxFuture;
use http::{Extensions, HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use crate::conn::Peer;

mod tokens;

pub use tokens::{Error as TokensError, StaticTokens};

/// Decides who a caller is.
#[tonic::async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The owner of `token`, who wants `access`. `peer` is none where the connection does
    /// not say.
    async fn authenticate(
        &self,
        token: Option<&str>,
        peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, Error>;

    /// Whether callers can be authenticated now. While they can't, a stream that has reached its
    /// age stays open: its replica could not open another one.
    async fn is_available(&self) -> bool {
        true
    }
}

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// An evaluator opens a stream or asks for a certificate.
    Stream,
    /// Anything else that evaluators do, while they have a stream: health checks, modules. There
    /// are many of these, so that an authenticator answers from what it found for the stream.
    Replica,
    /// Looking at the discovery state.
    Read,
    /// Changing policies.
    Write,
}

/// What a credential proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// May be any replica of any PolicyServer.
    Anyone {
        /// What the credential says, for people.
        identity: String,
    },
    /// Is this replica and no other.
    Replica {
        /// Its name.
        id: String,
        /// Its PolicyServer; none where the credential does not say.
        policy_server: Option<String>,
        /// What the credential says, for people.
        identity: String,
        /// When the credential ends, and streams with it.
        expires: Option<SystemTime>,
        /// It is reported and never counted.
        follower: bool,
        /// Where it listens; empty where the credential does not say.
        addresses: Vec<IpAddr>,
    },
}

/// Why a caller is refused.
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
    /// It cannot be said now.
    #[error("failed to check the token: {0}")]
    Unavailable(String),
}

/// Lets everyone in who calls from this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

/// Lets everyone in who calls from this machine, but changing policies needs a token.
#[derive(Clone, Debug)]
pub struct Local {
    /// Compared by its digest: the time that takes says nothing about the token.
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
    /// What the credential says, for people.
    pub fn identity(&self) -> &str {
        match self {
            Principal::Anyone { identity } | Principal::Replica { identity, .. } => identity,
        }
    }

    /// The one PolicyServer that the caller may see; none is any.
    pub fn server(&self) -> Option<&str> {
        match self {
            Principal::Anyone { .. } => None,
            Principal::Replica { policy_server, .. } => policy_server.as_deref(),
        }
    }

    /// When the credential ends.
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

    /// Where the caller listens, as far as the credential says.
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
    /// Whoever changes policies has `token`.
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

    /// Lets a caller in, or says why not.
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
