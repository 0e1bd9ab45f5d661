#![allow(clippy::unwrap_used)]
use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// A checker before an API server that answers every review with this, and how often it was
/// asked.
fn mk_checker(code: StatusCode, answer: Value) -> (TokenChecker, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = asked.clone();
    let service = tower::service_fn(move |_: Request<Body>| {
        counts.fetch_add(1, Relaxed);
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        let response = Response::builder().status(code).body(body).unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    let client = Client::new(service, "default");
    let lookup = Live::new(client.clone(), "assent-system");
    let checker = TokenChecker::new(client, "assent-system", Arc::new(lookup));
    (checker, asked)
}

fn reviewed(status: &Value) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {},
        "status": status,
    })
}

#[tokio::test]
async fn what_was_reviewed_is_not_asked_again() {
    let accepted = json!({
        "authenticated": true,
        "audiences": [names::TOKEN_AUDIENCE],
        "user": {"username": "ann"},
    });
    let (checker, asked) = mk_checker(StatusCode::CREATED, reviewed(&accepted));
    for _ in 0..3 {
        assert_eq!(checker.user("one").await.unwrap().name, "ann");
    }
    assert_eq!(asked.load(Relaxed), 1);
    checker.user("another").await.unwrap();
    assert_eq!(asked.load(Relaxed), 2);
}

#[tokio::test]
async fn a_refusal_is_remembered_too() {
    let refused = json!({"authenticated": false, "error": "token has expired"});
    let (checker, asked) = mk_checker(StatusCode::CREATED, reviewed(&refused));
    let expect = Err(Error::Invalid("token has expired".to_owned()));
    for _ in 0..3 {
        assert_eq!(checker.user("one").await, expect);
    }
    assert_eq!(asked.load(Relaxed), 1);
}

#[tokio::test]
async fn what_nobody_could_say_is_no_refusal_and_asked_again() {
    for code in [403, 429, 500, 503] {
        let code = StatusCode::from_u16(code).unwrap();
        let failure = json!({
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "message": "not now",
            "code": code.as_u16(),
        });
        let (checker, asked) = mk_checker(code, failure);
        for turn in 1..=2 {
            let error = checker.replica("one").await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            assert_eq!(asked.load(Relaxed), turn, "{code}");
        }
        let error = checker.authorize(&User::default(), Verb::Get, None).await;
        assert!(matches!(error, Err(Error::Unavailable(_))), "{error:?}");
    }
}

#[tokio::test]
async fn what_is_no_token_is_not_asked_about() {
    let (checker, asked) = mk_checker(StatusCode::CREATED, Value::Null);
    for token in ["", "a b", "a\n", "é", &"x".repeat(MAX_TOKEN + 1)] {
        let error = checker.user(token).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert_eq!(asked.load(Relaxed), 0);
}
