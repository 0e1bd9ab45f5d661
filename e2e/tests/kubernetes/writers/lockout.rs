//! A policy that sees everything, fails closed, and has nobody who answers: the worst that a
//! user can do.

use assent_e2e::{
    eventually,
    kube::{ApiServer, Kubectl},
};
use assent_k8s::webhook::Writer;
use k8s_openapi::ByteString;

use super::*;

const NAMESPACE: &str = "assent-system";

/// Sees everything that an API server shows to anybody; no one listens.
async fn lock_out(kubectl: &Kubectl) {
    let spec = json!({
        "module": "registry://example.com/module:v1",
        "rules": [{
            "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"],
        }],
        "timeoutSeconds": 1,
    });
    let policy = policy(&PolicyKey::cluster("everything"), &spec);
    let endpoint = WebhookEndpoint::Url("https://127.0.0.1:1".to_owned());
    let desired = desired(&policy, 1, &endpoint, &defaults(kubectl).await);
    let writer = Writer::new(client(kubectl).await);
    writer.create(&desired).await.unwrap();
}

fn config_map(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
    })
}

/// `kubectl create`, as an administrator or as somebody else.
async fn create(kubectl: &Kubectl, more: &[&str], object: &Value) -> Result<String, String> {
    let file = std::env::temp_dir().join(format!("assent-lockout-{}.json", std::process::id()));
    std::fs::write(&file, object.to_string()).unwrap();
    let created = [&["create", "-f", file.to_str().unwrap()], more].concat();
    // kubectl insists that an object is of the namespace that it works in.
    let namespace = object["metadata"]["namespace"].as_str();
    let kubectl = kubectl.within(namespace.unwrap_or("default"));
    let created = kubectl.attempt(&created).await;
    std::fs::remove_file(&file).unwrap();
    created
}

fn certificate_signing_request() -> Value {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "lockout"},
        "spec": {
            "request": ByteString(request.into_bytes()),
            "signerName": "example.com/signer", "usages": ["client auth"],
        },
    })
}

/// Objects that must come through, whatever policies do.
fn exempt() -> Vec<Value> {
    let meta = json!({"name": "lockout", "namespace": "default"});
    let review =
        json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}});
    let subject = json!({"user": "jane", "resourceAttributes": review["resourceAttributes"]});
    let time = "2026-01-01T00:00:00.000000Z";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "core", "namespace": "default"},
        "involvedObject": {"namespace": "default"},
    });
    let new_event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": meta, "eventTime": time,
        "action": "a", "reason": "r", "type": "Normal",
        "reportingController": "example.com/c", "reportingInstance": "i",
        "regarding": {"namespace": "default"},
    });
    vec![
        config_map("kube-system", "lockout"),
        config_map("kube-node-lease", "lockout"),
        config_map(NAMESPACE, "lockout"),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lockout"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}),
        event,
        new_event,
        certificate_signing_request(),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": review}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": subject}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview", "metadata": {"namespace": "default"}, "spec": subject}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}}),
    ]
}

#[tokio::test]
async fn unanswered_policy_for_everything_does_not_lock_the_cluster_out() {
    // Its own: others would be locked out of a shared one.
    let server = ApiServer::start().await;
    let kubectl = server.kubectl.within(NAMESPACE);
    kubectl.run(&["create", "namespace", NAMESPACE]).await;
    let rights = "--clusterrole=cluster-admin";
    let account = format!("--serviceaccount={NAMESPACE}:assent");
    let bind = ["create", "clusterrolebinding", "assent", rights, &account];
    kubectl.run(&bind).await;
    lock_out(&kubectl).await;

    // API servers learn of webhooks by a watch.
    eventually("the policy is in force", async || {
        let dry = create(&kubectl, &["--dry-run=server"], &config_map("default", "a")).await;
        dry.is_err_and(|error| error.contains("cluster.everything.policies.assent.dev"))
    })
    .await;
    for object in exempt() {
        let created = create(&kubectl, &["--validate=false"], &object).await;
        assert!(created.is_ok(), "{object}: {created:?}");
    }
    let us = format!("--as=system:serviceaccount:{NAMESPACE}:assent");
    let created = create(&kubectl, &[&us], &config_map("default", "ours")).await;
    assert!(created.is_ok(), "{created:?}");
    // And it still is in force.
    let refused = create(&kubectl, &[], &config_map("default", "theirs")).await;
    assert!(refused.is_err(), "{refused:?}");
}
