//! Policies that read objects of the cluster: who may, and when they are accepted.

use std::time::Duration;

use assent_controller::contexts::{
    CollectionReport, CollectionState, ContextEvent, KindRef, KindState,
};
use serde_json::{Value, json};

use crate::{harness::Harness, world::World};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    policy_waits_until_its_objects_are_listed,
    absent_kind_is_refused_and_heals,
    kind_that_the_control_plane_may_not_read_is_refused,
    kind_that_the_server_does_not_allow_is_refused,
    secrets_must_be_named,
    objects_that_do_not_fit_are_refused_with_their_size,
    withdrawn_kind_keeps_the_active_revision,
    collection_ends_after_its_last_revision,
    namespaced_policy_needs_a_grant_and_reads_its_namespace_only,
    nothing_is_followed_for_policies_without_declarations,
    next_process_follows_what_is_stored,
    declared_kinds_without_objects_are_refused,
);

fn declare(kinds: &[(&str, &str)]) -> Value {
    let kinds = kinds.iter();
    kinds
        .map(|(version, kind)| json!({"apiVersion": version, "kind": kind}))
        .collect()
}

fn mk_kind(version: &str, kind: &str) -> KindRef {
    KindRef {
        api_version: version.into(),
        kind: kind.into(),
    }
}

fn ingress() -> KindRef {
    mk_kind("networking.k8s.io/v1", "Ingress")
}

fn mk_served(namespaced: bool, forbidden: Option<&str>) -> KindState {
    KindState::Served {
        plural: "things".into(),
        namespaced,
        forbidden: forbidden.map(str::to_owned),
    }
}

impl<W: World> Harness<W> {
    fn kind_is(&mut self, kind: KindRef, state: KindState) {
        let event = ContextEvent::Kind(kind, state);
        self.controller.context(self.now(), event);
    }

    /// Reports the state of everything that is followed.
    fn collections_are(&mut self, state: CollectionState, bytes: u64) {
        for followed in self.followed.clone() {
            let report = CollectionReport {
                state,
                detail: "why".into(),
                objects: 3,
                bytes,
                largest: vec![("status".into(), bytes / 2)],
            };
            let event = ContextEvent::Collection(followed.spec.id(), report);
            self.controller.context(self.now(), event);
        }
    }

    fn put_reader(&mut self, name: &str, kinds: &[(&str, &str)]) {
        let kinds = declare(kinds);
        self.put_policy(name, |spec| spec["contextAwareResources"] = kinds.clone());
    }

    /// A policy `a` that reads Ingresses and is enforced.
    fn reading() -> Self {
        let mut harness = Self::with_replicas(&REPLICAS);
        harness.put_reader("a", &[("networking.k8s.io/v1", "Ingress")]);
        harness.run();
        harness.kind_is(ingress(), mk_served(true, None));
        harness.run();
        harness.collections_are(CollectionState::Synced, 10);
        harness.run_with(&REPLICAS);
        assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
        harness
    }
}

fn policy_waits_until_its_objects_are_listed<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_reader("a", &[("networking.k8s.io/v1", "Ingress")]);
    assert_eq!(harness.run(), ["vet a 1"]);
    assert_eq!(harness.kinds, [ingress()]);
    assert_eq!(harness.followed, [], "nothing is read of an unknown kind");
    harness.kind_is(ingress(), mk_served(true, None));
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "Unknown Pending");
    assert_eq!(harness.followed[0].limit, Some(256 << 20));
    assert_eq!(harness.assigned["default"].collections, []);
    harness.collections_are(CollectionState::Syncing, 5);
    assert!(harness.run().is_empty());
    harness.collections_are(CollectionState::Synced, 10);
    assert_eq!(harness.run(), ["store a 1"]);
    // Evaluators get it together with the candidate; what they have is not dropped for its size.
    assert_eq!(harness.assigned["default"].collections.len(), 1);
    assert_eq!(harness.followed[0].limit, None);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
}

