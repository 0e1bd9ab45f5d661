//! Policy objects: finalizers, annotations, specs that make no sense.

use assent_api::ROLLBACK_ANNOTATION;
use assent_controller::{Failure, Kind};
use serde_json::{Value, json};

use super::Cluster;
use crate::{
    cluster::uid,
    harness::{mk_spec, settings},
};

const REPLICAS: [&str; 1] = ["r-0"];

#[test]
fn policy_gets_the_finalizer_before_anything_is_made_for_it() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    let mut policy = cluster.world.mk_policy("a");
    policy["metadata"]["finalizers"] = Value::Null;
    cluster.apply(Kind::ClusterPolicies, policy);
    assert_eq!(
        cluster.run(),
        ["add finalizer to a", "vet a 1", "store a 1"]
    );
}

#[test]
fn malformed_policy_affects_only_itself() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    let mut bad = cluster.world.mk_policy("bad");
    bad["spec"] = json!({ "rules": 7 });
    cluster.apply(Kind::ClusterPolicies, bad);
    cluster.put_policy("good", |_| {});
    assert_eq!(cluster.run(), ["vet good 1", "store good 1"]);
    assert_eq!(cluster.condition("bad", "Accepted"), "False Invalid");
}

#[test]
fn invalid_spec_is_rejected_without_vetting() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.put_policy("a", |spec| spec["rules"] = json!([]));
    assert!(cluster.run().is_empty());
    assert_eq!(cluster.condition("a", "Accepted"), "False Invalid");
    assert_eq!(cluster.condition("a", "Ready"), "True LastGood");
    let path = cluster.world.webhook_path(Kind::Validating, "a").unwrap();
    assert!(path.contains("/a/1-"), "{path}");
    // Corrected, it is a generation like any other.
    cluster.put_policy("a", |spec| *spec = mk_spec());
    assert_eq!(cluster.run(), ["vet a 3", "store a 3"]);
}

/// Somebody removed the finalizer by hand, so that nobody saw the deletion.
#[test]
fn policy_that_replaces_another_starts_from_nothing() {
    let mut cluster = Cluster::enforced(&REPLICAS, 3);
    cluster.gone(Kind::ClusterPolicies, "a");
    cluster.put_policy("a", |_| {});
    let done = cluster.run_with(&REPLICAS);
    for expected in ["remove routes of a: a", "vet a 1", "flip a 1"] {
        assert!(done.contains(&expected.to_owned()), "{done:?}");
    }
    let path = cluster.world.webhook_path(Kind::Validating, "a").unwrap();
    let uid = cluster.id("a").uid;
    assert!(path.ends_with(&format!("/1-{}", &uid[..8])), "{path}");
    assert_ne!(*uid, *uid_of_first());
}

fn uid_of_first() -> String {
    uid("a 1")
}

#[test]
fn annotation_rolls_a_policy_back() {
    let mut cluster = Cluster::enforced(&REPLICAS, 2);
    cluster.edit(Kind::ClusterPolicies, "a", |object| {
        object["metadata"]["annotations"] = json!({ ROLLBACK_ANNOTATION: "previous" });
    });
    let done = cluster.run_with(&REPLICAS);
    assert_eq!(done[..2], ["roll a back to 1", "vet a 3"]);
    let object = cluster.world.object(Kind::ClusterPolicies, "a").unwrap();
    assert_eq!(object["spec"]["settings"], json!({ "n": 1 }));
    assert_eq!(object["metadata"]["annotations"], Value::Null);
    assert!(cluster.events().contains(&"a RolledBack".to_owned()));
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn rejected_annotation_is_removed_and_reported() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.edit(Kind::ClusterPolicies, "a", |object| {
        object["metadata"]["annotations"] = json!({ ROLLBACK_ANNOTATION: "7" });
    });
    let why = "there is no revision of generation 7 to roll back to; there are: 1";
    assert_eq!(cluster.run(), [format!("do not roll a back: {why}")]);
    let object = cluster.world.object(Kind::ClusterPolicies, "a").unwrap();
    assert_eq!(object["metadata"]["annotations"], Value::Null);
    assert!(cluster.events().contains(&"a RollbackRefused".to_owned()));
}

/// A registry that does not answer must not delay whoever takes over.
#[test]
fn r02_policy_that_an_earlier_process_rejected_is_not_waited_for() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |_| {});
    let job = cluster.only_vet();
    cluster.vetted(&job, Err(Failure::temporary("no route to host")));
    cluster.write_statuses();
    let mut next = cluster.restart(true, &REPLICAS);
    next.only_vet();
    assert!(next.published_routes().is_empty());
    assert!(next.controller.is_ready());
    // Another generation was never decided.
    next.put_policy("a", |spec| settings(spec, 2));
    let mut last = next.restart(true, &REPLICAS);
    last.only_vet();
    assert!(last.published("default").is_none());
}
