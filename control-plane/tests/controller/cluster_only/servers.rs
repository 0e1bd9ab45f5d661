//! PolicyServers: their objects, their finalizer, and webhooks that must not outlive them.

use assent_controller::{Action, Failure, Kind, Outcome};
use assent_k8s::workload;
use serde_json::json;

use super::Cluster;
use crate::{
    cluster::{ClusterWorld, NAMESPACE, mk_pod, mk_server, mk_set, webhook_name},
    harness::{Harness, to_json},
    world::World as _,
};

const REPLICAS: [&str; 1] = ["r-0"];

/// A control plane that runs evaluators itself.
fn applying() -> Cluster {
    let mut world = ClusterWorld::empty();
    world.backend.workload = Some(workload::Options {
        namespace: NAMESPACE.into(),
        image: "example.com/evaluator:v1".into(),
        image_pull_policy: None,
        discovery: "https://assent.assent-system.svc:15010".into(),
        network_policy: false,
    });
    world.store(Kind::Servers, mk_server("default"));
    let mut cluster = Harness::unlisted(world, []);
    cluster.list();
    cluster
}

/// Status, reason and message of the server's `Ready`.
fn ready(cluster: &mut Cluster) -> String {
    let status = to_json(&cluster.statuses()["default"]);
    let condition = &status["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

#[test]
fn webhooks_go_before_their_server() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.delete_server("default");
    let expected = [
        "remove routes of server default: a",
        "delete server default",
    ];
    assert_eq!(cluster.run(), expected);
    assert!(cluster.controller.plane().server("default").is_none());
    assert_eq!(cluster.condition("a", "Accepted"), "False TargetNotFound");
    // It is created again, and its stored revision continues.
    cluster.put_server("default", |_| {});
    cluster.open("r-0");
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
}

/// The StatefulSet and its pods went with the server, and new ones start.
#[test]
fn recreated_server_gets_no_webhook_before_its_replicas_serve() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.delete_server("default");
    cluster.run();
    let set = format!("{NAMESPACE}/{}", assent_k8s::names::server("default"));
    cluster.gone(Kind::Sets, &set);
    cluster.gone(Kind::Pods, &format!("{NAMESPACE}/r-0"));
    cluster.put_server("default", |_| {});
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.apply(Kind::Sets, mk_set("default"));
    cluster.apply(Kind::Pods, mk_pod("r-0", false));
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.open("r-0");
    assert_eq!(cluster.run(), Vec::<String>::new());
    assert_eq!(cluster.world.routed("a"), None);
    cluster.acknowledge("r-0");
    let flipped = ["check replicas for a 1", "flip a 1", "a 1 is Active"];
    assert_eq!(cluster.run(), flipped);
}

/// Somebody removed the server's finalizer by hand while no control plane ran.
#[test]
fn server_created_after_a_restart_gets_no_webhook_before_its_replicas_serve() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.gone(Kind::Servers, "default");
    let mut next = cluster.restart(true, &[]);
    assert_eq!(next.run(), ["remove orphans: a"]);
    next.put_server("default", |_| {});
    next.run();
    next.controller.resync(next.now());
    next.run();
    assert_eq!(next.world.routed("a"), None);
    next.open("r-0");
    next.run_with(&REPLICAS);
    assert_eq!(next.world.routed("a"), Some(1));
}

/// A pull that failed is retried with the server's spec, once that is valid again.
#[test]
fn retry_waits_until_its_server_is_valid() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |_| {});
    let job = cluster.only_vet();
    cluster.vetted(&job, Err(Failure::temporary("no route to host")));
    cluster.run();
    cluster.put_server("default", |spec| *spec = json!({ "replicas": "many" }));
    cluster.pass(std::time::Duration::from_secs(3_600));
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.put_server("default", |spec| *spec = json!({}));
    assert_eq!(cluster.run(), ["vet a 1", "store a 1"]);
}

/// A write was in flight when the server was deleted.
#[test]
fn webhook_that_appears_after_its_server_was_deleted_is_removed() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    let webhook = cluster.world.object(Kind::Validating, &webhook_name("a"));
    cluster.delete_server("default");
    cluster.run();
    cluster.apply(Kind::Validating, webhook.unwrap());
    assert_eq!(cluster.run(), ["remove orphans: a"]);
}

#[test]
fn nothing_is_flipped_for_a_server_that_is_being_deleted() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    let check = cluster.only_action();
    cluster.delete_server("default");
    let deletion = cluster.actions();
    cluster.perform(check);
    for action in deletion {
        cluster.perform(action);
    }
    let done = cluster.run();
    assert!(!done.iter().any(|a| a.starts_with("flip")), "{done:?}");
    assert_eq!(cluster.world.routed("a"), None);
}

/// A policy `a` whose first webhook is being written while its server is deleted: the removal
/// that the deletion asks for knows of no webhook.
fn flipping_during_deletion() -> (Cluster, Action<assent_k8s::Cluster>) {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    let check = cluster.only_action();
    cluster.perform(check);
    let flip = cluster.only_action();
    assert!(matches!(flip, Action::Flip(..)));
    cluster.delete_server("default");
    (cluster, flip)
}

