//! Connects the cluster's identities and certificates with the discovery services.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

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
    /// For development outside of the cluster: every leaf is also valid for `localhost` and for the
    /// address that its request comes from.
    pub(super) development: bool,
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

    async fn is_available(&self) -> bool {
        self.0.is_available().await
    }
}

fn principal(replica: Replica) -> Principal {
    Principal::Replica {
        id: replica.replica_id(),
        identity: identity::pod_identity(&replica.namespace, &replica.pod, &replica.uid),
        expires: replica.expires,
        follower: replica.follower,
        addresses: replica.pod_ips,
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
        let (names, addresses) = leaf_names(&self.namespace, self.development, subject)?;
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

/// What the leaf of an evaluator is valid for. The addresses are those of its pod: the connection
/// may come from a node or a proxy, which others share.
fn leaf_names(
    namespace: &str,
    development: bool,
    subject: &Subject,
) -> Result<(Vec<String>, Vec<IpAddr>), certificate::Error> {
    let mut names = Vec::new();
    let mut addresses = subject.addresses.clone();
    if development {
        names.push("localhost".to_owned());
        addresses.extend(subject.peer);
        addresses.sort_unstable();
        addresses.dedup();
    }
    // A follower, whose id contains its namespace, serves its own pod only.
    if !subject.replica.contains('.') {
        let service = names::server(&subject.server);
        names.push(format!("{service}.{namespace}.svc"));
    }
    if names.is_empty() && addresses.is_empty() {
        let why = "the address of the pod was not reported".to_owned();
        return Err(certificate::Error::Unavailable(why));
    }
    Ok((names, addresses))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SERVICE: &str = "policy-server-default.assent-system.svc";

    /// A replica whose connection comes from its node.
    fn mk_subject(replica: &str, addresses: &[&str]) -> Subject {
        Subject {
            replica: replica.to_owned(),
            server: "default".to_owned(),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            peer: Some("192.168.0.1".parse().unwrap()),
        }
    }

    #[track_caller]
    fn check(development: bool, subject: &Subject, expect: &[&str]) {
        let (names, addresses) = leaf_names("assent-system", development, subject).unwrap();
        let addresses = addresses.iter().map(ToString::to_string);
        let all: Vec<String> = names.into_iter().chain(addresses).collect();
        assert_eq!(all, expect);
    }

    #[test]
    fn leaf_has_the_addresses_of_the_pod_and_not_of_the_connection() {
        let member = mk_subject("policy-server-default-0", &["10.244.1.7", "fd00::7"]);
        check(false, &member, &[SERVICE, "10.244.1.7", "fd00::7"]);
        let follower = mk_subject("app.team-a", &["10.244.1.8"]);
        check(false, &follower, &["10.244.1.8"]);
    }

    #[test]
    fn pod_without_address_gets_a_leaf_if_it_has_a_name() {
        check(
            false,
            &mk_subject("policy-server-default-0", &[]),
            &[SERVICE],
        );
        let follower = mk_subject("app.team-a", &[]);
        let error = leaf_names("assent-system", false, &follower).unwrap_err();
        assert!(
            matches!(error, certificate::Error::Unavailable(_)),
            "{error}"
        );
    }

    #[test]
    fn development_adds_localhost_and_the_connection() {
        let member = mk_subject("policy-server-default-0", &["10.244.1.7"]);
        let all = ["localhost", SERVICE, "10.244.1.7", "192.168.0.1"];
        check(true, &member, &all);
    }
}
