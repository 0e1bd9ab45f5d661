use assent_core::{RevisionId, rollout::PolicyId};
use assent_k8s::{index::Kind, webhook};
use serde_json::json;

use super::{
    objects::{mk_pod, mk_policy, uid},
    stage::Stage,
};
use crate::cluster::deed::{Deed, Done, Pointing};

/// A policy `a` that is enforced by both replicas.
fn enforced() -> Stage {
    Stage::enforced(&["r-0", "r-1"], 1)
}

/// The one deed that is asked for.
fn only(asked: Vec<Deed>) -> Deed {
    let [deed] = <[Deed; 1]>::try_from(asked).expect("one deed must be asked for");
    deed
}

/// A policy `a` whose first flip is asked for, and what it is to do.
fn about_to_flip() -> (Stage, PolicyId, RevisionId, Box<Pointing>) {
    let mut stage = Stage::with_replicas(&["r-0"]);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    let look = only(stage.asked());
    stage.perform(look);
    let Deed::Flip(id, to, pointing) = only(stage.asked()) else {
        panic!("a flip must be asked for");
    };
    (stage, id, to, pointing)
}

#[test]
fn a_webhook_is_written_when_the_last_required_replica_serves() {
    let mut stage = Stage::with_replicas(&["r-0", "r-1"]);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    assert_eq!(stage.go(), ["vet a 1", "store a 1"]);
    stage.ack("r-0");
    assert!(stage.go().is_empty());
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), None);
    stage.ack("r-1");
    assert_eq!(stage.go(), ["pods for a 1", "flip a 1", "a 1 is Active"]);
    let path = stage.webhook_path(Kind::Validating, "a").unwrap();
    let short = &uid("a")[..8];
    assert_eq!(path, format!("/validate/cluster/a/1-{short}"));
}

#[test]
fn a_pod_that_the_last_look_finds_stops_the_flip() {
    let mut stage = Stage::with_replicas(&["r-0", "r-1"]);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    stage.ack("r-1");
    let look = only(stage.asked());
    assert!(matches!(look, Deed::ReadPods { .. }));
    // No watch has told of it.
    stage.put(Kind::Pods, mk_pod("r-2", true));
    stage.perform(look);
    assert!(stage.go().is_empty());
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), None);
    stage.open("r-2");
    stage.ack("r-2");
    assert_eq!(stage.go(), ["pods for a 1", "flip a 1", "a 1 is Active"]);
}

#[test]
fn only_endpoints_and_open_streams_are_waited_for() {
    let mut stage = Stage::with_replicas(&["r-0"]);
    stage.apply(Kind::Pods, mk_pod("starting", false));
    let mut ending = mk_pod("ending", true);
    ending["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    stage.apply(Kind::Pods, ending);
    let mut foreign = mk_pod("foreign", true);
    foreign["metadata"]["ownerReferences"][0]["uid"] = uid("another set").into();
    stage.apply(Kind::Pods, foreign);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    assert_eq!(stage.go(), ["pods for a 1", "flip a 1", "a 1 is Active"]);
}

#[test]
fn a_pod_that_is_no_endpoint_yet_counts_once_its_stream_is_open() {
    let mut stage = Stage::with_replicas(&["r-0"]);
    stage.apply(Kind::Pods, mk_pod("r-1", false));
    stage.open("r-1");
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.go();
    stage.ack("r-0");
    assert!(stage.go().is_empty());
    stage.ack("r-1");
    assert_eq!(stage.go(), ["pods for a 1", "flip a 1", "a 1 is Active"]);
}

#[test]
fn what_changed_meanwhile_is_decided_again() {
    let (mut stage, id, to, _) = about_to_flip();
    let conflict = webhook::Error::Conflict;
    stage.machine.done(Done::FlipFailed(id, to, conflict));
    assert_eq!(stage.go(), ["pods for a 1", "flip a 1", "a 1 is Active"]);
}

#[test]
fn a_webhook_that_the_api_server_refuses_is_the_policys_fault() {
    let (mut stage, id, to, _) = about_to_flip();
    let invalid = webhook::Error::Invalid("webhooks[0]: no".into());
    stage.machine.done(Done::FlipFailed(id, to, invalid));
    assert_eq!(stage.condition("a", "Accepted"), "False Invalid");
    let status = stage.wanted().remove("a").flatten().unwrap().status;
    let text = status.to_string();
    assert!(text.contains("webhooks[0]: no"), "{text}");
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), None);
}

#[test]
fn a_write_whose_answer_was_lost_is_found_and_not_done_again() {
    let (mut stage, id, to, pointing) = about_to_flip();
    stage.point(&pointing);
    // The watch tells of it, then the request fails.
    stage.edit(Kind::Validating, "assent.cluster.a", |_| {});
    assert!(stage.go().is_empty());
    let lost = webhook::Error::Other(Box::new(kube::Error::LinesCodecMaxLineLengthExceeded));
    stage.machine.done(Done::FlipFailed(id, to, lost));
    assert_eq!(stage.go(), ["a 1 is Active"]);
}

