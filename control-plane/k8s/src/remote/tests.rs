use k8s_openapi::api::coordination::v1::LeaseSpec;
use kube::core::{ObjectMeta, Status};

use super::*;

fn mk_lease(holder: Option<&str>, address: Option<&str>) -> Lease {
    let annotation = |a: &str| (names::LEADER_ADDRESS_ANNOTATION.to_owned(), a.to_owned());
    Lease {
        metadata: ObjectMeta {
            annotations: address.map(|a| [annotation(a)].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            ..LeaseSpec::default()
        }),
    }
}

#[test]
fn lease_names_the_leader_and_its_port() {
    let expect = |pod: &str, port| {
        let pod = pod.to_owned();
        Some(Leader { pod, port })
    };
    for (address, port) in [
        (Some("10.0.0.7:15011"), 15_011),
        (Some("[fd00::7]:15012"), 15_012),
        (Some("nonsense"), 15_010),
        (None, 15_010),
    ] {
        let lease = mk_lease(Some("assent-0"), address);
        assert_eq!(leader(&lease), expect("assent-0", port), "{address:?}");
    }
    assert_eq!(leader(&mk_lease(Some(""), None)), None);
    assert_eq!(leader(&mk_lease(None, None)), None);
    assert_eq!(leader(&Lease::default()), None);
}

#[track_caller]
fn check(step: Step, code: u16, expect: &[&str]) {
    let status = Status {
        code,
        ..Status::default()
    };
    let error = kube::Error::Api(Box::new(status));
    let shown = Error::of(step, "assent-system", error).to_string();
    for part in expect {
        assert!(shown.contains(part), "{part:?} is not in: {shown}");
    }
}

#[test]
fn refused_step_names_the_missing_right_and_the_role() {
    let role = "--role=assent-connect";
    check(Step::Lease, 403, &["get the Lease", "assent-system", role]);
    check(Step::Ca, 403, &["get the ConfigMap assent-ca", role]);
    check(Step::Token, 403, &["ServiceAccount assent-viewer", role]);
    check(Step::Forward, 403, &["forward ports of pods", role]);
    check(Step::RollBack, 403, &["patch the policy"]);
}

#[test]
fn missing_installation_suggests_another_namespace() {
    check(Step::Lease, 404, &["--assent-namespace"]);
    check(Step::Forward, 404, &["try again"]);
    check(Step::Lease, 500, &["find the leader"]);
}
