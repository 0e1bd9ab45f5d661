#![allow(clippy::unwrap_used)]

use std::cell::Cell;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    review::{INVALID_WINDOW, MAX_INVALID, REFUSED},
    *,
};
use crate::{
    admission::{AdmissionCache, AdmissionView, ServerView},
    testing::{Requests, failure, not_found, scripted},
};

mod limits;

const TOKEN_REVIEW: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
const POD: &str = "GET /api/v1/namespaces/assent-system/pods/policy-server-default-0";

thread_local! {
    /// By how much the clock of this test is ahead.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn advance(by: Duration) {
    AHEAD.set(AHEAD.get() + by);
}

fn mk(client: Client, lookup: impl Lookup) -> TokenChecker {
    let clock = || Instant::now() + AHEAD.get();
    TokenChecker {
        clock,
        reviewer: Reviewer::new(client.clone(), clock),
        ..TokenChecker::new(client, "assent-system", Arc::new(lookup))
    }
}

/// A checker of an API server that answers every request like this.
fn mk_checker(code: StatusCode, answer: Value) -> (TokenChecker, Requests) {
    let (client, requests) = scripted(move |_| (code.as_u16(), answer.clone()));
    let lookup = Live::new(client.clone(), "assent-system");
    let checker = mk(client, lookup);
    (checker, requests)
}

fn mk_review(status: &Value) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {},
        "status": status,
    })
}

fn refusal() -> Value {
    mk_review(&json!({"authenticated": false, "error": "token has expired"}))
}

/// A token as kubelets mount it, which only its signature tells from others.
fn mk_token(signature: &str) -> String {
    let claims = json!({"exp": 99_999_999_999_u64, "aud": [names::TOKEN_AUDIENCE]});
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("e30.{claims}.{signature}")
}

fn of(token: &str) -> Credential<'_> {
    Credential { token, peer: None }
}

/// What an API server answers about a member of the PolicyServer `default`.
fn member(line: &str) -> (u16, Value) {
    match line {
        TOKEN_REVIEW => {
            let status = json!({
                "authenticated": true,
                "audiences": [names::TOKEN_AUDIENCE],
                "user": {
                    "username": "system:serviceaccount:assent-system:policy-server-default",
                    "groups": ["system:serviceaccounts"],
                    "extra": {
                        "authentication.kubernetes.io/pod-name": ["policy-server-default-0"],
                        "authentication.kubernetes.io/pod-uid": ["pod-1"],
                    },
                },
            });
            (201, mk_review(&status))
        }
        POD => {
            let pod = json!({
                "metadata": {
                    "name": "policy-server-default-0",
                    "namespace": "assent-system",
                    "uid": "pod-1",
                    "labels": { names::SERVER_LABEL: "default" },
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "StatefulSet", "controller": true,
                        "name": "policy-server-default", "uid": "set-1",
                    }],
                },
                "spec": { "serviceAccountName": "policy-server-default", "containers": [] },
            });
            (200, pod)
        }
        _ => not_found(),
    }
}

/// A checker that reads StatefulSets and PolicyServers from watches, of an API server that fails
/// while the flag is set.
fn mk_watched() -> (TokenChecker, Requests, Arc<std::sync::atomic::AtomicBool>) {
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let fails = down.clone();
    let (client, requests) =
        scripted(
            move |line| match fails.load(std::sync::atomic::Ordering::Relaxed) {
                true => failure(503, "ServiceUnavailable"),
                false => member(line),
            },
        );
    let cache = AdmissionCache::new();
    cache.set_stateful_sets([("default", "set-1")]);
    let lookup = Watched::new(Live::new(client.clone(), "assent-system"), cache);
    let checker = mk(client, lookup);
    (checker, requests, down)
}

#[tokio::test]
async fn stream_costs_two_requests_and_other_calls_none() {
    let (checker, requests, _) = mk_watched();
    let token = mk_token("a");
    let replica = checker.replica(of(&token)).await.unwrap();
    assert_eq!(replica.replica_id(), "policy-server-default-0");
    assert!(!replica.follower);
    assert_eq!(requests.take(), [TOKEN_REVIEW, POD]);
    // Health checks and module fetches.
    for _ in 0..100 {
        checker.known_replica(of(&token)).await.unwrap();
    }
    assert_eq!(requests.take(), Vec::<String>::new());
    // A stream that reconnects with the same token: only the pod is read again.
    checker.replica(of(&token)).await.unwrap();
    assert_eq!(requests.take(), [POD]);
}

