#![allow(clippy::unwrap_used)]
use std::sync::{LazyLock, Mutex};

use assent_core::{Digest, Mode, Policy, PolicyKey, policy::Content};
use assent_wasm::{Abi, Engine, EngineConfig, MemoryBudget, PolicySpec, Review};
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;

use super::{concurrency::Refusal, *};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(EngineConfig::small()).unwrap());

pub(crate) const ALLOW: &str = r#"{"accepted":true}"#;
pub(crate) const DENY: &str = r#"{"accepted":false,"message":"no"}"#;
pub(crate) const MUTATE: &str = r#"{"accepted":true,"mutated_object":{"changed":true}}"#;
pub(crate) const BROKEN: &str = "not JSON";

/// A waPC guest that gives a fixed answer to every operation.
fn guest(answer: &str) -> Vec<u8> {
    let source = format!(
        r#"(module
          (import "wapc" "__guest_response" (func $respond (param i32 i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "{}")
          (func (export "__guest_call") (param i32 i32) (result i32)
            (call $respond (i32.const 0) (i32.const {})) (i32.const 1)))"#,
        answer.replace('"', "\\22"),
        answer.len()
    );
    wat::parse_str(source).unwrap()
}

fn mk_loaded(
    states: &PolicyStates,
    name: &str,
    generation: i64,
    mode: Mode,
    answer: &str,
) -> Arc<LoadedPolicy> {
    let wasm = guest(answer);
    let content = Content {
        module_digest: Digest::of(&wasm),
        mode,
        mutating: true,
        ..crate::announced::tests::mk_policy(name, generation, "")
            .content
            .clone()
    };
    let key = PolicyKey::cluster(name);
    let policy = Policy::new(key, generation, "5f2a9c1e-0000", content, 8);
    let module = ENGINE.compile(&wasm).unwrap();
    let spec = PolicySpec {
        mutating: true,
        ..PolicySpec::new(Abi::Wapc)
    };
    let sandbox = assent_wasm::Policy::prepare(&ENGINE, &module, spec).unwrap();
    let (events, _) = tokio::sync::mpsc::channel(1);
    Arc::new(LoadedPolicy::new(
        Arc::new(policy),
        Arc::new(sandbox),
        states,
        events,
    ))
}

fn mk_states() -> PolicyStates {
    PolicyStates::new(Metrics::new(), 1, MemoryBudget::unlimited())
}

fn allowing(states: &PolicyStates, name: &str, generation: i64) -> Arc<LoadedPolicy> {
    mk_loaded(states, name, generation, Mode::Protect, ALLOW)
}

fn route(policies: &[&Arc<LoadedPolicy>]) -> Arc<Route> {
    let policies = policies.iter().map(|one| (*one).clone()).collect();
    Arc::new(Route::new(policies).unwrap())
}

/// A time at which a request that has to wait is refused.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

/// Decides about a pod by policies with these answers.
pub(crate) fn decide<T>(
    policies: &[(&str, Mode)],
    monitor: bool,
    join: decision::JoinPatches,
    check: impl FnOnce(Decision<'_>) -> T,
) -> T {
    let states = mk_states();
    let policies: Vec<_> = policies
        .iter()
        .zip(["a", "b", "c"])
        .map(|((answer, mode), name)| mk_loaded(&states, name, 1, *mode, answer))
        .collect();
    let route = Route::new(policies).unwrap();
    let request = r#"{"uid":"u","operation":"CREATE","object":{"kind":"Pod"}}"#;
    let request = RawValue::from_string(request.to_owned()).unwrap();
    let query = Query {
        review: Review::admission(&request).unwrap(),
        monitor,
        join,
    };
    check(decision::decide(&route, &query, None))
}

pub(crate) fn never(_: &[u8], _: &[u8]) -> Option<Vec<u8>> {
    None
}

#[tokio::test]
async fn every_policy_of_a_route_counts_against_its_limit() {
    let states = mk_states();
    let (a, b) = (allowing(&states, "a", 1), allowing(&states, "b", 1));
    let (both, only_a, only_b) = (route(&[&a, &b]), route(&[&a]), route(&[&b]));
    let turn = both.acquire(soon()).await.unwrap();
    for other in [&only_a, &only_b] {
        let refused = other.acquire(soon()).await;
        assert_eq!(refused.err(), Some(Refusal::TooLate));
    }
    drop(turn);
    let turn = only_b.acquire(soon()).await.unwrap();
    assert_eq!(both.acquire(soon()).await.err(), Some(Refusal::TooLate));
    // The refused request gave back what it had.
    assert!(only_a.acquire(soon()).await.is_ok());
    drop(turn);
    assert!(both.acquire(soon()).await.is_ok());
}

#[tokio::test]
async fn revisions_of_one_policy_share_one_permit() {
    let states = mk_states();
    let (one, two) = (allowing(&states, "a", 1), allowing(&states, "a", 2));
    // A route with both must not wait for itself.
    let turn = route(&[&one, &two]).acquire(soon()).await.unwrap();
    assert!(route(&[&two]).acquire(soon()).await.is_err());
    drop(turn);
}

#[tokio::test]
async fn routes_acquire_limits_in_one_order() {
    let states = mk_states();
    let (a, b) = (allowing(&states, "a", 1), allowing(&states, "b", 1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks = [route(&[&a, &b]), route(&[&b, &a])].map(|route| {
        let order = order.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let turn = route
                    .acquire(Instant::now() + Duration::from_secs(60))
                    .await;
                order.lock().unwrap().push(turn.is_ok());
                tokio::task::yield_now().await;
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.len() == 200 && order.iter().all(|ok| *ok));
}

#[test]
fn every_policy_of_a_route_records_its_latency() {
    let states = mk_states();
    let (a, b) = (allowing(&states, "a", 1), allowing(&states, "b", 1));
    assert_eq!(a.limit().typical_latency(), Duration::ZERO);
    let request = RawValue::from_string("{}".to_owned()).unwrap();
    let query = Query {
        review: Review::admission(&request).unwrap(),
        monitor: true,
        join: never,
    };
    decision::decide(&route(&[&a, &b]), &query, None);
    for policy in [a, b] {
        assert!(policy.limit().typical_latency() > Duration::ZERO);
    }
}

#[test]
fn the_first_denial_decides() {
    let policies = [
        (ALLOW, Mode::Protect),
        (DENY, Mode::Protect),
        (BROKEN, Mode::Protect),
    ];
    decide(&policies, true, never, |decision| {
        assert!(!decision.verdict.allowed && !decision.failed);
        assert_eq!(decision.policy.policy.policy.as_str(), "cluster/b");
    });
}

#[test]
fn a_policy_without_a_verdict_is_a_failure() {
    decide(&[(BROKEN, Mode::Protect)], true, never, |decision| {
        assert!(decision.failed && !decision.verdict.allowed);
        assert_eq!(decision.verdict.code, Some(500));
    });
}

#[test]
fn monitor_mode_lets_denials_and_failures_pass() {
    for answer in [DENY, BROKEN, MUTATE] {
        let policies = [(answer, Mode::Monitor)];
        decide(&policies, true, never, |decision| {
            let Decision {
                verdict, failed, ..
            } = decision;
            assert!(
                verdict.allowed && verdict.patch.is_none() && !failed,
                "{answer}"
            );
        });
        decide(&policies, false, never, |decision| {
            assert!(!decision.verdict.allowed || decision.verdict.patch.is_some());
        });
    }
}

#[test]
fn the_front_end_joins_patches() {
    let policies = [(MUTATE, Mode::Protect), (MUTATE, Mode::Protect)];
    decide(&policies, true, never, |decision| {
        assert!(decision.failed && !decision.verdict.allowed);
    });
    let joined = |first: &[u8], second: &[u8]| Some([first, second].concat());
    decide(&policies, true, joined, |decision| {
        let patch = String::from_utf8(decision.verdict.patch.unwrap()).unwrap();
        assert_eq!(patch.matches("changed").count(), 2, "{patch}");
    });
    let one = [(MUTATE, Mode::Protect), (ALLOW, Mode::Protect)];
    decide(&one, true, never, |decision| {
        assert!(decision.verdict.patch.is_some());
    });
    let denied = [(MUTATE, Mode::Protect), (DENY, Mode::Protect)];
    decide(&denied, true, never, |decision| {
        assert!(decision.verdict.patch.is_none());
    });
}

#[test]
fn a_policys_state_ends_with_its_last_revision() {
    let metrics = Metrics::new();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let states = PolicyStates::new(metrics, 1, MemoryBudget::unlimited());
    let (one, two) = (allowing(&states, "a", 1), allowing(&states, "a", 2));
    let other = allowing(&states, "b", 1);
    let series = |policy: &str| {
        let text = crate::metrics::render(&registry).unwrap();
        text.contains(&format!("policy=\"cluster/{policy}\""))
    };
    assert!(Arc::ptr_eq(one.shared(), two.shared()));
    assert!(!Arc::ptr_eq(one.shared(), other.shared()));
    drop(one);
    assert!(series("a") && series("b") && states.len() == 2);
    drop(two);
    assert!(!series("a") && series("b") && states.len() == 1);
}
