#![allow(clippy::unwrap_used)]

use std::time::Duration;

use k8s_openapi::{
    api::{
        authentication::v1::UserInfo,
        core::v1::{PodIP, PodSpec, PodStatus},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::*;

const NAMESPACE: &str = "assent-system";

/// A review of a pod of the server `default`, and what the cluster holds: all in order.
struct Case {
    status: TokenReviewStatus,
    pod: Option<Pod>,
    /// Uid of the server's StatefulSet.
    set: Option<String>,
    /// Namespaces that the server allows.
    allowed: Option<Vec<String>>,
}

impl Case {
    fn member() -> Self {
        Self {
            status: mk_status(
                NAMESPACE,
                "policy-server-default",
                "policy-server-default-0",
            ),
            pod: Some(mk_pod("policy-server-default", Some("set-1"))),
            set: Some("set-1".to_owned()),
            allowed: Some(mk_allowed(&["team-a"])),
        }
    }

    fn follower() -> Self {
        Self {
            status: mk_status("team-a", "default", "app"),
            pod: Some(mk_pod("default", None)),
            ..Self::member()
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Everything that `identify` decides, in its order.
    fn decide(self) -> Result<Option<Replica>, Error> {
        let user = user(Some(self.status), None, SystemTime::now())?;
        let Some(claim) = claim(&user)? else {
            return Ok(None);
        };
        let pod = alive(&claim, self.pod)?;
        let Some(server) = server(&pod) else {
            return Ok(None);
        };
        let member = is_member(&claim, &pod, self.set.as_deref(), NAMESPACE);
        let allowed = self.allowed.unwrap_or_default();
        let follows = (!member).then_some(allowed.as_slice());
        place(claim, &pod, server, follows, None).map(Some)
    }

    #[track_caller]
    fn refused(self, expect: &str) {
        let error = self.decide().unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }

    fn user_mut(&mut self) -> &mut UserInfo {
        self.status.user.as_mut().unwrap()
    }

    fn pod_mut(&mut self) -> &mut Pod {
        self.pod.as_mut().unwrap()
    }
}

fn mk_status(namespace: &str, account: &str, pod: &str) -> TokenReviewStatus {
    let one = |text: &str| vec![text.to_owned()];
    let extra = [
        (POD_NAME.to_owned(), one(pod)),
        (POD_UID.to_owned(), one("uid-1")),
    ];
    TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(one(names::TOKEN_AUDIENCE)),
        user: Some(UserInfo {
            username: Some(format!("system:serviceaccount:{namespace}:{account}")),
            groups: Some(one(SERVICE_ACCOUNTS)),
            extra: Some(extra.into()),
            ..UserInfo::default()
        }),
        ..TokenReviewStatus::default()
    }
}

fn mk_pod(account: &str, set: Option<&str>) -> Pod {
    let label = (names::SERVER_LABEL.to_owned(), "default".to_owned());
    let owner = |uid: &str| OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "StatefulSet".to_owned(),
        name: "policy-server-default".to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    Pod {
        metadata: ObjectMeta {
            uid: Some("uid-1".to_owned()),
            labels: Some([label].into()),
            owner_references: set.map(|uid| vec![owner(uid)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            service_account_name: Some(account.to_owned()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            pod_ip: Some("10.244.1.7".to_owned()),
            pod_ips: Some(["10.244.1.7", "fd00::7"].map(mk_address).into()),
            ..PodStatus::default()
        }),
    }
}

fn mk_address(ip: &str) -> PodIP {
    PodIP { ip: ip.to_owned() }
}

fn mk_allowed(namespaces: &[&str]) -> Vec<String> {
    namespaces.iter().map(ToString::to_string).collect()
}

#[test]
fn pod_of_the_servers_stateful_set_is_a_member() {
    let replica = Case::member().decide().unwrap().unwrap();
    let expect = Replica {
        namespace: NAMESPACE.to_owned(),
        pod: "policy-server-default-0".to_owned(),
        uid: "uid-1".to_owned(),
        service_account: "policy-server-default".to_owned(),
        server: "default".to_owned(),
        follower: false,
        pod_ips: vec!["10.244.1.7".parse().unwrap(), "fd00::7".parse().unwrap()],
        expires: None,
    };
    assert_eq!(replica, expect);
    assert_eq!(replica.replica_id(), "policy-server-default-0");
    // Also while it terminates, and while its PolicyServer does.
    let replica = Case::member().with(|case| case.allowed = None).decide();
    assert!(!replica.unwrap().unwrap().follower);
}

#[test]
fn pod_without_address_has_none() {
    let without = |case: &mut Case| case.pod_mut().status = None;
    let replica = Case::member().with(without).decide().unwrap().unwrap();
    assert!(replica.pod_ips.is_empty());
}

#[test]
fn pod_of_an_allowed_namespace_is_a_follower() {
    let replica = Case::follower().decide().unwrap().unwrap();
    assert!(replica.follower);
    assert_eq!(replica.replica_id(), "app.team-a");
}

#[test]
fn tokens_for_other_audiences_are_refused() {
    let refused = |change: fn(&mut TokenReviewStatus), expect: &str| {
        Case::member()
            .with(|case| change(&mut case.status))
            .refused(expect);
    };
    refused(
        |status| status.authenticated = Some(false),
        "does not accept",
    );
    refused(|status| status.authenticated = None, "does not accept");
    refused(|status| status.audiences = None, "audience");
    refused(|status| status.audiences = Some(Vec::new()), "audience");
    refused(
        |status| status.audiences = Some(vec!["https://kubernetes.default.svc".into()]),
        "audience",
    );
    let expired = |status: &mut TokenReviewStatus| {
        status.authenticated = Some(false);
        status.error = Some("token has expired".to_owned());
    };
    refused(expired, "token has expired");
    let error = user(None, None, SystemTime::now()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn tokens_of_gone_pods_are_refused() {
    Case::member()
        .with(|case| case.pod = None)
        .refused("is gone");
    let other = |case: &mut Case| case.pod_mut().metadata.uid = Some("uid-2".to_owned());
    Case::member().with(other).refused("replaced");
    Case::member()
        .with(|case| case.pod_mut().metadata.uid = None)
        .refused("replaced");
    for phase in ["Succeeded", "Failed"] {
        let ended = |case: &mut Case| {
            case.pod_mut().status.as_mut().unwrap().phase = Some(phase.to_owned());
        };
        Case::member().with(ended).refused("ended");
    }
    // A pod that terminates serves on until it is gone.
    let terminates = |case: &mut Case| {
        case.pod_mut().metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now()),
        );
    };
    assert!(Case::member().with(terminates).decide().is_ok());
}

#[test]
fn incomplete_pod_claim_is_refused() {
    for key in [POD_NAME, POD_UID] {
        let without = |case: &mut Case| {
            case.user_mut().extra.as_mut().unwrap().remove(key);
        };
        Case::member().with(without).refused("half a pod");
        let twice = |case: &mut Case| {
            let extra = case.user_mut().extra.as_mut().unwrap();
            extra.get_mut(key).unwrap().push("another".to_owned());
        };
        Case::member().with(twice).refused("half a pod");
    }
}

#[test]
fn other_namespaces_and_service_accounts_are_refused() {
    Case::member()
        .with(|case| {
            case.status = mk_status("team-b", "policy-server-default", "policy-server-default-0")
        })
        .refused("allowedNamespaces");
    Case::follower()
        .with(|case| case.status = mk_status("team-b", "default", "app"))
        .refused("allowedNamespaces");
    Case::follower()
        .with(|case| case.status = mk_status("team-a", "other", "app"))
        .refused("another service account");
    Case::follower()
        .with(|case| case.allowed = Some(mk_allowed(&[])))
        .refused("allowedNamespaces");
    Case::follower()
        .with(|case| case.allowed = None)
        .refused("allowedNamespaces");
}

#[test]
fn pod_without_the_right_owner_is_no_member() {
    let refused = |change: fn(&mut Case)| Case::member().with(change).refused("allowedNamespaces");
    fn owner(case: &mut Case) -> &mut OwnerReference {
        &mut case.pod_mut().metadata.owner_references.as_mut().unwrap()[0]
    }
    // Of another server's set, of none, of one that was deleted and made again.
    refused(|case| case.set = Some("set-2".to_owned()));
    refused(|case| case.set = None);
    refused(|case| case.set = Some(String::new()));
    refused(|case| owner(case).uid = String::new());
    refused(|case| owner(case).controller = Some(false));
    refused(|case| owner(case).controller = None);
    refused(|case| owner(case).kind = "ReplicaSet".to_owned());
    refused(|case| case.pod_mut().metadata.owner_references = None);
}

#[test]
fn label_decides_which_server_a_pod_belongs_to() {
    let relabel = |case: &mut Case| {
        let labels = case.pod_mut().metadata.labels.as_mut().unwrap();
        labels.insert(names::SERVER_LABEL.to_owned(), "other".to_owned());
    };
    // The set and the server that are looked up are those of the label.
    let other = Case::member().with(relabel).with(|case| {
        case.set = Some("set-of-other".to_owned());
        case.allowed = Some(mk_allowed(&[]));
    });
    other.refused("PolicyServer \"other\"");
}

#[test]
fn follower_cannot_take_the_name_of_a_member() {
    let dotted = |case: &mut Case| {
        case.status = mk_status("b-0", "default", "policy-server-a");
        let labels = case.pod_mut().metadata.labels.as_mut().unwrap();
        labels.insert(names::SERVER_LABEL.to_owned(), "a.b".to_owned());
        case.allowed = Some(mk_allowed(&["b-0"]));
    };
    Case::follower()
        .with(dotted)
        .refused("is the name of a replica");
}

#[test]
fn callers_without_pod_are_users() {
    let bare = |case: &mut Case| case.user_mut().extra = None;
    assert_eq!(Case::member().with(bare).decide(), Ok(None));
    let person = |case: &mut Case| case.user_mut().username = Some("ann".to_owned());
    assert_eq!(Case::member().with(person).decide(), Ok(None));
    // Who is not in the group of service accounts only has a name like one.
    let posing = |case: &mut Case| case.user_mut().groups = None;
    assert_eq!(Case::member().with(posing).decide(), Ok(None));
    let unlabelled = |case: &mut Case| case.pod_mut().metadata.labels = None;
    assert_eq!(Case::member().with(unlabelled).decide(), Ok(None));
}

#[test]
fn clock_ahead_does_not_expire_an_accepted_token() {
    let now = SystemTime::now();
    let hour = Duration::from_secs(3_600);
    let status = || Some(mk_status(NAMESPACE, "a", "b"));
    assert_eq!(
        user(status(), Some(now + hour), now).unwrap().expires,
        Some(now + hour)
    );
    assert_eq!(user(status(), Some(now - hour), now).unwrap().expires, None);
}

#[test]
fn access_review_carries_the_whole_user() {
    let user = user(
        Some(mk_status("team-a", "reader", "app")),
        None,
        SystemTime::now(),
    )
    .unwrap();
    let spec = access(&user, Verb::Update, Some("default"));
    assert_eq!(
        spec.user.as_deref(),
        Some("system:serviceaccount:team-a:reader")
    );
    assert_eq!(
        spec.groups.as_deref(),
        Some(&[SERVICE_ACCOUNTS.to_owned()][..])
    );
    assert!(spec.extra.unwrap().contains_key(POD_NAME));
    let resource = spec.resource_attributes.unwrap();
    let words = [
        resource.verb,
        resource.group,
        resource.resource,
        resource.subresource,
        resource.name,
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    assert_eq!(
        words.join(" "),
        "update policies.assent.dev policyservers discovery default"
    );
    let answer = |allowed, denied| SubjectAccessReviewStatus {
        allowed,
        denied,
        ..SubjectAccessReviewStatus::default()
    };
    assert_eq!(allowed(&user, Verb::Get, Some(answer(true, None))), Ok(()));
    for status in [
        Some(answer(false, None)),
        Some(answer(true, Some(true))),
        None,
    ] {
        let error = allowed(&user, Verb::Get, status).unwrap_err();
        assert!(matches!(error, Error::Forbidden(_)), "{error}");
    }
}
