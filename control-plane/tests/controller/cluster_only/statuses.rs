//! Statuses of policies and servers: what is urgent, what keeps its age, which rows are shown.

use std::time::Duration;

use assent_api::status::MAX_ROWS;
use assent_controller::{Action, Kind};
use serde_json::{Value, json};

use super::Cluster;
use crate::{
    cluster::{mk_pod, mk_set},
    harness::{settings, to_json},
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

/// A policy `a` that both replicas serve, with everything written.
fn written() -> Cluster {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    assert_eq!(cluster.write_statuses(), ["a", "default"]);
    assert!(cluster.write_statuses().is_empty());
    cluster
}

#[test]
fn joining_replica_changes_rows_in_the_background() {
    let mut cluster = written();
    cluster.apply(Kind::Pods, mk_pod("r-2", false));
    cluster.open("r-2");
    let statuses = cluster.statuses();
    let update = &statuses["a"];
    let rows = to_json(update)["replicas"].as_array().unwrap().len();
    assert_eq!(rows, 3);
    assert!(!update.urgent);
}

#[test]
fn edit_and_its_acceptance_are_urgent() {
    let mut cluster = written();
    cluster.put_policy("a", |spec| settings(spec, 2));
    assert_eq!(cluster.run(), ["vet a 2", "store a 2"]);
    assert!(cluster.statuses()["a"].urgent);
}

#[test]
fn acknowledgement_of_one_replica_is_counted_in_the_background() {
    let mut cluster = written();
    cluster.put_policy("a", |spec| settings(spec, 2));
    cluster.run();
    cluster.write_statuses();
    cluster.acknowledge("r-1");
    let statuses = cluster.statuses();
    assert_eq!(to_json(&statuses["a"])["rollout"]["applied"], 1);
    assert!(!statuses["a"].urgent);
}

#[test]
fn rejection_is_urgent() {
    let mut cluster = written();
    cluster.put_policy("a", |spec| settings(spec, 2));
    cluster.run();
    cluster.write_statuses();
    cluster.reject("r-1", "a", "no memory");
    assert!(cluster.statuses()["a"].urgent);
}

/// Autoscalers read them.
#[test]
fn counts_of_a_server_are_urgent() {
    let mut cluster = written();
    let mut set = mk_set("default");
    set["status"]["replicas"] = 5.into();
    cluster.apply(Kind::Sets, set);
    assert!(cluster.statuses()["default"].urgent);
}

#[test]
fn rows_of_a_server_are_not_urgent() {
    let mut cluster = written();
    cluster.close("r-1");
    assert!(!cluster.statuses()["default"].urgent);
}

#[test]
fn conditions_keep_their_age_across_processes() {
    let mut cluster = written();
    let long_ago = "2020-01-01T00:00:00Z";
    cluster.edit(Kind::ClusterPolicies, "a", |object| {
        for condition in object["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastTransitionTime"] = long_ago.into();
        }
        object["status"]["active"]["since"] = long_ago.into();
    });
    let mut next = cluster.restart(true, &REPLICAS);
    next.run_with(&REPLICAS);
    next.pass(Duration::from_secs(60));
    // An edit that is rejected changes one condition and not the others.
    next.put_policy("a", |spec| spec["rules"] = json!([]));
    let status = to_json(&next.statuses()["a"]);
    let conditions = status["conditions"].as_array().unwrap();
    let since = |kind: &str| {
        let found = conditions.iter().find(|c| c["type"] == kind).unwrap();
        found["lastTransitionTime"].as_str().unwrap().to_owned()
    };
    assert_eq!(since("Ready"), long_ago);
    assert_ne!(since("Accepted"), long_ago);
    assert_eq!(status["active"]["since"], long_ago);
}

#[test]
fn edit_of_a_status_by_somebody_else_is_corrected() {
    let mut cluster = written();
    cluster.edit(Kind::ClusterPolicies, "a", |object| {
        object["status"]["conditions"] = json!([]);
    });
    assert_eq!(cluster.write_statuses(), ["a"]);
    assert!(cluster.write_statuses().is_empty());
}

fn server_status(cluster: &mut Cluster) -> Value {
    to_json(&cluster.statuses()["default"])
}

#[test]
fn rows_show_the_state_of_each_replica_with_the_worst_first() {
    let mut cluster = Cluster::with_replicas(&["r-0", "r-1", "r-2", "r-3"]);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    cluster.reject("r-2", "a", "no memory");
    cluster.close("r-3");
    cluster.run();
    let status = server_status(&mut cluster);
    let rows = status["evaluators"].as_array().unwrap().iter();
    let states = rows.map(|row| {
        let reason = row["conditions"][0]["reason"].as_str().unwrap();
        format!("{} {reason}", row["name"].as_str().unwrap())
    });
    let expected = [
        "r-1 Behind",
        "r-2 Rejected",
        "r-3 Disconnected",
        "r-0 Current",
    ];
    assert_eq!(states.collect::<Vec<_>>(), expected);
}

#[test]
fn rows_beyond_the_limit_are_counted() {
    let names: Vec<String> = (0..MAX_ROWS + 3).map(|n| format!("r-{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cluster = Cluster::with_replicas(&names);
    let status = server_status(&mut cluster);
    assert_eq!(status["evaluators"].as_array().unwrap().len(), MAX_ROWS);
    assert_eq!(status["evaluatorsOmitted"], 3);
}

/// A restart must not write a status without a snapshot, only to write it again a moment later.
#[test]
fn server_status_names_the_snapshot_right_after_a_restart() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.write_statuses();
    let mut next = cluster.restart(true, &REPLICAS);
    let actions = next.controller.settle(next.now());
    let written = actions.iter().filter_map(|action| match action {
        Action::WriteStatus(target, Some(update)) if target.name == "default" => Some(update),
        _ => None,
    });
    for update in written {
        assert!(to_json(update)["snapshot"].is_string());
    }
}

/// Its pod is an endpoint of the Service, so that requests may still go there.
#[test]
fn replica_that_never_reconnects_after_a_fail_over_is_reported() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.write_statuses();
    let mut next = cluster.restart(true, &REPLICAS[..1]);
    next.run_with(&REPLICAS[..1]);
    next.pass(Duration::from_secs(50));
    next.run();
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
    assert_eq!(next.condition("a", "Programmed"), "True Programmed");
    next.pass(Duration::from_secs(10));
    next.run();
    assert_eq!(next.condition("a", "Enforced"), "False PartiallyEnforced");
    assert_eq!(next.condition("a", "Programmed"), "False Reconciling");
    assert_eq!(next.condition("a", "Ready"), "False NotServed");
    let missing = REPLICAS[1];
    let message = next.message("a", "Enforced");
    assert_eq!(message, format!("{missing}: is not connected"));
    let statuses = next.statuses();
    let status = to_json(&statuses["a"]);
    assert_eq!(status["rollout"]["disconnected"], 1);
    assert_eq!(status["replicas"][0]["name"], missing);
    let row = &to_json(&statuses["default"])["evaluators"][0];
    assert_eq!(row["name"], missing);
    assert_eq!(row["conditions"][0]["reason"], "Disconnected");
    next.open(missing);
    next.run_with(&REPLICAS);
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}
