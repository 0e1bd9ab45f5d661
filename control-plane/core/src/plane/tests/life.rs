//! Policies and replicas from their first sight to their end.

use super::*;

#[test]
fn a_change_goes_candidate_flip_drain() {
    let mut script = Script::enforced();
    script.observe("p", 2).ready("p", 2);
    script
        .settle(&["publish p/1 active p/2 candidate"])
        .pass(2_000);
    script.takes("x", 1, &["p: flip 1 to 2", "applied after 2s"]);
    script.enforced_is("WebhookPending");
    script.flipped(
        "p",
        2,
        &["p: enforced after 2s", "publish p/1 retired p/2 active"],
    );
    script
        .enforced_is("Enforced")
        .pass(1_000)
        .takes("x", 1, &["applied after 1s"]);
    script.wait(59_000, &["p: retire 1"]);
    // It is stored as history first, and leaves the snapshot then.
    script.pass(5_000);
    script.policy("p", Input::Retired(mk_revision("p", 1)), &[]);
    script
        .settle(&["publish p/2 active"])
        .takes("x", 1, &["applied after 0ns"]);
}

#[test]
fn requests_on_a_retired_path_prolong_its_drain() {
    let mut script = Script::enforced();
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script
        .pass(1_000)
        .takes("x", 1, &["p: flip 1 to 2", "applied after 1s"]);
    script.flipped(
        "p",
        2,
        &["p: enforced after 1s", "publish p/1 retired p/2 active"],
    );
    script.pass(50_000);
    script.step(mk_requests("p", 1), &[]);
    script.step(mk_requests("p", 2), &[]);
    script.step(mk_requests("stranger", 1), &[]);
    script.wait(30_000, &["p: retire 1"]);
}

#[test]
fn r37_nothing_flips_without_replicas() {
    let mut script = Script::synced();
    script
        .add("p")
        .settle(&["publish p/1 candidate"])
        .pass(1_000);
    script.enforced_is("NotProgrammed").wait(599_000, &[]);
    let status = script.plane.status(&mk_id("p")).unwrap();
    assert_eq!(
        status.condition(ConditionType::Programmed).reason.as_str(),
        "NoReplicas"
    );
}

#[test]
fn r37_a_joining_replica_blocks_a_flip_but_undoes_nothing() {
    let mut script = Script::enforced();
    script.open("y", "i", 2).settle(&[]).enforced_is("Enforced");
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script
        .takes("x", 1, &[])
        .enforced_is("NotProgrammed")
        .pass(1_000);
    script.takes("y", 2, &["p: flip 1 to 2", "applied after 1s"]);
}

#[test]
fn r37_disconnected_replica_blocks_until_its_grace_ends() {
    let mut script = Script::enforced();
    script
        .open("y", "i", 2)
        .takes("y", 2, &[])
        .close("y", 2)
        .settle(&[]);
    script.enforced_is("Enforced");
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script.takes("x", 1, &[]);
    script.wait(60_000, &["p: flip 1 to 2", "applied after 60s"]);
}

#[test]
fn r37_a_reconnect_causes_no_flap() {
    let mut script = Script::enforced();
    script
        .close("x", 1)
        .settle(&[])
        .enforced_is("Enforced")
        .pass(30_000);
    script.open("x", "i", 2).settle(&[]).enforced_is("Enforced");
    script.takes("x", 2, &[]).enforced_is("Enforced");
}

#[test]
fn r28_a_superseded_stream_neither_flips_nor_blocks() {
    let mut script = Script::enforced();
    script.open("x", "i", 2);
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    // The older stream's acknowledgement, late.
    script.takes("x", 1, &[]).pass(1_000);
    script.takes("x", 2, &["p: flip 1 to 2", "applied after 1s"]);
    // Its refusal and its end are as void.
    let published = script.published();
    script
        .report("x", 1, mk_refused(&published, None))
        .close("x", 1)
        .settle(&[]);
    script.enforced_is("WebhookPending");
}

