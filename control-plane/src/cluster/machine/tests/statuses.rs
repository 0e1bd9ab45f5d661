use assent_api::status::MAX_ROWS;
use assent_k8s::index::Kind;
use serde_json::{Value, json};

use super::{super::statuses::important, objects::mk_policy, stage::Stage};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

fn server_status(stage: &mut Stage) -> Value {
    let wanted = stage.wanted().remove("default").flatten();
    wanted.expect("a status must be wanted").status
}

#[test]
fn rows_and_counters_may_wait_and_the_rest_may_not() {
    let base = json!({
        "observedGeneration": 2,
        "conditions": [{ "type": "Enforced", "status": "True" }],
        "replicas": [{ "name": "r-0", "snapshot": "a" }],
        "rollout": { "applied": 1, "rejected": 0 },
    });
    let with = |pointer: &str, value: Value| {
        let mut changed = base.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    let waits = |changed: &Value| important(changed) == important(&base);
    assert!(waits(&with("/replicas/0/snapshot", "b".into())));
    assert!(waits(&with("/rollout/applied", 2.into())));
    assert!(!waits(&with("/conditions/0/status", "False".into())));
    assert!(!waits(&with("/observedGeneration", 3.into())));
    assert!(!waits(&with("/rollout/rejected", 1.into())));
    // A server's `replicas` is a number that autoscalers read.
    let server = |replicas: i64| json!({ "replicas": replicas });
    assert_ne!(important(&server(1)), important(&server(2)));
}

#[test]
fn a_status_that_is_stored_is_not_written_again() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go_with(&REPLICAS);
    assert_eq!(stage.write_statuses(), ["a", "default"]);
    stage.go();
    assert!(stage.write_statuses().is_empty());
}

#[test]
fn conditions_keep_their_age_across_terms() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go_with(&REPLICAS);
    stage.write_statuses();
    let long_ago = "2020-01-01T00:00:00Z";
    stage.edit(Kind::ClusterPolicies, "a", |object| {
        for condition in object["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastTransitionTime"] = long_ago.into();
        }
        object["status"]["active"]["since"] = long_ago.into();
    });
    let mut next = stage.next();
    next.list();
    for replica in REPLICAS {
        next.open(replica);
    }
    next.go_with(&REPLICAS);
    // A replica joins, so that there is something to write.
    next.edit_spec("a", |spec| spec["rules"] = json!([]));
    let status = next.wanted().remove("a").flatten().unwrap().status;
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
fn each_change_is_told_once() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go_with(&REPLICAS);
    stage.wanted();
    let told = stage.events();
    assert_eq!(told.last().unwrap(), "a Enforced");
    assert_eq!(told.iter().filter(|t| *t == "a Enforced").count(), 1);
    stage.wanted();
    assert!(stage.events().is_empty());
}

#[test]
fn rows_say_what_each_replica_does_and_the_worst_come_first() {
    let mut stage = Stage::with_replicas(&["r-0", "r-1", "r-2", "r-3"]);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    stage.refuse("r-2", "a", "no memory");
    stage.close("r-3");
    stage.go();
    let status = server_status(&mut stage);
    let rows = status["evaluators"].as_array().unwrap();
    let words = rows.iter().map(|row| {
        let reason = row["conditions"][0]["reason"].as_str().unwrap();
        format!("{} {reason}", row["name"].as_str().unwrap())
    });
    let words: Vec<String> = words.collect();
    assert_eq!(
        words,
        [
            "r-1 Behind",
            "r-2 Rejected",
            "r-3 Disconnected",
            "r-0 Current"
        ]
    );
}

#[test]
fn rows_beyond_the_limit_are_counted() {
    let names: Vec<String> = (0..MAX_ROWS + 3).map(|n| format!("r-{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut stage = Stage::with_replicas(&names);
    let status = server_status(&mut stage);
    assert_eq!(status["evaluators"].as_array().unwrap().len(), MAX_ROWS);
    assert_eq!(status["evaluatorsOmitted"], 3);
}
