//! PolicyServers come, change and go; their policies stay.

use assent_controller::Failure;
use assent_core::rollout::{Refusal, RefusalReason};
use serde_json::json;

use crate::{harness::Harness, world::World};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    edit_reconsiders_what_the_server_determines,
    routes_go_before_their_server,
);

fn edit_reconsiders_what_the_server_determines<W: World>() {
    for (reason, reconsidered) in [
        (RefusalReason::PullError, true),
        (RefusalReason::SignatureRejected, true),
        (RefusalReason::Invalid, true),
        (RefusalReason::SettingsUnavailable, false),
    ] {
        let mut harness = Harness::<W>::with_replicas(&REPLICAS);
        harness.put_policy("a", |_| {});
        let job = harness.only_vet();
        let refusal = Refusal {
            reason,
            message: "no".into(),
        };
        let failure = Failure {
            refusal,
            retryable: false,
        };
        harness.vetted(&job, Err(failure));
        assert!(harness.run().is_empty());
        harness.put_server("default", |spec| {
            spec["limits"] = json!({ "memory": "256Mi" });
        });
        let done = harness.run();
        let vetted = done.contains(&"vet a 1".to_owned());
        assert_eq!(vetted, reconsidered, "{reason:?}: {done:?}");
        // The same spec again reconsiders nothing.
        harness.put_server("default", |_| {});
        assert!(!harness.run().iter().any(|a| a.starts_with("vet")));
    }
}

fn routes_go_before_their_server<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_server("other", |_| {});
    harness.run();
    harness.put_policy("a", |_| {});
    harness.run_with(&REPLICAS);
    harness.put_policy("b", |spec| spec["policyServer"] = "other".into());
    harness.run_with(&REPLICAS);
    harness.delete_server("other");
    let done = harness.run();
    assert!(
        done[0].starts_with("remove routes of server other"),
        "{done:?}"
    );
    assert!(harness.controller.plane().server("other").is_none());
    assert_eq!(harness.condition("b", "Accepted"), "False TargetNotFound");
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    // It is created again, and its policy continues.
    harness.put_server("other", |_| {});
    harness.run();
    assert_eq!(harness.condition("b", "Accepted"), "True Accepted");
}
