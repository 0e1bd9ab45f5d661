//! Settings that come from Secrets, at a real API server: who may use them, how they change, and
//! that no value is seen anywhere.

use std::{fs, process::Command};

use assent_e2e::{
    evaluator::kept_set,
    eventually,
    kube::{
        AUDIENCE, Harness, Kubectl,
        harness::{NAMESPACE, condition, no_privileged},
    },
    module,
    tools::tool,
};
use serde_json::{Value, json};

/// What must be seen nowhere but in the Secret: an image that is exempt, and the next one.
const FIRST: &str = "example.com/hunter2:1";
const SECOND: &str = "busybox:1";

/// A policy that takes its exempt images from the Secret `exempt`.
fn policy(name: &str, module: &str) -> Value {
    let mut policy = no_privileged(name, module, &[]);
    policy["spec"]["settings"] = json!({});
    let reference = json!({"name": "exempt", "key": "images.yaml"});
    policy["spec"]["settingsFrom"] = json!([{"secretKeyRef": reference}]);
    policy
}

async fn secret(kubectl: &Kubectl, images: &[&str]) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "exempt"},
        "stringData": {"images.yaml": json!({"exemptImages": images}).to_string()},
    });
    kubectl.apply(&secret.to_string()).await;
}

/// Lets a service account read the Secret.
async fn grant(kubectl: &Kubectl, role: &str, account: &str) {
    let rule = ["--verb=get", "--resource=secrets", "--resource-name=exempt"];
    kubectl
        .run(&[&["create", "role", role], &rule[..]].concat())
        .await;
    let (role_flag, account) = (
        format!("--role={role}"),
        format!("--serviceaccount={account}"),
    );
    kubectl
        .run(&["create", "rolebinding", role, &role_flag, &account])
        .await;
}

async fn reason(harness: &Harness, name: &str, kind: &str, reason: &str) -> Value {
    let is = |object: &Value| {
        let found = condition(object, kind);
        found["reason"] == reason && found["observedGeneration"] == object["metadata"]["generation"]
    };
    harness.kubectl.wait(&["cap", name], reason, is).await
}

/// Everything that others than administrators may see: objects, logs, and the discovery state.
async fn visible(harness: &Harness) -> String {
    let mut all = String::new();
    let kinds = "cap,ap,policyservers,policyrevisions,events,configmaps,pods,statefulsets,services,\
                 validatingwebhookconfigurations,mutatingwebhookconfigurations,leases";
    all += &harness
        .kubectl
        .run(&["get", kinds, "-A", "-o", "yaml", "--show-managed-fields"])
        .await;
    for plane in &harness.planes {
        all += &plane.log();
        all += &plane.metrics().await.unwrap_or_default();
    }
    for evaluator in &harness.evaluators {
        all += &evaluator.log();
        let set = fs::read(kept_set(&evaluator.state())).unwrap_or_default();
        all += &String::from_utf8_lossy(&set);
    }
    all += &discovery(harness).await;
    all
}

/// What somebody sees who may read the discovery state.
async fn discovery(harness: &Harness) -> String {
    let token = harness
        .kubectl
        .run(&["create", "token", "reader", "--audience", AUDIENCE])
        .await;
    let ca = harness.ca().await;
    let address = harness.entry.address().to_string();
    let mut all = String::new();
    for method in [
        "PolicyDiscoveryService/FetchPolicies",
        "ClientStatusService/FetchClientStatus",
    ] {
        let output = Command::new(tool("ASSENT_GRPCURL"))
            .arg("-cacert")
            .arg(&ca)
            .args(["-H", &format!("authorization: Bearer {}", token.trim())])
            .arg(&address)
            .arg(format!("assent.discovery.v1.{method}"))
            .output()
            .expect("grpcurl must start");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{method}: {text} {output:?}");
        all += &text;
    }
    assert!(all.contains("settingsWithheld"), "{all}");
    all
}