#[test]
fn flip_that_ends_before_its_server_is_gone_leaves_no_webhook() {
    let (mut cluster, flip) = flipping_during_deletion();
    let removal = cluster.only_action();
    assert!(matches!(&removal, Action::RemoveServerRoutes(_, routes) if routes.is_empty()));
    cluster.perform(flip);
    // The watch reports the webhook while the server is still being deleted.
    cluster.edit(Kind::Validating, &webhook_name("a"), |_| {});
    cluster.perform(removal);
    // If the server is created again, this is the revision that protected last.
    let expected = [
        "a 1 is Active",
        "remove routes of server default: a",
        "delete server default",
    ];
    assert_eq!(cluster.run(), expected);
    assert_eq!(cluster.world.routed("a"), None);
}

#[test]
fn flip_that_ends_after_its_server_is_gone_leaves_no_webhook() {
    let (mut cluster, flip) = flipping_during_deletion();
    cluster.run();
    cluster.perform(flip);
    let done = cluster.run();
    assert_eq!(done, ["a 1 is Active", "remove orphans: a"]);
    assert_eq!(cluster.world.routed("a"), None);
}

#[test]
fn repair_that_ends_after_its_server_is_gone_leaves_no_webhook() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.gone(Kind::Validating, &webhook_name("a"));
    let repair = cluster.only_action();
    assert!(matches!(repair, Action::RepairRoute(..)));
    cluster.delete_server("default");
    cluster.run();
    cluster.perform(repair);
    assert_eq!(cluster.run(), ["remove orphans: a"]);
    assert_eq!(cluster.world.routed("a"), None);
}

/// Without its spec nobody knows which signatures it demands.
#[test]
fn nothing_is_vetted_for_an_invalid_server() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_server("default", |spec| *spec = json!({ "replicas": "many" }));
    cluster.put_policy("a", |_| {});
    assert_eq!(cluster.run(), Vec::<String>::new());
    assert_eq!(cluster.condition("a", "Accepted"), "False TargetNotFound");
    let message = cluster.message("a", "Accepted");
    assert!(message.contains("\"default\" is invalid"), "{message}");
    cluster.put_server("default", |spec| *spec = json!({}));
    assert_eq!(cluster.run(), ["vet a 1", "store a 1"]);
}

#[test]
fn invalid_server_does_not_affect_accepted_policies() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.put_server("default", |spec| *spec = json!({ "replicas": "many" }));
    cluster.run();
    cluster.controller.resync(cluster.now());
    assert_eq!(cluster.run(), Vec::<String>::new());
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
    let mut next = cluster.restart(true, &REPLICAS);
    next.run_with(&REPLICAS);
    assert_eq!(next.condition("a", "Accepted"), "True Accepted");
}

/// The server became invalid after the module was vetted with the spec before.
#[test]
fn nothing_is_stored_for_an_invalid_server() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |_| {});
    let vet = cluster.only_action();
    cluster.put_server("default", |spec| *spec = json!({ "replicas": "many" }));
    cluster.perform(vet);
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.put_server("default", |spec| *spec = json!({}));
    assert_eq!(cluster.run(), ["vet a 1", "store a 1"]);
}

#[test]
fn objects_are_applied_when_the_server_or_they_change() {
    let mut cluster = applying();
    assert_eq!(cluster.run(), ["apply server default"]);
    cluster.edit(Kind::Servers, "default", |object| {
        object["metadata"]["labels"] = json!({ "a": "b" });
    });
    assert!(cluster.run().is_empty());
    cluster.put_server("default", |spec| spec["replicas"] = 3.into());
    assert_eq!(cluster.run(), ["apply server default"]);
    // Somebody edits the StatefulSet.
    cluster.apply(Kind::Sets, mk_set("default"));
    assert_eq!(cluster.run(), ["apply server default"]);
    // Somebody deletes it.
    let set = format!("{NAMESPACE}/{}", assent_k8s::names::server("default"));
    cluster.gone(Kind::Sets, &set);
    assert_eq!(cluster.run(), ["apply server default"]);
}

#[test]
fn change_while_objects_are_applied_is_applied_afterwards() {
    let mut cluster = applying();
    assert!(matches!(cluster.only_action(), Action::ApplyServer(..)));
    cluster.put_server("default", |spec| spec["replicas"] = 3.into());
    assert!(cluster.actions().is_empty());
    let outcome = Outcome::ServerApplied("default".into(), Ok(()));
    cluster.controller.outcome(cluster.now(), outcome);
    assert_eq!(cluster.run(), ["apply server default"]);
}

#[test]
fn failure_to_apply_is_the_servers_condition() {
    let mut cluster = applying();
    cluster.only_action();
    let why = "statefulsets.apps is forbidden".to_owned();
    let outcome = Outcome::ServerApplied("default".into(), Err(why));
    cluster.controller.outcome(cluster.now(), outcome);
    let expected = "False ApplyFailed: statefulsets.apps is forbidden";
    assert_eq!(ready(&mut cluster), expected);
    cluster.controller.resync(cluster.now());
    assert_eq!(cluster.run(), ["apply server default"]);
    assert!(ready(&mut cluster).starts_with("False Progressing"));
}

#[test]
fn invalid_server_is_reported_and_its_objects_stay() {
    let mut cluster = applying();
    cluster.run();
    cluster.put_server("default", |spec| *spec = json!({ "replicas": "many" }));
    assert!(cluster.run().is_empty());
    assert!(ready(&mut cluster).starts_with("False Invalid: "));
}

#[test]
fn server_gets_the_finalizer() {
    let mut cluster = applying();
    cluster.run();
    let mut server = mk_server("other");
    server["metadata"]["finalizers"] = json!([]);
    cluster.apply(Kind::Servers, server);
    assert_eq!(cluster.run()[0], "add finalizer to other");
}