fn absent_kind_is_refused_and_heals<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_reader("a", &[("networking.k8s.io/v1", "Ingress")]);
    harness.run();
    harness.kind_is(ingress(), KindState::Absent);
    harness.run();
    assert_eq!(harness.condition("a", "Accepted"), "False ContextAbsent");
    let message = harness.message("a", "Accepted");
    assert!(
        message.contains("does not serve Ingress (networking.k8s.io/v1)"),
        "{message}"
    );
    assert_eq!(harness.followed, []);
    assert_eq!(harness.kinds, [ingress()], "the kind may appear");
    harness.kind_is(ingress(), mk_served(true, None));
    assert_eq!(harness.run(), ["vet a 1"]);
    harness.collections_are(CollectionState::Synced, 10);
    assert_eq!(harness.run(), ["store a 1"]);
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
}

fn kind_that_the_control_plane_may_not_read_is_refused<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_reader("a", &[("networking.k8s.io/v1", "Ingress")]);
    harness.run();
    harness.kind_is(ingress(), mk_served(true, Some("it lacks list")));
    harness.run();
    assert_eq!(harness.condition("a", "Accepted"), "False ContextForbidden");
    let message = harness.message("a", "Accepted");
    assert!(
        message.contains("it lacks list; create a ClusterRole"),
        "{message}"
    );
    assert_eq!(harness.followed, []);
    harness.kind_is(ingress(), mk_served(true, None));
    assert_eq!(harness.run(), ["vet a 1"]);
}

fn kind_that_the_server_does_not_allow_is_refused<W: World>() {
    let mut harness = Harness::<W>::reading();
    harness.put_server("default", |spec| {
        spec["context"] = json!({"allow": [{"apiVersion": "v1", "kind": "Pod"}]});
    });
    harness.run();
    assert_eq!(harness.condition("a", "Accepted"), "False ContextForbidden");
    let message = harness.message("a", "Accepted");
    assert!(
        message.contains("does not allow its policies to read Ingress"),
        "{message}"
    );
    // What is active stays, and its objects with it.
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
    assert_eq!(harness.assigned["default"].collections.len(), 1);
    harness.put_server("default", |spec| {
        spec["context"] = json!({"allow": [{"apiVersion": "networking.k8s.io/*", "kind": "*"}]});
    });
    harness.run();
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
}

fn secrets_must_be_named<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_server("default", |spec| {
        spec["context"] = json!({"allow": [{"apiVersion": "*", "kind": "*"}]});
    });
    harness.put_reader("a", &[("v1", "Secret")]);
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("a", "Accepted"), "False ContextForbidden");
    harness.put_server("default", |spec| {
        spec["context"] = json!({"allow": [{"apiVersion": "v1", "kind": "Secret"}]});
    });
    assert_eq!(harness.run(), ["vet a 1"]);
}

fn objects_that_do_not_fit_are_refused_with_their_size<W: World>() {
    let mut harness = Harness::<W>::reading();
    harness.put_server("default", |spec| {
        spec["context"] = json!({"memoryLimit": "4Mi"})
    });
    harness.run();
    harness.collections_are(CollectionState::Synced, 3 << 20);
    harness.put_reader("b", &[("v1", "Pod")]);
    harness.run();
    harness.kind_is(mk_kind("v1", "Pod"), mk_served(true, None));
    harness.run();
    let first = harness.followed.len();
    harness.collections_are(CollectionState::Synced, 3 << 20);
    assert!(harness.run().is_empty());
    assert_eq!(harness.condition("b", "Accepted"), "False ContextTooLarge");
    let message = harness.message("b", "Accepted");
    let size = "3 objects of Pod (v1) take 3 MiB, and the evaluators of the PolicyServer \"default\" have 1 MiB left of 4 MiB";
    assert!(message.contains(size), "{message}");
    assert!(
        message.contains("most of it is status (1 MiB)"),
        "{message}"
    );
    // The first policy is not affected.
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
    // Its objects leave memory, and are listed again later.
    harness.pass(Duration::from_secs(1));
    harness.run();
    assert_eq!(first, 2);
    harness.pass(Duration::from_secs(31));
    assert_eq!(harness.run(), ["vet b 1"]);
}

