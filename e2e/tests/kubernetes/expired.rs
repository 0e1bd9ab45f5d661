//! A watch that fell behind and gets 410 Gone.

use std::{collections::BTreeSet, fs};

use assent_e2e::{
    PATIENCE,
    kube::{ApiServer, Balancer},
};
use assent_k8s::watch::{self, Change, Kind, What};
use serde_json::json;
use tokio::sync::mpsc;

use crate::api::client;

#[tokio::test(flavor = "multi_thread")]
async fn expired_watch_is_followed_by_a_relist() {
    let api = ApiServer::start().await;
    api.install_crds().await;
    let address = api.url().trim_start_matches("https://").parse().unwrap();
    let way = Balancer::start([address]).await;
    let kubeconfig = fs::read_to_string(api.kubectl.kubeconfig()).unwrap();
    let kubeconfig = kubeconfig.replace(&api.url(), &format!("https://{}", way.address()));
    let path = api.dir().join("through.kubeconfig");
    fs::write(&path, kubeconfig).unwrap();
    let (sender, mut changes) = mpsc::channel(64);
    let kinds = [Kind::ClusterPolicies];
    let _watches = watch::spawn(&client(&path).await, "default", &kinds, &sender);
    assert_eq!(listed(&mut changes).await, names(&[]));

    for name in ["stays", "goes"] {
        api.kubectl.apply(&policy(name)).await;
        assert_eq!(applied(&mut changes).await, name);
    }
    let last = api.kubectl.get(&["cap", "goes"]).await;
    let last = last["metadata"]["resourceVersion"].as_str().unwrap();

    // Nobody gets through while things happen, and then the API server forgets that they did.
    way.set([]);
    api.restart_apiserver().await;
    api.kubectl.run(&["delete", "cap", "goes"]).await;
    api.kubectl.apply(&policy("comes")).await;
    api.restart_apiserver().await;
    expired(&api, last).await;

    way.set([address]);
    let now = listed(&mut changes).await;
    assert_eq!(now, names(&["comes", "stays"]));
    // From there it follows again.
    api.kubectl.run(&["delete", "cap", "stays"]).await;
    assert_eq!(deleted(&mut changes).await, "stays");
}

/// The API server no longer has the events since then: 410 Gone.
async fn expired(api: &ApiServer, version: &str) {
    let path = "/apis/policies.assent.dev/v1alpha1/clusteradmissionpolicies";
    let watch = format!("{path}?watch=1&timeoutSeconds=5&resourceVersion={version}");
    let said = api.kubectl.attempt(&["get", "--raw", &watch]).await;
    let said = said.unwrap_or_else(|refused| refused);
    assert!(said.contains("too old resource version"), "{said}");
}

fn policy(name: &str) -> String {
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["pods"],
    });
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "ClusterAdmissionPolicy",
        "metadata": { "name": name },
        "spec": { "module": "registry://example.com/policy:v1", "rules": [rule] },
    })
    .to_string()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The next change.
async fn next(changes: &mut mpsc::Receiver<Change>) -> What {
    let next = tokio::time::timeout(PATIENCE, changes.recv()).await;
    let next = next.expect("something must come in time");
    next.expect("the watch must go on").what
}

async fn listed(changes: &mut mpsc::Receiver<Change>) -> BTreeSet<String> {
    match next(changes).await {
        What::Listed(objects) => {
            let names = objects.into_iter().filter_map(|o| o.metadata.name);
            names.collect()
        }
        other => panic!("a list must come, not {other:?}"),
    }
}

async fn applied(changes: &mut mpsc::Receiver<Change>) -> String {
    match next(changes).await {
        What::Applied(object) => object.metadata.name.unwrap(),
        other => panic!("an object must come, not {other:?}"),
    }
}

async fn deleted(changes: &mut mpsc::Receiver<Change>) -> String {
    match next(changes).await {
        What::Deleted(object) => object.metadata.name.unwrap(),
        other => panic!("an end must come, not {other:?}"),
    }
}
