#![allow(clippy::unwrap_used)]
use k8s_openapi::ByteString;
use kube::core::Status;
use serde_json::{Value, json};

use super::*;

const NS: &str = "assent-system";

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn mk_pod(ready: &str, image: &str) -> Pod {
    from(json!({
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "control-plane", "image": image}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
}

fn mk_server(status: &str) -> PolicyServer {
    from(json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "default"},
        "spec": {"replicas": 3},
        "status": {"replicas": 3, "readyReplicas": 2, "conditions": [mk_condition("Ready", status, 1)]},
    }))
}

fn mk_policy(status: &str, observed: i64) -> ClusterAdmissionPolicy {
    from(json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": "np", "generation": 2},
        "spec": {"module": "registry://example.com/np:v1", "rules": []},
        "status": {"conditions": [mk_condition("Enforced", status, observed)]},
    }))
}

fn mk_condition(kind: &str, status: &str, observed: i64) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Because", "message": "of this",
        "observedGeneration": observed, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

#[track_caller]
fn check(findings: &[Finding], expect: &[Verdict]) {
    let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, expect, "{findings:#?}");
    for finding in findings {
        let acts = matches!(finding.verdict, Verdict::Problem | Verdict::Warning);
        assert_eq!(acts, !finding.remedy.is_empty(), "{finding:?}");
    }
}

#[test]
fn control_plane_needs_ready_pods_of_one_image() {
    use Verdict::*;
    let (good, bad) = (mk_pod("True", "cp:1"), mk_pod("False", "cp:1"));
    check(&objects::pods(&[], NS), &[Problem]);
    check(&objects::pods(&[good.clone(), good.clone()], NS), &[Good]);
    check(&objects::pods(std::slice::from_ref(&good), NS), &[Warning]);
    check(&objects::pods(&[good.clone(), bad.clone()], NS), &[Warning]);
    check(&objects::pods(&[bad], NS), &[Problem]);
    let mixed = [good, mk_pod("True", "cp:2")];
    check(&objects::pods(&mixed, NS), &[Good, Warning]);
}

#[test]
fn lease_must_be_held_and_renewed() {
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let mk = |holder: &str, renewed: &str| -> Lease {
        from(json!({"metadata": {}, "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed,
        }}))
    };
    let verdict = |lease: Option<&Lease>| objects::lease(lease, NS, now).verdict;
    assert_eq!(verdict(None), Verdict::Problem);
    let fresh = mk("a", "2026-01-01T00:00:50.000000Z");
    assert_eq!(verdict(Some(&fresh)), Verdict::Good);
    let stale = mk("a", "2026-01-01T00:00:20.000000Z");
    assert_eq!(verdict(Some(&stale)), Verdict::Problem);
    let released = mk("", "2026-01-01T00:00:50.000000Z");
    assert_eq!(verdict(Some(&released)), Verdict::Problem);
}

#[test]
fn expired_and_expiring_authorities_are_reported() {
    let month = std::time::Duration::from_secs(30 * 86_400);
    let pair = assent_pki::generate_ca(std::time::SystemTime::now(), month).unwrap();
    let bundle = pair.certificate.as_str();
    let at = |days: i64| {
        let seconds = Timestamp::now().as_second() + days * 86_400;
        Timestamp::from_second(seconds).unwrap()
    };
    check(&objects::authority(Some(bundle), at(0)), &[Verdict::Good]);
    check(
        &objects::authority(Some(bundle), at(25)),
        &[Verdict::Warning],
    );
    check(
        &objects::authority(Some(bundle), at(31)),
        &[Verdict::Problem],
    );
    for bad in [
        None,
        Some(""),
        Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ] {
        check(&objects::authority(bad, at(0)), &[Verdict::Problem]);
    }
}

fn mk_hooks(name: &str, service: &str, bundle: &str) -> ValidatingWebhookConfiguration {
    let mut hooks: ValidatingWebhookConfiguration = from(json!({
        "metadata": {"name": name},
        "webhooks": [{
            "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": service, "namespace": NS}},
        }],
    }));
    let config = &mut hooks.webhooks.as_mut().unwrap()[0].client_config;
    config.ca_bundle = Some(ByteString(bundle.as_bytes().to_vec()));
    hooks
}

#[test]
fn webhooks_must_exist_and_trust_the_authority() {
    use Verdict::*;
    let mk = |bundle: &str| {
        ["assent", "assent-defaults", "assent-injector"]
            .map(|name| mk_hooks(name, "assent-webhook", bundle))
    };
    let good = mk("CA\n");
    check(&webhooks::Seen::new(&good, &[]).check(Some("CA")), &[Good]);
    check(
        &webhooks::Seen::new(&good[1..], &[]).check(Some("CA")),
        &[Problem],
    );
    let mut other = mk("CA");
    other[2] = mk_hooks("assent-injector", "assent-webhook", "other");
    check(
        &webhooks::Seen::new(&other, &[]).check(Some("CA")),
        &[Problem],
    );
}

#[test]
fn services_of_webhooks_need_ready_pods() {
    let hooks = [
        mk_hooks("assent", "assent-webhook", "CA"),
        mk_hooks("assent.np", "policy-server-default", "CA"),
    ];
    let slices: Vec<EndpointSlice> = from(json!([
        {"metadata": {"labels": {"kubernetes.io/service-name": "assent-webhook"}}, "addressType": "IPv4",
         "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]},
        {"metadata": {"labels": {"kubernetes.io/service-name": "policy-server-default"}}, "addressType": "IPv4",
         "endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": false}}]},
    ]));
    let seen = webhooks::Seen::new(&hooks, &[]);
    check(
        &seen.check_endpoints(&slices, NS),
        &[Verdict::Good, Verdict::Problem],
    );
}

#[test]
fn servers_and_policies_report_their_conditions() {
    use Verdict::*;
    check(&objects::servers(&[]), &[Warning]);
    check(&objects::servers(&[mk_server("True")]), &[Good]);
    let bad = objects::servers(&[mk_server("False")]);
    check(&bad, &[Problem]);
    assert!(
        bad[0].text.contains("2 of 3") && bad[0].text.contains("of this"),
        "{bad:?}"
    );
    let policies = |policy: &ClusterAdmissionPolicy| objects::policies(&[policy.into()]);
    check(&policies(&mk_policy("True", 2)), &[Good]);
    check(&policies(&mk_policy("True", 1)), &[Good, Warning]);
    check(&policies(&mk_policy("False", 2)), &[Good, Warning]);
}

#[test]
fn only_a_failed_call_proves_that_webhooks_are_unreachable() {
    let of = |code: u16, message: &str| {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        probe::outcome(Err(kube::Error::Api(Box::new(status)))).verdict
    };
    assert_eq!(probe::outcome(Ok(())).verdict, Verdict::Good);
    let failed = "Internal error occurred: failed calling webhook \"validate.policies.assent.dev\"";
    assert_eq!(of(500, failed), Verdict::Problem);
    let denied = "admission webhook \"validate.policies.assent.dev\" denied the request: no";
    assert_eq!(of(403, denied), Verdict::Good);
    assert_eq!(of(403, "user cannot create resource"), Verdict::Unknown);
}