fn withdrawn_kind_keeps_the_active_revision<W: World>() {
    let mut harness = Harness::<W>::reading();
    for (state, reason) in [
        (KindState::Absent, "False ContextAbsent"),
        (mk_served(true, Some("withdrawn")), "False ContextForbidden"),
    ] {
        harness.kind_is(ingress(), state);
        harness.run();
        assert_eq!(harness.condition("a", "Accepted"), reason);
        assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
        assert_eq!(harness.assigned["default"].collections.len(), 1);
    }
    harness.kind_is(ingress(), mk_served(true, None));
    assert!(harness.run().is_empty(), "nothing has to be vetted again");
    assert_eq!(harness.condition("a", "Accepted"), "True Accepted");
}

fn collection_ends_after_its_last_revision<W: World>() {
    let mut harness = Harness::<W>::reading();
    harness.put_policy("a", |spec| *spec = crate::harness::mk_spec());
    harness.run_with(&REPLICAS);
    assert_eq!(harness.world.routed("a"), Some(2));
    assert_eq!(harness.followed.len(), 1, "evaluators may still use it");
    // Longer than the old revision drains and its collection lingers.
    for _ in 0..20 {
        harness.pass(Duration::from_secs(10));
        harness.run_with(&REPLICAS);
    }
    assert_eq!(harness.followed, []);
    assert_eq!(harness.kinds, []);
    assert_eq!(harness.assigned["default"].collections, []);
}

fn namespaced_policy_needs_a_grant_and_reads_its_namespace_only<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_reader("team/a", &[("networking.k8s.io/v1", "Ingress")]);
    assert!(harness.run().is_empty());
    assert_eq!(
        harness.condition("team/a", "Accepted"),
        "False ContextForbidden"
    );
    let message = harness.message("team/a", "Accepted");
    assert!(
        message.contains("spec.namespacedPoliciesCapabilities"),
        "{message}"
    );
    harness.put_server("default", |spec| {
        spec["namespacedPoliciesCapabilities"] = json!(["kubernetes/*"]);
    });
    assert_eq!(harness.run(), ["vet a 1"]);
    harness.kind_is(ingress(), mk_served(false, None));
    harness.run();
    let message = harness.message("team/a", "Accepted");
    assert!(
        message.contains("Ingress (networking.k8s.io/v1) is cluster-scoped"),
        "{message}"
    );
    harness.kind_is(ingress(), mk_served(true, None));
    harness.run();
    assert_eq!(harness.followed[0].spec.namespaces(), ["team"]);
}

fn nothing_is_followed_for_policies_without_declarations<W: World>() {
    let harness = Harness::<W>::enforced(&REPLICAS, 1);
    assert_eq!(harness.kinds, []);
    assert_eq!(harness.followed, []);
    let assigned = &harness.assigned["default"];
    assert!(assigned.complete && assigned.collections.is_empty());
}

fn next_process_follows_what_is_stored<W: World>() {
    let mut harness = Harness::<W>::reading().restart(true, &REPLICAS);
    harness.run_with(&REPLICAS);
    assert_eq!(harness.kinds, [ingress()]);
    assert!(
        !harness.assigned["default"].complete,
        "evaluators must keep what they hold"
    );
    harness.kind_is(ingress(), mk_served(true, None));
    harness.run_with(&REPLICAS);
    let assigned = &harness.assigned["default"];
    assert!(assigned.complete);
    assert_eq!(assigned.collections.len(), 1);
    assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
}

fn declared_kinds_without_objects_are_refused<W: World>() {
    let mut harness = Harness::<W>::without_context("there are none");
    harness.put_reader("a", &[("networking.k8s.io/v1", "Ingress")]);
    assert!(harness.run().is_empty(), "nothing must be vetted");
    assert_eq!(
        harness.condition("a", "Accepted"),
        "False ContextUnavailable"
    );
    let message = harness.message("a", "Accepted");
    assert_eq!(message, "spec.contextAwareResources: there are none");
    assert_eq!(harness.condition("a", "Ready"), "False NotServed");
    harness.put_policy("a", |spec| *spec = crate::harness::mk_spec());
    assert_eq!(harness.run(), ["vet a 2", "store a 2"]);
}