#[test]
fn r38_a_late_nack_before_the_webhook_changed_is_seen() {
    let mut script = Script::enforced();
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script
        .pass(1_000)
        .takes("x", 1, &["p: flip 1 to 2", "applied after 1s"]);
    script.policy("p", Input::FlipFailed, &[]);
    let late = mk_applied(&script.published(), &[mk_rejection("p", 2)]);
    script.report("x", 1, late).settle(&[]).pass(1_000);
    script.takes("x", 1, &["p: flip 1 to 2"]);
}

#[test]
fn i8_a_refused_policy_holds_back_no_other() {
    let mut script = Script::synced();
    script.open("x", "i", 1).add("p").add("q");
    script.settle(&["publish p/1 candidate q/1 candidate"]);
    let partly = mk_applied(&script.published(), &[mk_rejection("q", 1)]);
    script
        .report("x", 1, partly)
        .settle(&["p: flip none to 1"])
        .pass(1_000);
    script.flipped(
        "p",
        1,
        &["p: enforced after 1s", "publish p/1 active q/1 candidate"],
    );
}

#[test]
fn a_refused_generation_is_reported_and_changes_nothing() {
    let mut script = Script::enforced();
    let refusal = Refusal {
        reason: rollout::RefusalReason::PullError,
        message: "registry is away".into(),
    };
    script
        .observe("p", 2)
        .step(Event::refused(mk_id("p"), 2, refusal), &[])
        .settle(&[]);
    let status = script.plane.status(&mk_id("p")).unwrap();
    assert_eq!(
        status.condition(ConditionType::Accepted).reason.as_str(),
        "PullError"
    );
    assert_eq!(
        status.condition(ConditionType::Ready).reason.as_str(),
        "LastGood"
    );
}

#[test]
fn deleted_policy_drains_and_leaves_the_snapshot() {
    let mut script = Script::enforced();
    script
        .policy("p", Input::Deleted, &["p: unroute"])
        .settle(&[])
        .pass(30_000);
    script
        .policy("p", Input::WebhookRemoved, &[])
        .settle(&["publish p/1 retired"]);
    script.wait(10_000, &["p: release", "publish"]);
    assert!(script.plane.status(&mk_id("p")).is_none());
    // Whatever comes late finds nobody.
    script
        .policy("p", Input::Flipped(mk_revision("p", 1)), &[])
        .settle(&[]);
}

#[test]
fn f17_deleted_and_created_again_are_two_policies() {
    let mut script = Script::enforced();
    let uid = "aaaa0000-0000-4000-8000-000000000000";
    let again = PolicyId {
        uid: uid.into(),
        ..mk_id("p")
    };
    let revision = Arc::new(Policy::new(again.key.clone(), 1, uid, mk_content("new"), 8));
    script.policy("p", Input::Deleted, &["p: unroute"]);
    script.step(
        mk_observed(again.clone(), "default", 1, StoredRevisions::default()),
        &[],
    );
    script.step(Event::ready(again.clone(), revision.clone()), &[]);
    // Both are answered, each on a path of its own.
    script.settle(&["publish p/1 active p/1 candidate"]);
    assert!(script.published().contains(mk_revision("p", 1).as_str()));
    assert!(script.published().contains("cluster/p/1-aaaa0000"));
    assert_eq!(script.plane.rollout(&again.key).unwrap().id(), &again);
    script.policy("p", Input::WebhookRemoved, &[]).takes(
        "x",
        1,
        &["p: flip none to 1", "applied after 0ns"],
    );
    let flipped = Event::Rollout(again.clone(), Input::Flipped(revision.revision.clone()));
    script
        .step(flipped, &["p: enforced after 0ns"])
        .settle(&[])
        .wait(50, &["publish p/1 retired p/1 active"]);
    script.wait(9_950, &["p: release", "publish p/1 active"]);
    assert_eq!(script.plane.rollouts().count(), 1);
}