#[tokio::test]
async fn health_checks_cost_nothing_for_as_long_as_streams_live() {
    let (checker, requests, _) = mk_watched();
    let token = mk_token("a");
    checker.replica(of(&token)).await.unwrap();
    requests.take();
    for _ in 0..6 * 36 {
        advance(Duration::from_secs(10));
        checker.known_replica(of(&token)).await.unwrap();
    }
    assert_eq!(requests.take(), Vec::<String>::new());
}

#[tokio::test]
async fn outage_of_the_api_server_ends_no_stream() {
    let (checker, requests, down) = mk_watched();
    let token = mk_token("a");
    checker.replica(of(&token)).await.unwrap();
    down.store(true, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..6 * 30 {
        advance(Duration::from_secs(10));
        checker.known_replica(of(&token)).await.unwrap();
    }
    // A stream that has to reconnect is let in as well; one of an unknown token is not.
    checker.replica(of(&token)).await.unwrap();
    let error = checker.replica(of(&mk_token("b"))).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // But not for ever.
    advance(REPLICA);
    let error = checker.known_replica(of(&token)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(!requests.take().is_empty());
}

/// What an API server answers about a pod of the namespace `shop` with an evaluator of `default`.
fn follower(line: &str) -> (u16, Value) {
    match line {
        TOKEN_REVIEW => {
            let status = json!({
                "authenticated": true,
                "audiences": [names::TOKEN_AUDIENCE],
                "user": {
                    "username": "system:serviceaccount:shop:default",
                    "groups": ["system:serviceaccounts"],
                    "extra": {
                        "authentication.kubernetes.io/pod-name": ["web"],
                        "authentication.kubernetes.io/pod-uid": ["pod-2"],
                    },
                },
            });
            (201, mk_review(&status))
        }
        "GET /api/v1/namespaces/shop/pods/web" => {
            let pod = json!({
                "metadata": {
                    "name": "web", "namespace": "shop", "uid": "pod-2",
                    "labels": { names::SERVER_LABEL: "default" },
                },
                "spec": { "containers": [] },
            });
            (200, pod)
        }
        _ => not_found(),
    }
}

fn allow(cache: &AdmissionCache, namespaces: &[&str]) {
    let server = ServerView {
        allowed_namespaces: namespaces.iter().map(|n| (*n).to_owned()).collect(),
        ..ServerView::default()
    };
    cache.set_known(AdmissionView {
        servers: [("default".to_owned(), server)].into(),
        ..AdmissionView::default()
    });
}

#[tokio::test]
async fn follower_loses_everything_with_its_namespaces_permission() {
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let fails = down.clone();
    let (client, requests) =
        scripted(
            move |line| match fails.load(std::sync::atomic::Ordering::Relaxed) {
                true => failure(503, "ServiceUnavailable"),
                false => follower(line),
            },
        );
    let cache = AdmissionCache::new();
    allow(&cache, &["shop"]);
    let live = Live::new(client.clone(), "assent-system");
    let checker = mk(client, Watched::new(live, cache.clone()));
    let token = mk_token("a");
    assert!(checker.replica(of(&token)).await.unwrap().follower);
    requests.take();
    checker.known_replica(of(&token)).await.unwrap();
    assert_eq!(requests.take(), Vec::<String>::new());

    let forbidden = |result: Result<Replica, Error>| matches!(result, Err(Error::Forbidden(_)));
    allow(&cache, &["blog"]);
    assert!(forbidden(checker.known_replica(of(&token)).await));
    assert!(forbidden(checker.replica(of(&token)).await));
    // Nor does an outage bring it back.
    allow(&cache, &["shop"]);
    advance(STRANGER);
    checker.replica(of(&token)).await.unwrap();
    allow(&cache, &[]);
    down.store(true, std::sync::atomic::Ordering::Relaxed);
    // Longer than the review of the token is remembered.
    advance(Duration::from_secs(60));
    assert!(forbidden(checker.replica(of(&token)).await));
}

#[tokio::test]
async fn refused_replica_is_forgotten() {
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_gone = gone.clone();
    let (client, _) = scripted(move |line| {
        match line == POD && is_gone.load(std::sync::atomic::Ordering::Relaxed) {
            true => not_found(),
            false => member(line),
        }
    });
    let cache = AdmissionCache::new();
    cache.set_stateful_sets([("default", "set-1")]);
    let lookup = Watched::new(Live::new(client.clone(), "assent-system"), cache);
    let checker = mk(client, lookup);
    let token = mk_token("a");
    checker.replica(of(&token)).await.unwrap();
    gone.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = checker.replica(of(&token)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let error = checker.known_replica(of(&token)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[tokio::test]
async fn accepted_token_is_reviewed_once() {
    let accepted = json!({
        "authenticated": true,
        "audiences": [names::TOKEN_AUDIENCE],
        "user": {"username": "ann"},
    });
    let (checker, requests) = mk_checker(StatusCode::CREATED, mk_review(&accepted));
    for _ in 0..3 {
        assert_eq!(checker.user(of("one")).await.unwrap().name, "ann");
    }
    assert_eq!(requests.take().len(), 1);
    checker.user(of("another")).await.unwrap();
    assert_eq!(requests.take().len(), 1);
}

#[tokio::test]
async fn refused_token_is_reviewed_once() {
    let (checker, requests) = mk_checker(StatusCode::CREATED, refusal());
    let expect = Err(Error::Invalid("token has expired".to_owned()));
    for _ in 0..3 {
        assert_eq!(checker.user(of("one")).await, expect);
    }
    assert_eq!(requests.take().len(), 1);
}

#[tokio::test]
async fn outage_is_noticed_by_asking() {
    let (checker, requests, down) = mk_watched();
    assert!(checker.is_available().await);
    assert_eq!(requests.take(), [TOKEN_REVIEW]);
    // Asked again only after a while, whoever wants to know.
    for _ in 0..100 {
        assert!(checker.is_available().await);
    }
    assert_eq!(requests.take(), Vec::<String>::new());
    down.store(true, std::sync::atomic::Ordering::Relaxed);
    advance(Duration::from_secs(60));
    assert!(!checker.is_available().await);
    down.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(checker.is_available().await);
}

#[tokio::test]
async fn failed_look_up_of_a_pod_is_an_outage() {
    let (client, _) = scripted(|line| match line {
        POD => failure(503, "ServiceUnavailable"),
        line => member(line),
    });
    let lookup = Live::new(client.clone(), "assent-system");
    let checker = mk(client, lookup);
    assert!(checker.is_available().await);
    checker.replica(of(&mk_token("a"))).await.unwrap_err();
    assert!(!checker.is_available().await);
    // One that nobody tries again says nothing for ever.
    advance(OUTAGE);
    assert!(checker.is_available().await);
}

#[tokio::test]
async fn valid_token_of_no_replica_costs_one_look_up() {
    let (client, requests) = scripted(|line| match line {
        POD => not_found(),
        line => member(line),
    });
    let lookup = Live::new(client.clone(), "assent-system");
    let checker = mk(client, lookup);
    let token = mk_token("a");
    for _ in 0..100 {
        let error = checker.replica(of(&token)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert_eq!(requests.take(), [TOKEN_REVIEW, POD]);
    advance(STRANGER);
    checker.replica(of(&token)).await.unwrap_err();
    assert_eq!(requests.take(), [POD]);
}

#[tokio::test]
async fn permissions_are_asked_for_once_in_a_while() {
    let allowed = json!({"spec": {}, "status": {"allowed": true}});
    let (checker, requests) = mk_checker(StatusCode::CREATED, allowed);
    let (one, two) = (User::default(), User::default());
    let two = User {
        name: "ann".to_owned(),
        ..two
    };
    for _ in 0..10 {
        checker.authorize(&one, Verb::Get, None).await.unwrap();
        checker.authorize(&two, Verb::Get, None).await.unwrap();
        checker.authorize(&one, Verb::Update, None).await.unwrap();
    }
    assert_eq!(requests.take().len(), 3, "one for each question");
    advance(DECISION);
    checker.authorize(&one, Verb::Get, None).await.unwrap();
    assert_eq!(requests.take().len(), 1);
}
