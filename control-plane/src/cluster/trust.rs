//! Connects the cluster's identities and certificates with the discovery services.

use std::{net::SocketAddr, sync::Arc};

use assent_grpc::{
    Access, Authenticator, Principal,
    auth::Error,
    certificate::{self, Signed, Signer, Subject},
};
use assent_k8s::{
    certificates::{Authority, SignError},
    identity::{self, Credential, Replica, TokenChecker, Verb},
    names,
};
use async_trait::async_trait;
use tokio::sync::watch;

/// Authenticates by TokenReview and authorizes users by SubjectAccessReview.
pub(super) struct Tokens(pub(super) TokenChecker);

/// Signs serving certificates of evaluators with the cluster's authority.
pub(super) struct ClusterSigner {
    pub(super) authority: watch::Receiver<Arc<Authority>>,
    pub(super) namespace: String,
    /// DNS names that every leaf has in addition, for development outside of the cluster.
    pub(super) extra_names: Vec<String>,
}

// === impl Tokens ===

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(
        &self,
        token: Option<&str>,
        peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, Error> {
        let credential = Credential {
            token: token.ok_or(Error::Missing)?,
            peer: peer.map(|peer| peer.ip().to_canonical()),
        };
        let verb = match access {
            Access::Stream => {
                let replica = self.0.replica(credential).await.map_err(refusal)?;
                return Ok(principal(replica));
            }
            Access::Replica => {
                let replica = self.0.known_replica(credential).await.map_err(refusal)?;
                return Ok(principal(replica));
            }
            Access::Read => Verb::Get,
            Access::Write => Verb::Update,
        };
        let user = self.0.user(credential).await.map_err(refusal)?;
        self.0.authorize(&user, verb, None).await.map_err(refusal)?;
        Ok(Principal::Anyone {
            identity: user.name,
        })
    }
}

fn principal(replica: Replica) -> Principal {
    Principal::Replica {
        id: replica.replica_id(),
        identity: identity::pod_identity(&replica.namespace, &replica.pod, &replica.uid),
        expires: replica.expires,
        policy_server: Some(replica.server),
    }
}

fn refusal(error: identity::Error) -> Error {
    match error {
        identity::Error::Invalid(why) => Error::Invalid(why),
        identity::Error::Forbidden(why) => Error::Forbidden(why),
        identity::Error::Unavailable(why) => Error::Unavailable(why),
    }
}

// === impl ClusterSigner ===

#[async_trait]
impl Signer for ClusterSigner {
    async fn sign(&self, csr_der: &[u8], subject: &Subject) -> Result<Signed, certificate::Error> {
        let authority = self.authority.borrow().clone();
        let mut names = self.extra_names.clone();
        // A follower, whose id contains its namespace, serves its own pod only.
        if !subject.replica.contains('.') {
            let service = names::server(&subject.server);
            names.push(format!("{service}.{}.svc", self.namespace));
        }
        let addresses: Vec<_> = subject.address.into_iter().collect();
        let signed = authority.sign_csr(csr_der, &names, &addresses);
        let signed = signed.map_err(|error| match error {
            SignError::Request(why) => certificate::Error::Request(why),
            other => certificate::Error::Sign(other.to_string()),
        })?;
        Ok(Signed {
            chain_pem: signed.chain_pem,
            ca_bundle_pem: signed.bundle_pem,
            not_after: signed.not_after,
            renew_at: signed.renew_at,
        })
    }
}
