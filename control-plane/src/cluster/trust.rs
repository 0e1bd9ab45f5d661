//! Joins identity and certificates of the cluster with the discovery services.

use std::{net::SocketAddr, sync::Arc};

use assent_grpc::{
    Access, Authenticator, Principal,
    auth::Error,
    certificate::{self, Signed, Signer, Subject},
};
use assent_k8s::{
    certificates::Authority,
    identity::{self, TokenChecker, Verb},
    names,
};
use async_trait::async_trait;
use tokio::sync::watch;

/// Who calls, by TokenReview; what people may do, by SubjectAccessReview.
pub(super) struct Tokens(pub(super) TokenChecker);

/// Signs serving certificates of evaluators with the cluster's authority.
pub(super) struct ClusterSigner {
    pub(super) authority: watch::Receiver<Arc<Authority>>,
    pub(super) namespace: String,
    /// Names that every leaf has beside its own, for development outside of the cluster.
    pub(super) extra_names: Vec<String>,
}

// === impl Tokens ===

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(
        &self,
        token: Option<&str>,
        _peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, Error> {
        let token = token.ok_or(Error::Missing)?;
        let verb = match access {
            Access::Replica => {
                let replica = self.0.replica(token).await.map_err(refusal)?;
                return Ok(Principal::Replica {
                    id: replica.replica_id(),
                    policy_server: Some(replica.server.clone()),
                    identity: pod_identity(&replica.namespace, &replica.pod, &replica.uid),
                    expires: replica.expires,
                });
            }
            Access::Read => Verb::Get,
            Access::Write => Verb::Update,
        };
        let user = self.0.user(token).await.map_err(refusal)?;
        self.0.authorize(&user, verb, None).await.map_err(refusal)?;
        Ok(Principal::Anyone {
            identity: user.name,
        })
    }
}

/// What a replica's stream is known by: this very pod, and no other of its name.
pub(super) fn pod_identity(namespace: &str, pod: &str, uid: &str) -> String {
    format!("pod {namespace}/{pod} ({uid})")
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
        // A follower's id has its namespace in it; it answers nobody but its own pod.
        if !subject.replica.contains('.') {
            let service = names::server(&subject.server);
            names.push(format!("{service}.{}.svc", self.namespace));
        }
        let addresses: Vec<_> = subject.address.into_iter().collect();
        let signed = authority.sign_csr(csr_der, &names, &addresses);
        let signed = signed.map_err(|error| match error {
            assent_k8s::certificates::Error::Request(why) => certificate::Error::Request(why),
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
