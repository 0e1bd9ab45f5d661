//! Pods: which of them a rollout waits for, and which are replaced.

use assent_controller::{Action, Kind};
use serde_json::json;

use super::Cluster;
use crate::cluster::{mk_pod, mk_set, uid};

const FLIPPED: [&str; 3] = ["check replicas for a 1", "flip a 1", "a 1 is Active"];

#[test]
fn pod_that_the_last_check_finds_stops_the_flip() {
    let mut cluster = Cluster::with_replicas(&["r-0", "r-1"]);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    cluster.acknowledge("r-1");
    let check = cluster.only_action();
    assert!(matches!(check, Action::CheckReplicas { .. }));
    // No watch has reported it.
    cluster.world.store(Kind::Pods, mk_pod("r-2", true));
    cluster.perform(check);
    assert!(cluster.run().is_empty());
    assert!(cluster.world.names(Kind::Validating).is_empty());
    cluster.open("r-2");
    cluster.acknowledge("r-2");
    assert_eq!(cluster.run(), FLIPPED);
}

#[test]
fn rollout_waits_only_for_endpoints_and_open_streams() {
    let mut cluster = Cluster::with_replicas(&["r-0"]);
    cluster.apply(Kind::Pods, mk_pod("starting", false));
    let mut ending = mk_pod("ending", true);
    ending["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    cluster.apply(Kind::Pods, ending);
    let mut foreign = mk_pod("foreign", true);
    foreign["metadata"]["ownerReferences"][0]["uid"] = uid("another set").into();
    cluster.apply(Kind::Pods, foreign);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    assert_eq!(cluster.run(), FLIPPED);
}

#[test]
fn starting_pod_counts_once_its_stream_is_open() {
    let mut cluster = Cluster::with_replicas(&["r-0"]);
    cluster.apply(Kind::Pods, mk_pod("r-1", false));
    cluster.open("r-1");
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    assert!(cluster.run().is_empty());
    cluster.acknowledge("r-1");
    assert_eq!(cluster.run(), FLIPPED);
}

#[test]
fn pod_without_an_evaluator_is_replaced_once() {
    let mut cluster = Cluster::with_replicas(&["r-0"]);
    let mut bare = mk_pod("r-1", false);
    bare["spec"]["containers"][0]["image"] = "assent.invalid/auto".into();
    cluster.apply(Kind::Pods, bare.clone());
    assert_eq!(cluster.controller.uninjected_pods(), 1);
    let action = cluster.only_action();
    assert!(matches!(&action, Action::DeletePod(meta) if meta.name == "r-1"));
    // Until it is gone nothing more is asked for.
    cluster.apply(Kind::Pods, bare);
    assert!(cluster.actions().is_empty());
    cluster.perform(action);
    assert_eq!(cluster.controller.uninjected_pods(), 0);
}

/// A StatefulSet whose controller has observed its template.
fn observed_set(hash: &str) -> serde_json::Value {
    let mut set = mk_set("default");
    set["metadata"]["generation"] = 1.into();
    set["spec"] = json!({ "template": { "metadata": {
        "annotations": { assent_k8s::names::TEMPLATE_HASH_ANNOTATION: hash },
    } } });
    set["status"] = json!({ "observedGeneration": 1, "updateRevision": "template-1" });
    set
}

fn injected_pod(name: &str, ready: bool, hash: &str) -> serde_json::Value {
    let mut pod = mk_pod(name, ready);
    pod["metadata"]["labels"]["controller-revision-hash"] = "template-1".into();
    pod["metadata"]["annotations"] = json!({ assent_k8s::names::TEMPLATE_HASH_ANNOTATION: hash });
    pod
}

#[test]
fn outdated_pods_are_replaced_one_at_a_time() {
    let mut cluster = Cluster::with_replicas(&[]);
    cluster.apply(Kind::Sets, observed_set("new"));
    cluster.apply(Kind::Pods, injected_pod("r-0", true, "old"));
    cluster.apply(Kind::Pods, injected_pod("r-1", false, "old"));
    assert!(cluster.run().is_empty());
    cluster.apply(Kind::Pods, injected_pod("r-1", true, "old"));
    assert_eq!(cluster.run(), ["delete pod r-0", "delete pod r-1"]);
}
