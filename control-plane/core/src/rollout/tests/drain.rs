//! How revisions and policies leave.

use super::*;

#[test]
fn a_drain_lasts_its_minimum() {
    let mut script = Script::active();
    script.pass(100).roll_out(2).holds(&[(2, Active), (1, Old)]);
    script
        .at(160, &["retire 1"])
        .holds(&[(2, Active), (1, Old)]);
    script.retired(1).holds(&[(2, Active)]).settle(&[]);
    assert_eq!(script.rollout.deadline(), None);
}

#[test]
fn a_drain_waits_for_quiet() {
    let mut script = Script::active();
    script.pass(100).roll_out(2);
    let request = || Input::Request(mk_revision("p", 1));
    // Early requests change nothing; late ones prolong.
    script.pass(110).step(request(), &[]);
    assert_eq!(script.rollout.deadline(), Some(Millis(160_000)));
    script.pass(150).step(request(), &[]).pass(165).settle(&[]);
    script.step(request(), &[]).at(195, &["retire 1"]);
    // Nor do those to a revision that does not drain.
    script
        .step(Input::Request(mk_revision("p", 2)), &[])
        .settle(&[]);
}

#[test]
fn a_drain_has_an_end() {
    let mut script = Script::active();
    script.pass(100).roll_out(2);
    for second in (100..390).step_by(10) {
        let request = Input::Request(mk_revision("p", 1));
        script.pass(second).step(request, &[]).settle(&[]);
    }
    script.at(400, &["retire 1"]);
}

#[test]
fn two_drain_at_once() {
    let mut script = Script::active();
    script
        .roll_out(2)
        .settle(&[])
        .roll_out(3)
        .settle(&[])
        .roll_out(4);
    script.holds(&[(4, Active), (1, Old), (2, Old), (3, Old)]);
    script.settle(&["retire 1"]).retired(1);
    script.holds(&[(4, Active), (2, Old), (3, Old)]);
}

#[test]
fn deleted_policy_drains_after_its_webhook_is_removed() {
    let mut script = Script::active();
    script.observe(2).ready(2).pass(5);
    script
        .step(Input::Deleted, &["unroute"])
        .step(Input::Deleted, &[]);
    assert!(script.rollout.is_deleting());
    // Nothing flips any more. The candidate leaves; the active revision stays active while the
    // webhook may name it.
    script.complete(2, &[]).holds(&[(1, Active)]);
    assert_eq!(script.rollout.deadline(), None);
    script.pass(700).settle(&[]);
    script
        .step(Input::WebhookRemoved, &[])
        .step(Input::WebhookRemoved, &[]);
    script.holds(&[(1, Old)]);
    script.at(710, &["release"]).holds(&[]);
    assert!(script.rollout.is_gone());
    assert_eq!(script.rollout.deadline(), None);
}

#[test]
fn unrequested_webhook_removal_is_ignored() {
    let mut script = Script::active();
    script.step(Input::WebhookRemoved, &[]).settle(&[]);
    assert!(!script.rollout.is_deleting());
    script.holds(&[(1, Active)]);
}

#[test]
fn deleted_while_the_webhook_changes() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.step(Input::Deleted, &["unroute"]);
    script.flipped(2, &["enforced after 0ns"]).settle(&[]);
    script.holds(&[(2, Active), (1, Old)]);
    script.step(Input::WebhookRemoved, &[]);
    script.holds(&[(2, Old), (1, Old)]).at(10, &["release"]);
}

#[test]
fn r43_candidate_that_may_be_pointed_at_drains() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.step(Input::Deleted, &["unroute"]);
    script.holds(&[(1, Active), (2, Next)]);
    script.step(Input::WebhookRemoved, &[]);
    script.holds(&[(1, Old), (2, Old)]);
    // The flip failed after all.
    script.step(Input::FlipFailed, &[]).holds(&[(1, Old)]);
    script.at(10, &["release"]);
}

#[test]
fn r43_policy_that_was_never_active_is_released_at_once() {
    let mut script = Script::new(1);
    script.observe(1).ready(1).holds(&[(1, Next)]);
    script.observe(2).ready(2).holds(&[(2, Next), (1, Next)]);
    script.step(Input::Deleted, &["unroute"]).holds(&[]);
    script.settle(&[]);
    script.step(Input::WebhookRemoved, &[]).settle(&["release"]);
    assert!(script.rollout.is_gone());
}
