//! Decides who a caller is, from the API server's answers.

use std::{net::IpAddr, time::SystemTime};

use k8s_openapi::api::{
    authentication::v1::TokenReviewStatus,
    authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec, SubjectAccessReviewStatus},
    core::v1::Pod,
};

use super::{Error, Replica, User, Verb, jwt};
use crate::names;

#[cfg(test)]
mod tests;

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) namespace: String,
    pub(super) service_account: String,
    pub(super) pod: String,
    pub(super) uid: String,
}

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// The owner of a token that was reviewed for the control plane's audience.
pub(super) fn user(
    status: Option<TokenReviewStatus>,
    expires: Option<SystemTime>,
    now: SystemTime,
) -> Result<User, Error> {
    let status = status.unwrap_or_default();
    if status.authenticated != Some(true) {
        let why = status.error.filter(|why| !why.is_empty());
        let why = why.unwrap_or_else(|| "the API server does not accept it".to_owned());
        return Err(Error::Invalid(why));
    }
    // An API server that does not check audiences returns none: such a token is not accepted.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences
        .iter()
        .any(|audience| audience == names::TOKEN_AUDIENCE)
    {
        return Err(Error::Invalid(jwt::not_for_us()));
    }
    let user = status.user.unwrap_or_default();
    Ok(User {
        name: user.username.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
        // An accepted token has not expired: if it seems so, the clock of this process is ahead,
        // and the claim is of no use.
        expires: expires.filter(|ends| *ends > now),
    })
}

/// The pod that the token is bound to, if it is bound to one.
pub(super) fn claim(user: &User) -> Result<Option<Claim>, Error> {
    let account = user.name.strip_prefix("system:serviceaccount:");
    let account = account.and_then(|rest| rest.split_once(':'));
    let Some((namespace, service_account)) = account else {
        return Ok(None);
    };
    if !user.groups.iter().any(|group| group == SERVICE_ACCOUNTS) {
        return Ok(None);
    }
    let one = |key: &str| match user.extra.get(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() => Some(value.clone()),
        _ => None,
    };
    match (one(POD_NAME), one(POD_UID)) {
        (Some(pod), Some(uid)) => Ok(Some(Claim {
            namespace: namespace.to_owned(),
            service_account: service_account.to_owned(),
            pod,
            uid,
        })),
        (None, None) => Ok(None),
        _ => Err(Error::Invalid("it names half a pod".to_owned())),
    }
}

/// The pod of a claim, if it is the very same pod and has not ended.
pub(super) fn alive(claim: &Claim, pod: Option<Pod>) -> Result<Pod, Error> {
    let gone =
        |why: &str| Error::Invalid(format!("its pod {}/{} {why}", claim.namespace, claim.pod));
    let pod = pod.ok_or_else(|| gone("is gone"))?;
    if pod.metadata.uid.as_deref() != Some(&claim.uid) {
        return Err(gone("was replaced by another one"));
    }
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Err(gone("has ended"));
    }
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref());
    if account.unwrap_or("default") != claim.service_account {
        return Err(gone("has another service account"));
    }
    Ok(pod)
}

/// The PolicyServer whose evaluator the pod has.
pub(super) fn server(pod: &Pod) -> Option<String> {
    let labels = pod.metadata.labels.as_ref()?;
    labels
        .get(names::SERVER_LABEL)
        .filter(|name| !name.is_empty())
        .cloned()
}

/// Whether the pod is one of the server's own: made by its StatefulSet, which has the uid `set`,
/// in the control plane's namespace.
pub(super) fn is_member(claim: &Claim, pod: &Pod, set: Option<&str>, namespace: &str) -> bool {
    let Some(set) = set.filter(|uid| !uid.is_empty()) else {
        return false;
    };
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owned = owners.iter().any(|owner| {
        owner.controller == Some(true) && owner.kind == "StatefulSet" && owner.uid == set
    });
    claim.namespace == namespace && owned
}

/// The replica: a member, or a follower if `follows` is given (the namespaces that its
/// PolicyServer allows) and contains its namespace.
pub(super) fn place(
    claim: Claim,
    pod: &Pod,
    server: String,
    follows: Option<&[String]>,
    expires: Option<SystemTime>,
) -> Result<Replica, Error> {
    let follower = follows.is_some();
    if let Some(allowed) = follows {
        may_follow(&claim, &server, allowed)?;
    }
    Ok(Replica {
        namespace: claim.namespace,
        pod: claim.pod,
        uid: claim.uid,
        service_account: claim.service_account,
        server,
        follower,
        pod_ips: addresses(pod),
        expires,
    })
}

/// The addresses of a pod. `podIP` is the first one of `podIPs`.
fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let all = status.pod_ips.iter().flatten().map(|address| &address.ip);
    let mut all: Vec<IpAddr> = status
        .pod_ip
        .iter()
        .chain(all)
        .filter_map(|address| address.parse().ok())
        .collect();
    all.dedup();
    all
}

/// The refusal of a pod whose namespace is not allowed, or no longer.
pub(super) fn may_not_follow(namespace: &str, pod: &str, server: &str) -> Error {
    Error::Forbidden(format!(
        "pod {namespace}/{pod} does not belong to PolicyServer {server:?}, and its namespace is \
         not in the PolicyServer's spec.injection.allowedNamespaces"
    ))
}

fn may_follow(claim: &Claim, server: &str, allowed: &[String]) -> Result<(), Error> {
    if !allowed.contains(&claim.namespace) {
        return Err(may_not_follow(&claim.namespace, &claim.pod, server));
    }
    // With dots in the server's name a follower's id could be that of a member.
    let id = names::follower(&claim.pod, &claim.namespace);
    let ordinal = id
        .strip_prefix(&names::server(server))
        .and_then(|rest| rest.strip_prefix('-'));
    if ordinal.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())) {
        let why = format!("{id:?} is the name of a replica of PolicyServer {server:?}");
        return Err(Error::Forbidden(why));
    }
    Ok(())
}

/// The request for a review whether a user may do this.
pub(super) fn access(user: &User, verb: Verb, server: Option<&str>) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        resource_attributes: Some(ResourceAttributes {
            group: Some("policies.assent.dev".to_owned()),
            resource: Some("policyservers".to_owned()),
            subresource: Some("discovery".to_owned()),
            verb: Some(verb.as_str().to_owned()),
            name: server.map(str::to_owned),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// The result of that review.
pub(super) fn allowed(
    user: &User,
    verb: Verb,
    status: Option<SubjectAccessReviewStatus>,
) -> Result<(), Error> {
    let status = status.unwrap_or_default();
    if status.allowed && status.denied != Some(true) {
        return Ok(());
    }
    Err(Error::Forbidden(format!(
        "{:?} needs the verb {} on policyservers/discovery of policies.assent.dev",
        user.name,
        verb.as_str()
    )))
}