#[test]
fn an_edited_or_removed_configuration_is_repaired() {
    let mut stage = enforced();
    let right = stage.webhook_path(Kind::Validating, "a");
    let name = "assent.cluster.a";
    stage.edit(Kind::Validating, name, |object| {
        object["webhooks"][0]["clientConfig"]["service"]["path"] = "/elsewhere".into();
    });
    assert_eq!(stage.go(), ["repair a"]);
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), right);
    stage.edit(Kind::Validating, name, |object| {
        object["webhooks"][0]["failurePolicy"] = "Ignore".into();
    });
    assert_eq!(stage.go(), ["repair a"]);
    stage.gone(Kind::Validating, name);
    assert_eq!(stage.go(), ["repair a"]);
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), right);
    // What others add to the object is theirs.
    stage.edit(Kind::Validating, name, |object| {
        object["metadata"]["annotations"]["example.com/note"] = "hello".into();
    });
    assert!(stage.go().is_empty());
}

#[test]
fn a_repair_that_failed_is_asked_for_again() {
    let mut stage = enforced();
    stage.gone(Kind::Validating, "assent.cluster.a");
    let Deed::Repair(key, _) = only(stage.asked()) else {
        panic!("a repair must be asked for");
    };
    // Asked for once while it is on its way.
    stage.machine.resync();
    assert!(stage.asked().is_empty());
    stage.machine.done(Done::Repaired(key, Vec::new()));
    assert_eq!(stage.go(), ["repair a"]);
}

#[test]
fn a_new_authority_is_trusted_by_every_webhook() {
    let mut stage = enforced();
    stage.machine.trust(b"a CA".to_vec());
    assert!(stage.go().is_empty());
    stage.machine.trust(b"a CA and another".to_vec());
    assert_eq!(stage.go(), ["repair a"]);
}

#[test]
fn an_edit_drains_the_revision_before_it() {
    let mut stage = enforced();
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "x": 1 }));
    assert_eq!(stage.go(), ["vet a 2", "store a 2"]);
    let before = stage.webhook_path(Kind::Validating, "a").unwrap();
    assert!(before.contains("/a/1-"), "{before}");
    stage.ack("r-0");
    stage.ack("r-1");
    let flipped = [
        "pods for a 2",
        "flip a 2",
        "a 2 is Active",
        "a 1 is Draining",
        "retire a 1: keep",
    ];
    assert_eq!(stage.go(), flipped);
    let after = stage.webhook_path(Kind::Validating, "a").unwrap();
    assert!(after.contains("/a/2-"), "{after}");
    assert!(stage.go_with(&["r-0", "r-1"]).is_empty());
}

#[test]
fn a_policy_that_begins_to_mutate_changes_the_kind_of_its_webhook() {
    let mut stage = enforced();
    stage.edit_spec("a", |spec| spec["mutating"] = true.into());
    stage.go_with(&["r-0", "r-1"]);
    assert_eq!(stage.webhook_path(Kind::Validating, "a"), None);
    let path = stage.webhook_path(Kind::Mutating, "a").unwrap();
    assert!(path.contains("/a/2-"), "{path}");
}

#[test]
fn a_replica_that_refuses_keeps_the_old_revision_in_force() {
    let mut stage = enforced();
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "x": 1 }));
    stage.go();
    stage.ack("r-0");
    stage.refuse("r-1", "a", "no memory");
    assert!(stage.go().is_empty());
    let path = stage.webhook_path(Kind::Validating, "a").unwrap();
    assert!(path.contains("/a/1-"), "{path}");
    assert!(stage.condition("a", "Programmed").starts_with("False"));
    let wanted = stage.wanted().remove("a").flatten().unwrap();
    assert!(wanted.urgent);
    let text = wanted.status.to_string();
    assert!(text.contains("r-1") && text.contains("no memory"), "{text}");
}

#[test]
fn configurations_of_policies_that_are_gone_are_removed() {
    let mut stage = enforced();
    let mut orphan = stage.object(Kind::Validating, "assent.cluster.a").unwrap();
    orphan["metadata"]["name"] = "assent.cluster.b".into();
    orphan["metadata"]["uid"] = uid("b's webhook").into();
    let annotations = &mut orphan["metadata"]["annotations"];
    annotations["policies.assent.dev/policy"] = "cluster/b".into();
    annotations["policies.assent.dev/policy-uid"] = uid("b").into();
    stage.apply(Kind::Validating, orphan);
    assert_eq!(stage.go(), ["remove orphans: assent.cluster.b"]);
    assert_eq!(stage.names(Kind::Validating), ["assent.cluster.a"]);
}
