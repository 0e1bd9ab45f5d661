//! Namespaces have what they were given, and keep what protects them.

use serde_json::json;

use crate::{
    harness::{Harness, settings},
    world::{QUOTA, World},
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    policy_of_a_namespace_needs_the_servers_permission,
    withdrawn_permission_leaves_the_active_revision,
    candidate_waits_for_a_withdrawn_permission,
    quota_goes_to_the_oldest_policies,
);

fn allow<W: World>(harness: &mut Harness<W>, server: &str, namespaces: &[&str]) {
    harness.put_server(server, |spec| {
        spec["allowedNamespaces"] = match namespaces {
            [] => json!({ "from": "None" }),
            names => json!({ "from": "Selected", "names": names }),
        };
    });
}

fn is_vetted(done: &[String]) -> bool {
    done.iter().any(|action| action.starts_with("vet "))
}

fn policy_of_a_namespace_needs_the_servers_permission<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_server("other", |_| {});
    harness.run();
    harness.put_policy("shop/p", |spec| spec["policyServer"] = "other".into());
    assert!(!is_vetted(&harness.run()));
    assert_eq!(harness.condition("shop/p", "Accepted"), "False NotAllowed");
    let message = harness.message("shop/p", "Accepted");
    assert!(message.contains("spec.allowedNamespaces"), "{message}");
    // A cluster-wide policy needs no permission, and neither does a policy of `default`.
    harness.put_policy("c", |spec| spec["policyServer"] = "other".into());
    harness.put_policy("shop/q", |_| {});
    harness.run();
    assert_eq!(harness.condition("c", "Accepted"), "True Accepted");
    assert_eq!(harness.condition("shop/q", "Accepted"), "True Accepted");
    // The permission of another namespace changes nothing.
    allow(&mut harness, "other", &["blog"]);
    assert!(!is_vetted(&harness.run()));
    assert_eq!(harness.condition("shop/p", "Accepted"), "False NotAllowed");
    allow(&mut harness, "other", &["shop"]);
    assert!(is_vetted(&harness.run()));
    assert_eq!(harness.condition("shop/p", "Accepted"), "True Accepted");
}

fn withdrawn_permission_leaves_the_active_revision<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("shop/p", |spec| settings(spec, 1));
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/p", "Enforced"), "True Enforced");
    allow(&mut harness, "default", &[]);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/p", "Accepted"), "False NotAllowed");
    assert_eq!(harness.condition("shop/p", "Enforced"), "True Enforced");
    assert_eq!(harness.condition("shop/p", "Ready"), "True Current");
    assert_eq!(harness.world.routed("shop/p"), Some(1));
    // No new generation gets in.
    harness.put_policy("shop/p", |spec| settings(spec, 2));
    assert!(!is_vetted(&harness.run_with(&REPLICAS)));
    assert_eq!(harness.condition("shop/p", "Ready"), "True LastGood");
    assert_eq!(harness.world.routed("shop/p"), Some(1));
    // The next process decides the same.
    let mut harness = harness.restart(true, &REPLICAS);
    assert!(!is_vetted(&harness.run_with(&REPLICAS)));
    assert_eq!(harness.condition("shop/p", "Accepted"), "False NotAllowed");
    assert_eq!(harness.world.routed("shop/p"), Some(1));
    allow(&mut harness, "default", &["shop"]);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/p", "Accepted"), "True Accepted");
    assert_eq!(harness.world.routed("shop/p"), Some(2));
}

fn candidate_waits_for_a_withdrawn_permission<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("shop/p", |spec| settings(spec, 1));
    harness.run_with(&REPLICAS);
    harness.put_policy("shop/p", |spec| settings(spec, 2));
    harness.run();
    allow(&mut harness, "default", &[]);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.world.routed("shop/p"), Some(1));
    assert_eq!(harness.condition("shop/p", "Accepted"), "False NotAllowed");
    assert_eq!(harness.condition("shop/p", "Ready"), "True LastGood");
    allow(&mut harness, "default", &["shop"]);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.world.routed("shop/p"), Some(2));
    assert_eq!(harness.condition("shop/p", "Ready"), "True Current");
}

fn quota_goes_to_the_oldest_policies<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    let names = ["shop/a", "shop/b", "shop/c", "shop/d", "shop/e"];
    let (within, beyond) = names.split_at(QUOTA);
    for name in names {
        harness.put_policy(name, |_| {});
    }
    // Neither policies of others nor cluster-wide ones count.
    harness.put_policy("blog/x", |_| {});
    harness.put_policy("cluster", |_| {});
    harness.run_with(&REPLICAS);
    for name in within.iter().chain(&["blog/x", "cluster"]) {
        assert_eq!(
            harness.condition(name, "Enforced"),
            "True Enforced",
            "{name}"
        );
    }
    for name in beyond {
        assert_eq!(harness.condition(name, "Accepted"), "False QuotaExceeded");
        assert_eq!(harness.world.routed(name), None);
    }
    // The next process decides the same.
    let mut harness = harness.restart(true, &REPLICAS);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/c", "Accepted"), "True Accepted");
    assert_eq!(
        harness.condition("shop/d", "Accepted"),
        "False QuotaExceeded"
    );
    // The oldest that waits takes over the place that becomes free.
    harness.delete_policy("shop/b");
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/d", "Enforced"), "True Enforced");
    assert_eq!(
        harness.condition("shop/e", "Accepted"),
        "False QuotaExceeded"
    );
    harness.delete_policy("shop/a");
    harness.delete_policy("shop/c");
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("shop/e", "Enforced"), "True Enforced");
}
