//! Where modules come from: registries with certificates and passwords of their own, and
//! modules that must be signed.

use assent_e2e::{
    kube::{
        Harness,
        harness::{chart_with, condition, no_privileged},
    },
    registry::{PASSWORD, USER},
    tls::write_certificates,
};
use rcgen::KeyPair;
use serde_json::{Value, json};

/// A PolicyServer, and a policy of the same name that it runs.
async fn apply(harness: &Harness, name: &str, module: &str, mut server: Value) {
    server["replicas"] = 1.into();
    let server = json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": name}, "spec": server,
    });
    harness.eventually_apply(&server).await;
    let mut policy = no_privileged(name, module, &[]);
    policy["spec"]["policyServer"] = name.into();
    harness.eventually_apply(&policy).await;
}

/// Waits until `Accepted` of the newest generation has this reason; returns its message.
async fn accepted_message(harness: &Harness, name: &str, reason: &str) -> String {
    accepted_message_with(harness, name, reason, "").await
}

/// As [`accepted_message`], with a part of the message: an earlier one may have the same reason.
async fn accepted_message_with(harness: &Harness, name: &str, reason: &str, part: &str) -> String {
    let is = |object: &Value| {
        let accepted = condition(object, "Accepted");
        let message = accepted["message"].as_str().unwrap_or_default();
        accepted["reason"] == reason
            && message.contains(part)
            && accepted["observedGeneration"] == object["metadata"]["generation"]
    };
    let object = harness.kubectl.wait(&["cap", name], reason, is).await;
    let message = &condition(&object, "Accepted")["message"];
    message.as_str().unwrap_or_default().to_owned()
}

async fn pull_secret(harness: &Harness, name: &str, host: &str, password: &str) {
    let args = [
        "create".to_owned(),
        "secret".to_owned(),
        "docker-registry".to_owned(),
        name.to_owned(),
        format!("--docker-server={host}"),
        format!("--docker-username={USER}"),
        format!("--docker-password={password}"),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    harness.system.run(&args).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registries_may_have_their_own_ca_and_credentials() {
    let harness = Harness::start(0).await;
    harness
        .registry
        .push_example("np:v1", "no-privileged")
        .await;
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    let ca = std::fs::read_to_string(dir.path().join("ca.pem")).unwrap();
    let open = harness.registry.front(dir.path(), false).await;
    let closed = harness.registry.front(dir.path(), true).await;
    let (open_host, closed_host) = (open.address.to_string(), closed.address.to_string());
    let inline = |host: &str| json!({"secure": [{"name": host, "certificate": ca}]});

    // By the certificate itself, and by a ConfigMap that comes later.
    let module = open.url("np:v1");
    apply(
        &harness,
        "inline",
        &module,
        json!({"sources": inline(&open_host)}),
    )
    .await;
    let from = json!({"configMapKeyRef": {"name": "authorities", "key": "ca.crt"}});
    let sources = json!({"secure": [{"name": open_host, "certificateFrom": from}]});
    apply(&harness, "map", &module, json!({"sources": sources})).await;
    accepted_message(&harness, "inline", "Accepted").await;
    let said = accepted_message(&harness, "map", "PullError").await;
    assert!(said.contains("there is no ConfigMap authorities"), "{said}");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "authorities"}, "data": {"ca.crt": ca},
    });
    harness.system.apply(&map.to_string()).await;
    accepted_message(&harness, "map", "Accepted").await;

    // Another authority than the one that signed.
    let other = tempfile::tempdir().unwrap();
    write_certificates(other.path());
    let other = std::fs::read_to_string(other.path().join("ca.pem")).unwrap();
    let sources = json!({"secure": [{"name": open_host, "certificate": other}]});
    apply(&harness, "untrusted", &module, json!({"sources": sources})).await;
    let said = accepted_message(&harness, "untrusted", "PullError").await;
    assert!(said.contains("certificate"), "{said}");
    let right = json!({"sources": inline(&open_host)});
    apply(&harness, "untrusted", &module, right).await;
    accepted_message(&harness, "untrusted", "Accepted").await;

    // A password: none, a wrong one, the right one.
    let module = closed.url("np:v1");
    apply(
        &harness,
        "private",
        &module,
        json!({"sources": inline(&closed_host)}),
    )
    .await;
    let said = accepted_message(&harness, "private", "PullError").await;
    assert!(
        said.contains("imagePullSecret"),
        "it must say what to do: {said}"
    );
    pull_secret(&harness, "wrong", &closed_host, "passw0rt").await;
    pull_secret(&harness, "right", &closed_host, PASSWORD).await;
    let with = |secret: &str| json!({"sources": inline(&closed_host), "imagePullSecret": secret});

    // The control plane reads no Secret that its operator did not name.
    apply(&harness, "private", &module, with("right")).await;
    accepted_message_with(&harness, "private", "PullError", "registrySecrets").await;
    let named = chart_with(&["rbac.yaml"], &["registrySecrets={right,wrong}"]);
    harness.system.apply(&named).await;
    apply(&harness, "denied", &module, with("wrong")).await;
    let said = accepted_message(&harness, "denied", "PullError").await;
    assert!(!said.contains("passw0rt"), "{said}");
    // An edit of the PolicyServer reconsiders its policies at once.
    let mut right = with("right");
    right["labels"] = json!({"team": "a"});
    apply(&harness, "private", &module, right).await;
    accepted_message(&harness, "private", "Accepted").await;
    let log = harness.planes[0].log();
    assert!(!log.contains("passw0rt") && !log.contains(PASSWORD));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_may_require_signed_modules() {
    let harness = Harness::start(0).await;
    let (ours, theirs) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let registry = &harness.registry;
    let mut modules = Vec::new();
    for image in ["signed:v1", "unsigned:v1", "other:v1"] {
        modules.push(registry.push_example(image, "no-privileged").await);
    }
    registry.sign("signed:v1", &ours).await;
    registry.sign("other:v1", &theirs).await;
    let server = json!({
        "sources": {"insecure": [registry.address.to_string()]},
        "verification": {"publicKeys": [ours.public_key_pem()]},
    });
    for (name, module) in ["signed", "unsigned", "other"].iter().zip(&modules) {
        apply(&harness, name, module, server.clone()).await;
    }
    accepted_message(&harness, "signed", "Accepted").await;
    accepted_message(&harness, "unsigned", "SignatureRejected").await;
    accepted_message(&harness, "other", "SignatureRejected").await;

    // Signed after all: healed by another try, or by the next edit.
    registry.sign("unsigned:v1", &ours).await;
    let exempt = json!({"spec": {"settings": {"exemptImages": ["a:*"]}}});
    harness.kubectl.patch(&["cap", "unsigned"], &exempt).await;
    accepted_message(&harness, "unsigned", "Accepted").await;
}
