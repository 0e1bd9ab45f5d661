//! Namespaces by their labels, and objects of the control plane that are out of reach.

use assent_controller::Kind;
use serde_json::{Value, json};

use super::Cluster;
use crate::{cluster::uid, world::World as _};

const REPLICAS: [&str; 1] = ["r-0"];

fn mk_namespace(name: &str, labels: Value) -> Value {
    json!({ "metadata": { "name": name, "uid": uid(name), "labels": labels } })
}

#[test]
fn namespaces_are_selected_by_their_labels() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_server("default", |spec| {
        spec["allowedNamespaces"] = json!({
            "from": "Selected", "selector": { "matchLabels": { "tenant": "yes" } },
        });
    });
    cluster.run();
    // Nobody knows the namespace yet.
    cluster.put_policy("shop/p", |_| {});
    assert_eq!(cluster.run(), Vec::<String>::new());
    assert_eq!(cluster.condition("shop/p", "Accepted"), "False NotAllowed");
    cluster.apply(Kind::Namespaces, mk_namespace("shop", json!({})));
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.apply(
        Kind::Namespaces,
        mk_namespace("shop", json!({ "tenant": "yes" })),
    );
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.condition("shop/p", "Enforced"), "True Enforced");
    // The label goes: nothing new gets in, and what protects the namespace stays.
    cluster.apply(
        Kind::Namespaces,
        mk_namespace("shop", json!({ "tenant": "no" })),
    );
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.condition("shop/p", "Accepted"), "False NotAllowed");
    assert_eq!(cluster.condition("shop/p", "Enforced"), "True Enforced");
    assert_eq!(cluster.world.routed("shop/p"), Some(1));
}

#[test]
fn server_that_reaches_for_the_authoritys_key_is_invalid() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.put_server("default", |spec| {
        spec["env"] = json!([{
            "name": "KEY",
            "valueFrom": { "secretKeyRef": { "name": "assent-ca", "key": "tls.key" } },
        }]);
    });
    cluster.run_with(&REPLICAS);
    let status = crate::harness::to_json(&cluster.statuses()["default"]);
    let ready = &status["conditions"][0];
    assert_eq!(ready["reason"], "Invalid", "{status}");
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains("is the control plane's own"), "{message}");
    // What it runs stays, and nothing new is let in.
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
    cluster.put_policy("b", |_| {});
    cluster.run();
    assert_eq!(cluster.condition("b", "Accepted"), "False TargetNotFound");
}