#[test]
fn lookup_by_name_ignores_longer_names() {
    let mut script = Script::synced();
    script.add("p-long").settle(&["publish p-long/1 candidate"]);
    assert!(script.plane.rollout(&PolicyKey::cluster("p")).is_none());
    assert!(
        script
            .plane
            .rollout(&PolicyKey::cluster("p-long"))
            .is_some()
    );
}

#[test]
fn a_rollback_is_a_new_revision_with_equal_content() {
    let mut script = Script::enforced();
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script
        .takes("x", 1, &["p: flip 1 to 2", "applied after 0ns"])
        .pass(1_000);
    script.flipped(
        "p",
        2,
        &["p: enforced after 1s", "publish p/1 retired p/2 active"],
    );
    script.takes("x", 1, &["applied after 0ns"]).pass(1_000);
    let content = mk_policy("p", 1).content.clone();
    let back = Arc::new(Policy::new(
        PolicyKey::cluster("p"),
        3,
        crate::fixtures::UID,
        content,
        8,
    ));
    assert_eq!(back.content_digest, mk_policy("p", 1).content_digest);
    script
        .observe("p", 3)
        .step(Event::ready(mk_id("p"), back), &[]);
    script.settle(&["publish p/1 retired p/2 active p/3 candidate"]);
    script.takes("x", 1, &["p: flip 2 to 3", "applied after 0ns"]);
}

#[test]
fn r32_a_restart_computes_the_same_version() {
    let mut script = Script::enforced();
    script
        .observe("p", 2)
        .ready("p", 2)
        .settle(&["publish p/1 active p/2 candidate"]);
    script
        .takes("x", 1, &["p: flip 1 to 2", "applied after 0ns"])
        .pass(1_000);
    script.flipped(
        "p",
        2,
        &["p: enforced after 1s", "publish p/1 retired p/2 active"],
    );
    script.pass(1_000).observe("p", 3).ready("p", 3).add("q");
    script.settle(&["publish p/1 retired p/2 active p/3 candidate q/1 candidate"]);
    let mut next = Script::new();
    let stored = StoredRevisions {
        active: Some(mk_policy("p", 2)),
        candidates: vec![mk_policy("p", 3)],
        draining: vec![mk_policy("p", 1)],
        ..StoredRevisions::default()
    };
    let q = StoredRevisions {
        candidates: vec![mk_policy("q", 1)],
        ..StoredRevisions::default()
    };
    next.step(mk_observed(mk_id("q"), "default", 1, q), &[]);
    next.step(mk_observed(mk_id("p"), "default", 3, stored), &[]);
    next.settle(&[]).step(Event::Synced, &[]);
    next.settle(&["publish p/1 retired p/2 active p/3 candidate q/1 candidate"]);
    assert_eq!(next.published().version(), script.published().version());
}

#[test]
fn what_is_stored_is_looked_at_once() {
    let mut script = Script::enforced();
    let stored = StoredRevisions {
        active: Some(mk_policy("p", 7)),
        ..StoredRevisions::default()
    };
    script
        .step(mk_observed(mk_id("p"), "default", 1, stored), &[])
        .settle(&[]);
}

#[test]
fn expected_replicas_count_from_the_start() {
    let mut script = Script::synced();
    let event = Event::ReplicasExpected {
        server: "default".into(),
        replicas: vec!["x".into(), "y".into()],
    };
    script.step(event, &[]).open("x", "i", 1).add("p");
    script.settle(&["publish p/1 candidate"]).takes("x", 1, &[]);
    let heard = StreamEvent::Heartbeat {
        server: "default".into(),
        replica: "x".into(),
    };
    script.step(heard, &[]).settle(&[]);
    script
        .open("y", "i", 2)
        .takes("y", 2, &["p: flip none to 1", "applied after 0ns"]);
}
