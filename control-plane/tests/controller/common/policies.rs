//! A policy's generations: vetted, accepted, rejected, retried, superseded.

use assent_controller::{Action, Failure};
use assent_core::rollout::{Refusal, RefusalReason};

use crate::{
    harness::{Harness, mk_module, mk_spec, settings},
    world::World,
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    new_policy_is_vetted_stored_and_flipped,
    policy_of_a_missing_server_waits_for_it,
    bad_edit_is_rejected_and_the_active_revision_stays,
    failed_pull_is_retried_and_reported,
    missing_signature_is_retried,
    crashing_module_is_vetted_twice_and_then_rejected,
    result_of_an_older_generation_is_ignored,
    history_keeps_as_many_revisions_as_the_policy_says,
    superseded_candidate_is_deleted,
    revision_that_could_not_be_stored_is_retried,
    server_grants_host_calls,
);

fn new_policy_is_vetted_stored_and_flipped<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let done = harness.run_with(&REPLICAS);
    let expected = [
        "vet a 1",
        "store a 1",
        "check replicas for a 1",
        "flip a 1",
        "a 1 is Active",
    ];
    assert_eq!(done, expected);
    assert_eq!(harness.world.routed("a"), Some(1));
    assert_eq!(harness.world.phases("a"), ["1 Active"]);
}

fn policy_of_a_missing_server_waits_for_it<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |spec| spec["policyServer"] = "later".into());
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "False TargetNotFound");
    harness.put_server("later", |_| {});
    let done = harness.run();
    assert!(done.contains(&"vet a 1".to_owned()), "{done:?}");
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
}

fn bad_edit_is_rejected_and_the_active_revision_stays<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| {
        spec["module"] = "registry://example.com/bad:v1".into()
    });
    let job = harness.only_vet();
    harness.vetted(&job, Err(Failure::invalid("it is not a module")));
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "False Invalid");
    assert_eq!(harness.condition("a", "Ready"), "True LastGood");
    assert_eq!(harness.world.routed("a"), Some(1));
    // Corrected, it is a generation like any other.
    harness.put_policy("a", |spec| *spec = mk_spec());
    assert_eq!(harness.run(), ["vet a 3", "store a 3"]);
}

fn failed_pull_is_retried_and_reported<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let job = harness.only_vet();
    harness.vetted(&job, Err(Failure::temporary("no route to host")));
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "False PullError");
    let message = harness.message("a", "Accepted");
    assert_eq!(message, "no route to host; retrying");
    harness.pass(std::time::Duration::from_secs(3));
    assert_eq!(harness.run(), ["vet a 1", "store a 1"]);
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
}

fn unsigned() -> Failure {
    Failure {
        refusal: Refusal {
            reason: RefusalReason::SignatureRejected,
            message: "no known key has signed it".into(),
        },
        retryable: false,
    }
}

fn missing_signature_is_retried<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let job = harness.only_vet();
    harness.vetted(&job, Err(unsigned()));
    assert!(harness.run().is_empty());
    assert_eq!(
        harness.condition("a", "Accepted"),
        "False SignatureRejected"
    );
    let events = harness.events();
    let rejected = events.iter().filter(|e| *e == "a SignatureRejected");
    assert_eq!(rejected.count(), 1, "{events:?}");
    // Somebody signs it.
    harness.pass(std::time::Duration::from_secs(3));
    assert_eq!(harness.run(), ["vet a 1", "store a 1"]);
}

fn crashing_module_is_vetted_twice_and_then_rejected<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let crashed = || Failure {
        retryable: true,
        ..Failure::invalid("crashed while being vetted")
    };
    let job = harness.only_vet();
    harness.vetted(&job, Err(crashed()));
    assert!(harness.run().is_empty());
    harness.pass(std::time::Duration::from_secs(3));
    let job = harness.only_vet();
    harness.vetted(&job, Err(crashed()));
    harness.pass(std::time::Duration::from_secs(3_600));
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "False Invalid");
}

fn result_of_an_older_generation_is_ignored<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let old = harness.only_vet();
    harness.put_policy("a", |spec| settings(spec, 2));
    let new = harness.only_vet();
    assert_eq!((old.generation, new.generation), (1, 2));
    // It ended before it was replaced.
    harness.vetted(&old, Ok(mk_module(&old.url)));
    assert!(harness.run().is_empty());
    harness.vetted(&new, Ok(mk_module(&new.url)));
    assert_eq!(harness.run(), ["store a 2"]);
}

fn history_keeps_as_many_revisions_as_the_policy_says<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    for n in 1..=4 {
        harness.put_policy("a", |spec| {
            spec["revisionHistoryLimit"] = 1.into();
            settings(spec, n);
        });
        harness.run_with(&REPLICAS);
    }
    assert_eq!(harness.world.phases("a"), ["3 History", "4 Active"]);
}

fn superseded_candidate_is_deleted<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    let mut done = Vec::new();
    for n in 2..=3 {
        harness.put_policy("a", |spec| settings(spec, n));
        done.extend(harness.run());
    }
    done.extend(harness.run_with(&REPLICAS));
    assert!(done.contains(&"retire a 2: delete".to_owned()), "{done:?}");
    assert!(done.contains(&"retire a 1: keep".to_owned()), "{done:?}");
    assert_eq!(harness.world.phases("a"), ["1 History", "3 Active"]);
}

fn revision_that_could_not_be_stored_is_retried<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let vet = harness.only_action();
    harness.perform(vet);
    let Action::StoreRevision(store) = harness.only_action() else {
        panic!("a revision must be stored");
    };
    let failure = Failure::temporary("the API server is away");
    let outcome = assent_controller::Outcome::NotStored(store.id, 1, failure);
    harness.controller.outcome(harness.now(), outcome);
    assert_eq!(harness.condition("a", "Accepted"), "False PullError");
    harness.pass(std::time::Duration::from_secs(3));
    assert_eq!(harness.run(), ["vet a 1", "store a 1"]);
}

fn server_grants_host_calls<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let job = harness.only_vet();
    let default = ["crypto/*", "kubernetes/*", "oci/*"];
    assert_eq!(job.granted_capabilities, default);
    harness.put_server("default", |spec| {
        spec["hostCapabilities"] = serde_json::json!(["net/*"]);
    });
    harness.run();
    harness.put_policy("a", |spec| settings(spec, 2));
    assert_eq!(harness.only_vet().granted_capabilities, ["net/*"]);
}
