use assent_k8s::index::Kind;
use serde_json::json;

use super::{
    objects::{mk_pod, mk_policy, mk_server, mk_workload},
    stage::Stage,
};
use crate::cluster::deed::{Deed, Done};

const REPLICAS: [&str; 1] = ["r-0"];

/// One whose server's objects are ours to apply.
fn applying() -> Stage {
    let mut stage = Stage::with(|options| options.workload = Some(mk_workload()));
    stage.put(Kind::Servers, mk_server("default"));
    stage.list();
    stage
}

fn ready(stage: &mut Stage) -> String {
    let status = stage.wanted().remove("default").flatten().unwrap().status;
    let condition = &status["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

#[test]
fn a_servers_webhooks_go_before_the_server_does() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go_with(&REPLICAS);
    stage.delete(Kind::Servers, "default");
    let said = stage.go();
    assert_eq!(
        said,
        [
            "unroute server default: assent.cluster.a",
            "end server default"
        ]
    );
    assert!(stage.machine.drive.plane.server("default").is_none());
    assert_eq!(stage.condition("a", "Accepted"), "False TargetNotFound");
    // It comes back, and so does what was stored for it.
    stage.apply(Kind::Servers, mk_server("default"));
    stage.open("r-0");
    stage.go_with(&REPLICAS);
    assert_eq!(stage.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn a_webhook_that_comes_after_its_servers_end_is_removed() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go_with(&REPLICAS);
    let webhook = stage.object(Kind::Validating, "assent.cluster.a").unwrap();
    stage.delete(Kind::Servers, "default");
    stage.go();
    // A write was on its way when the server ended.
    stage.apply(Kind::Validating, webhook);
    assert_eq!(stage.go(), ["remove orphans: assent.cluster.a"]);
}

#[test]
fn nothing_is_flipped_for_a_server_that_ends() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    let [look] = <[Deed; 1]>::try_from(stage.asked()).unwrap();
    stage.delete(Kind::Servers, "default");
    let ending = stage.asked();
    stage.perform(look);
    for deed in ending {
        stage.perform(deed);
    }
    let said = stage.go();
    assert!(
        !said.iter().any(|deed| deed.starts_with("flip")),
        "{said:?}"
    );
    assert!(stage.names(Kind::Validating).is_empty());
}

#[test]
fn a_pod_without_an_evaluator_is_replaced_once() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    let mut bare = mk_pod("r-1", false);
    bare["spec"]["containers"][0]["image"] = "assent.invalid/auto".into();
    stage.apply(Kind::Pods, bare.clone());
    assert_eq!(stage.machine.uninjected(), 1);
    let asked = stage.asked();
    assert!(matches!(&asked[..], [Deed::DeletePod(meta)] if meta.name == "r-1"));
    // Until it is gone nothing more is asked for.
    stage.apply(Kind::Pods, bare);
    assert!(stage.asked().is_empty());
}

#[test]
fn a_servers_objects_are_applied_when_it_changes_and_when_they_do() {
    let mut stage = applying();
    assert_eq!(stage.go(), ["apply server default"]);
    stage.edit(Kind::Servers, "default", |object| {
        object["metadata"]["labels"] = json!({ "a": "b" });
    });
    assert!(stage.go().is_empty());
    stage.edit(Kind::Servers, "default", |object| {
        object["spec"]["replicas"] = 3.into();
        object["metadata"]["generation"] = 2.into();
    });
    assert_eq!(stage.go(), ["apply server default"]);
    // Somebody edits the StatefulSet.
    stage.apply(Kind::Sets, super::objects::mk_set("default"));
    assert_eq!(stage.go(), ["apply server default"]);
}

#[test]
fn what_changes_while_objects_are_applied_is_applied_after() {
    let mut stage = applying();
    let asked = stage.asked();
    assert!(matches!(&asked[..], [Deed::ApplyServer(..)]));
    stage.edit(Kind::Servers, "default", |object| {
        object["metadata"]["generation"] = 2.into();
    });
    assert!(stage.asked().is_empty());
    let done = Done::ServerApplied("default".into(), Ok(()));
    stage.machine.done(done);
    assert_eq!(stage.go(), ["apply server default"]);
}

#[test]
fn objects_that_could_not_be_applied_are_the_servers_condition() {
    let mut stage = applying();
    stage.asked();
    let why = "statefulsets.apps is forbidden".to_owned();
    let done = Done::ServerApplied("default".into(), Err(why));
    stage.machine.done(done);
    assert_eq!(
        ready(&mut stage),
        "False ApplyFailed: statefulsets.apps is forbidden"
    );
    stage.machine.resync();
    assert_eq!(stage.go(), ["apply server default"]);
    assert!(ready(&mut stage).starts_with("False Progressing"));
}

#[test]
fn a_bad_server_says_so_and_is_left_as_it_was() {
    let mut stage = applying();
    stage.go();
    stage.edit(Kind::Servers, "default", |object| {
        object["spec"] = json!({ "replicas": "many" });
        object["metadata"]["generation"] = 2.into();
    });
    assert!(stage.go().is_empty());
    assert!(ready(&mut stage).starts_with("False Invalid: "));
}

#[test]
fn a_server_that_is_not_held_is() {
    let mut stage = applying();
    stage.go();
    let mut server = mk_server("other");
    server["metadata"]["finalizers"] = json!([]);
    stage.apply(Kind::Servers, server);
    let said = stage.go();
    assert_eq!(said[0], "hold other");
}