/// The values, and the same as Secrets and byte fields of JSON have them.
#[track_caller]
fn assert_unseen(visible: &str) {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let settings = json!({"exemptImages": [FIRST]}).to_string();
    let encoded = BASE64_STANDARD.encode(settings);
    for secret in ["hunter2", &encoded[..24]] {
        let at = visible.find(secret);
        let around = at.map(|at| &visible[at.saturating_sub(300)..visible.len().min(at + 100)]);
        assert_eq!(around, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_secrets_reach_evaluators_and_nobody_else() {
    let mut harness = Harness::start(1).await;
    let registry = &harness.registry;
    let module = registry.push_example("np:v1", "no-privileged").await;
    let quoting = registry.push("quoting:v1", &module::quoting()).await;
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", "reader"]).await;
    let rule = [
        "--verb=get",
        "--resource=policyservers.policies.assent.dev/discovery",
    ];
    kubectl
        .run(&[&["create", "clusterrole", "reader"], &rule[..]].concat())
        .await;
    let bind = [
        "create",
        "clusterrolebinding",
        "reader",
        "--clusterrole=reader",
    ];
    kubectl
        .run(&[&bind[..], &["--serviceaccount=default:reader"]].concat())
        .await;

    // The Secret does not exist, then may not be read, then may be.
    harness.eventually_apply(&policy("np", &module)).await;
    let object = reason(&harness, "np", "Accepted", "SettingsUnavailable").await;
    let message = condition(&object, "Accepted")["message"].to_string();
    assert!(message.contains("no permission to read it"), "{message}");
    grant(&harness.system, "exempt", &format!("{NAMESPACE}:assent")).await;
    let is = |object: &Value| {
        let message = condition(object, "Accepted")["message"].to_string();
        message.contains("there is no such Secret")
    };
    harness.kubectl.wait(&["cap", "np"], "no Secret", is).await;
    secret(&harness.system, &[FIRST]).await;
    harness.enforced("np").await;
    assert!(harness.try_pod("bad", true).await.is_err());

    // A module that tells everybody what it gets.
    let mut talkative = policy("talkative", &quoting);
    talkative["spec"]["mode"] = "monitor".into();
    harness.eventually_apply(&talkative).await;
    let object = reason(&harness, "talkative", "Accepted", "SettingsUnavailable").await;
    let message = condition(&object, "Accepted")["message"].to_string();
    assert!(message.contains("withheld"), "{message}");
    assert_unseen(&visible(&harness).await);

    // The Secret changes: the policy does too, without an edit.
    secret(&harness.system, &[FIRST, SECOND]).await;
    eventually("the new value is enforced", async || {
        harness.try_pod("exempt", true).await.is_ok()
    })
    .await;
    let object = harness.enforced("np").await;
    assert_eq!(object["metadata"]["generation"], 2);
    assert!(object["spec"]["settingsVersion"].is_string());

    // The Secret is gone: what is enforced stays, also with the next control plane.
    let delete = ["delete", "secret", "exempt"];
    harness.system.run(&delete).await;
    reason(&harness, "np", "Enforced", "SettingsUnavailable").await;
    harness.replace_plane(&[]).await;
    harness.planes[0].wait_leading().await;
    // The evaluator did not write the settings to its disk, and gets them again.
    harness.evaluators[0].restart().await;
    harness.evaluators[0].wait_ready().await;
    assert!(harness.try_pod("exempt", true).await.is_ok());
    assert_unseen(&visible(&harness).await);
    harness
        .system
        .run(&["get", "secret", "assent-settings-key"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn author_of_a_policy_must_be_allowed_to_read_its_secrets() {
    let mut harness = Harness::empty().await;
    harness.add_plane("a", &[]).await;
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", "author"]).await;
    let verbs = "--verb=get,create,update,patch";
    let resource = "--resource=admissionpolicies.policies.assent.dev";
    kubectl
        .run(&["create", "role", "author", verbs, resource])
        .await;
    let bind = ["create", "rolebinding", "author", "--role=author"];
    kubectl
        .run(&[&bind[..], &["--serviceaccount=default:author"]].concat())
        .await;
    let dir = tempfile::tempdir().unwrap();
    let author = kubectl.service_account("author", dir.path()).await;
    let mk = |module: &str| {
        let mut policy = policy("np", module);
        policy["kind"] = "AdmissionPolicy".into();
        policy["metadata"]["namespace"] = "default".into();
        policy.to_string()
    };
    let mine = mk("registry://example.com/a:1");
    let why = "needs the permission to get secrets \"exempt\" in the namespace \"default\"";
    eventually("refused", async || {
        let answer = author.try_dry_run(&mine).await;
        answer.is_err_and(|message| message.contains(why))
    })
    .await;
    // Somebody else wrote it: another module would be as good as the Secret itself.
    kubectl.apply(&mine).await;
    let other = mk("registry://example.com/evil:1");
    let refused = author.try_apply(&other).await.unwrap_err();
    assert!(refused.contains(why), "{refused}");
    grant(kubectl, "exempt", "default:author").await;
    eventually("taken", async || author.try_apply(&other).await.is_ok()).await;
}
