//! Rollbacks go to a revision that was active.

use assent_api::parse::Rollback;
use serde_json::{Value, json};

use crate::{
    harness::{Harness, settings},
    world::World,
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    previous_is_the_revision_active_before,
    previous_ignores_a_pending_candidate,
    generation_can_be_named,
    unknown_generation_is_rejected_with_those_there_are,
    candidate_is_no_target,
    two_requests_share_one_rollback,
    first_revision_has_no_previous,
    unknown_policy_is_not_found,
);

fn current<W: World>(harness: &Harness<W>) -> Value {
    harness.world.spec("a").unwrap()["settings"].clone()
}

fn previous_is_the_revision_active_before<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 2);
    harness.roll_back("a", Rollback::Previous, 1);
    let done = harness.run_with(&REPLICAS);
    assert_eq!(done[..2], ["roll a back to 1", "vet a 3"]);
    assert_eq!(harness.answers[&1], Ok((1, 3)));
    assert_eq!(current(&harness), json!({ "n": 1 }));
    assert!(harness.events().contains(&"a RolledBack".to_owned()));
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    // Again: what was active before is generation 2 now.
    harness.roll_back("a", Rollback::Previous, 2);
    assert_eq!(harness.run_with(&REPLICAS)[0], "roll a back to 2");
    assert_eq!(current(&harness), json!({ "n": 2 }));
}

/// Generation 2 is active and 3 is stored, but nobody serves it.
fn previous_ignores_a_pending_candidate<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 2);
    harness.put_policy("a", |spec| settings(spec, 3));
    harness.run();
    harness.roll_back("a", Rollback::Previous, 1);
    assert_eq!(harness.run()[0], "roll a back to 1");
    assert_eq!(harness.answers[&1], Ok((1, 4)));
}

fn generation_can_be_named<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 3);
    harness.roll_back("a", Rollback::Generation(2), 1);
    assert_eq!(harness.run()[0], "roll a back to 2");
    assert_eq!(harness.answers[&1], Ok((2, 4)));
    assert_eq!(current(&harness), json!({ "n": 2 }));
}

fn unknown_generation_is_rejected_with_those_there_are<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 3);
    harness.roll_back("a", Rollback::Generation(7), 1);
    let done = harness.run();
    let why = "there is no revision of generation 7 to roll back to; there are: 3, 2, 1";
    assert_eq!(done, [format!("do not roll a back: {why}")]);
    assert!(harness.answers[&1].is_err());
    assert!(harness.events().contains(&"a RollbackRefused".to_owned()));
    assert_eq!(current(&harness), json!({ "n": 3 }));
}

fn candidate_is_no_target<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    harness.roll_back("a", Rollback::Generation(2), 1);
    harness.run();
    assert!(harness.answers[&1].is_err());
}

fn two_requests_share_one_rollback<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 2);
    harness.roll_back("a", Rollback::Previous, 1);
    harness.roll_back("a", Rollback::Previous, 2);
    let action = harness.only_action();
    harness.perform(action);
    harness.run();
    assert_eq!(harness.answers[&1], Ok((1, 3)));
    assert_eq!(harness.answers[&2], Ok((1, 3)));
}

fn first_revision_has_no_previous<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.roll_back("a", Rollback::Previous, 1);
    let why = "there is no earlier revision to roll back to";
    assert_eq!(harness.run(), [format!("do not roll a back: {why}")]);
}

fn unknown_policy_is_not_found<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.roll_back("nobody", Rollback::Previous, 1);
    assert!(harness.run().is_empty());
    let answer = harness.answers[&1].clone().unwrap_err();
    assert_eq!(answer.to_string(), "there is no policy cluster/nobody");
}
