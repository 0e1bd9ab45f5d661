//! Ten thousand objects that change while policies read them.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use assent_context::{Collection, CollectionSpec};
use assent_core::policy::ContextResource;
use assent_e2e::{
    eventually,
    kube::{AUDIENCE, Harness, harness::no_privileged},
    module,
    process::program,
};
use futures::{StreamExt as _, stream};
use kube::Client;
use serde_json::{Value, json};

use crate::api;

const OBJECTS: usize = 10_000;

/// Requests at a time: what an API server takes from one client without queueing.
const AT_ONCE: usize = 16;

const NAMESPACE: &str = "many";

fn declared() -> ContextResource {
    ContextResource {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        fields: vec!["data.v".into()],
        namespaces: vec![NAMESPACE.into()],
        ..ContextResource::default()
    }
}

fn mk_map(number: usize, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("m{number}")},
        "data": {"v": value, "unread": value},
    })
}

/// Creates, edits or deletes objects, some at a time.
async fn write(client: &Client, method: &str, numbers: impl Iterator<Item = usize>, value: &str) {
    let all = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let requests = numbers.map(|number| {
        let path = match method {
            "POST" => all.clone(),
            _ => format!("{all}/m{number}"),
        };
        let body = match method {
            "DELETE" => json!({}),
            _ => mk_map(number, value),
        };
        async move {
            let (code, answer) = api::ask(client, method, &path, &body).await;
            assert!((200..300).contains(&code), "{method} {path}: {answer}");
        }
    });
    stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .for_each(|()| async {})
        .await;
}

/// The digest of what the API server has.
async fn root(client: &Client) -> String {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let list = api::get(client, &path).await;
    let spec = CollectionSpec::new(&declared(), "configmaps", true).unwrap();
    let mut collection = Collection::new(Arc::new(spec));
    for item in list["items"].as_array().unwrap() {
        collection.observe(item.clone()).unwrap();
    }
    collection.root().hex()
}

/// Digests of what the control plane and each replica hold, as `assent context` reports them.
async fn held(harness: &Harness, token: &Path, ca: &Path) -> Vec<String> {
    let output = Command::new(program("assent"))
        .args(["context", "-o", "json", "--server"])
        .arg(format!("https://{}", harness.planes[0].discovery))
        .arg("--ca")
        .arg(ca)
        .arg("--token-file")
        .arg(token)
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let collection = &answer["policyServers"][0]["collections"][0];
    let replicas = collection["replicas"].as_array().into_iter().flatten();
    let replicas = replicas.map(|replica| text(&replica["root"]));
    [text(&collection["root"])]
        .into_iter()
        .chain(replicas)
        .collect()
}

async fn reader(harness: &Harness) -> PathBuf {
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", "reader"]).await;
    let resource = "--resource=policyservers.policies.assent.dev/discovery";
    kubectl
        .run(&["create", "clusterrole", "reader", "--verb=get", resource])
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
    let audience = format!("--audience={AUDIENCE}");
    let token = kubectl.run(&["create", "token", "reader", &audience]).await;
    let file = harness.ca().await.with_file_name("reader.token");
    std::fs::write(&file, token.trim()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_equal_the_api_server_at_quiet_points() {
    let harness = Harness::start(3).await;
    harness
        .kubectl
        .run(&["create", "namespace", NAMESPACE])
        .await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "maps", "labels": {"policies.assent.dev/aggregate-to-context": "true"}},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}],
    });
    harness.kubectl.apply(&role.to_string()).await;
    let payload =
        json!({"api_version": "v1", "kind": "ConfigMap", "namespace": NAMESPACE, "name": "m1"});
    let guest = module::asking("get_resource", &payload.to_string());
    let module = harness.registry.push("ask:v1", &guest).await;
    let mut policy = no_privileged("reads", &module, &[]);
    policy["spec"]["settings"] = json!({});
    policy["spec"]["contextAwareResources"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "fields": ["data.v"], "namespaces": [NAMESPACE],
    }]);
    harness.enforce(&policy).await;
    let client = api::admin(&harness).await;
    let (token, ca) = (reader(&harness).await, harness.ca().await);

    let quiet = async |what: &str| {
        let wanted = root(&client).await;
        eventually(&format!("{what}: everybody has {wanted}"), async || {
            let held = held(&harness, &token, &ca).await;
            held.len() == 4 && held.iter().all(|root| *root == wanted)
        })
        .await;
    };
    write(&client, "POST", 0..OBJECTS, "first").await;
    quiet("created").await;
    write(&client, "PUT", (0..OBJECTS).step_by(3), "second").await;
    write(&client, "DELETE", (1..OBJECTS).step_by(3), "").await;
    quiet("edited and deleted").await;
    let answer = harness.try_pod("p", false).await.unwrap_err();
    assert!(
        answer.contains("m1") && answer.contains("not found"),
        "{answer}"
    );
    // Everything again, while replicas read.
    write(&client, "POST", (1..OBJECTS).step_by(3), "third").await;
    write(&client, "PUT", 0..OBJECTS, "fourth").await;
    quiet("edited again").await;
    let answer = harness.try_pod("p", false).await.unwrap_err();
    assert!(answer.contains("fourth"), "{answer}");
    assert!(!answer.contains("unread"), "{answer}");
}
