//! Keys of a PolicyServer that change while its policies are enforced.

use serde_json::{Value, json};

use crate::{
    harness::{Harness, mk_module, settings},
    world::World,
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    new_keys_are_checked_against_what_is_active,
    signature_that_counts_again_is_reported,
    signer_is_recorded_and_checked_first,
    result_for_replaced_keys_is_ignored,
    rejected_signature_is_found_again_after_a_restart,
);

fn require(keys: &'static [&'static str]) -> impl Fn(&mut Value) {
    move |spec| spec["verification"] = json!({ "publicKeys": keys })
}

fn new_keys_are_checked_against_what_is_active<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.events();
    harness.put_server("default", require(&["new"]));
    let check = harness.only_signature();
    assert_eq!(
        (check.keys.as_slice(), &check.signer),
        (&["new".to_owned()][..], &None)
    );
    assert_eq!(check.revision.generation(), Some(1));
    // Nothing is reported before it is known.
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    harness.signature_checked(&check, Err("it has no signature".into()));
    assert!(harness.run().is_empty(), "it must stay enforced");
    assert_eq!(harness.world.routed("a"), Some(1));
    assert_eq!(harness.condition("a", "Enforced"), "True SignatureRejected");
    let message = harness.message("a", "Enforced");
    assert!(message.ends_with(", but it has no signature"), "{message}");
    assert_eq!(harness.condition("a", "Ready"), "True Current");
    assert_eq!(harness.events(), ["a SignatureRejected"]);
    // Keys that nobody requires any more reject nothing.
    harness.put_server("default", |spec| {
        spec.as_object_mut().unwrap().remove("verification");
    });
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    assert_eq!(harness.events(), ["a Enforced"]);
}

fn signature_that_counts_again_is_reported<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_server("default", require(&["new"]));
    let check = harness.only_signature();
    harness.signature_checked(&check, Err("it has no signature".into()));
    harness.put_server("default", require(&["new", "old"]));
    let check = harness.only_signature();
    harness.signature_checked(&check, Ok(()));
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
}

fn signer_is_recorded_and_checked_first<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_server("default", require(&["key"]));
    harness.run();
    harness.put_policy("a", |spec| settings(spec, 1));
    let job = harness.only_vet();
    let mut module = mk_module(&job.url);
    module.signer = Some("0123456789abcdef".into());
    harness.vetted(&job, Ok(module));
    let done = harness.run_with(&REPLICAS);
    // A candidate is checked too: the keys may have changed since it was vetted.
    let verify = "verify a 1".to_owned();
    assert_eq!(
        done.iter().filter(|one| **one == verify).count(),
        1,
        "{done:?}"
    );
    harness.put_server("default", require(&["other"]));
    let check = harness.only_signature();
    assert_eq!(check.signer.as_deref(), Some("0123456789abcdef"));
}

fn result_for_replaced_keys_is_ignored<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_server("default", require(&["first"]));
    let first = harness.only_signature();
    harness.put_server("default", require(&["second"]));
    let second = harness.only_signature();
    harness.signature_checked(&first, Err("it has no signature".into()));
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    harness.signature_checked(&second, Ok(()));
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    // The same keys again are nothing new.
    harness.put_server("default", |spec| {
        spec["verification"] = json!({ "publicKeys": ["second"] });
        spec["limits"] = json!({ "timeoutEvalSeconds": 3 });
    });
    let done = harness.run();
    assert!(!done.contains(&"verify a 1".to_owned()), "{done:?}");
}

fn rejected_signature_is_found_again_after_a_restart<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_server("default", require(&["new"]));
    let check = harness.only_signature();
    harness.signature_checked(&check, Err("it has no signature".into()));
    harness.run();
    let mut harness = harness.restart(true, &REPLICAS);
    let done = harness.run();
    assert!(done.contains(&"verify a 1".to_owned()), "{done:?}");
}
