#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use axum::{
    body::Body as HttpBody,
    http::{Method, Request as HttpRequest, header},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::BoxFuture;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;

#[derive(Default)]
struct Fixed {
    known: Option<Arc<AdmissionView>>,
    outcomes: Mutex<Vec<Outcome>>,
}

impl State for Fixed {
    fn known(&self) -> Option<Arc<AdmissionView>> {
        self.known.clone()
    }

    fn observe(&self, outcome: &Outcome) {
        self.outcomes.lock().unwrap().push(outcome.clone());
    }
}

/// Kinds are named by their lower-case plural.
struct NoKinds;

impl KindFinder for NoKinds {
    fn find(
        &self,
        kind: assent_controller::contexts::KindRef,
    ) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(async move { Ok(Some(format!("{}s", kind.kind.to_lowercase()))) })
    }
}

/// Allows the verbs that it lists.
struct Verbs(Vec<&'static str>);

impl Authorizer for Verbs {
    fn allows(&self, review: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<bool, String>> {
        let verb = review.resource_attributes.and_then(|a| a.verb);
        let verb = verb.unwrap_or_default();
        let answer = match self.0.as_slice() {
            ["unavailable"] => Err("the API server is away".to_owned()),
            verbs => Ok(verbs.contains(&verb.as_str())),
        };
        Box::pin(async move { answer })
    }
}

fn options() -> Options {
    Options {
        namespace: "assent-system".to_owned(),
        parse: assent_api::Options {
            excluded_namespaces: vec!["assent-system".to_owned(), "kube-system".to_owned()],
            ..assent_api::Options::default()
        },
        max_policies_per_namespace: Some(2),
        native_sidecars: true,
    }
}

fn review(resource: (&str, &str), operation: &str, object: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1",
            "resource": {"group": resource.0, "version": "v1", "resource": resource.1},
            "namespace": "shop",
            "operation": operation,
            "object": object,
            "oldObject": null,
        },
    })
}

fn policy(spec: Value) -> Value {
    let object = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "AdmissionPolicy",
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": spec,
    });
    review((assent_api::GROUP, "admissionpolicies"), "CREATE", object)
}

async fn send(state: Arc<Fixed>, request: HttpRequest<HttpBody>) -> (StatusCode, Value) {
    send_as(Verbs(Vec::new()), state, request).await
}

async fn send_as(
    verbs: Verbs,
    state: Arc<Fixed>,
    request: HttpRequest<HttpBody>,
) -> (StatusCode, Value) {
    let router = router(options(), state, Arc::new(verbs), Arc::new(NoKinds));
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn post(path: &str, body: impl Into<HttpBody>) -> HttpRequest<HttpBody> {
    HttpRequest::post(path)
        .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
        .body(body.into())
        .unwrap()
}

async fn ask(path: &str, review: &Value) -> (StatusCode, Value) {
    send(Arc::default(), post(path, review.to_string())).await
}

#[tokio::test]
async fn invalid_policy_is_refused_with_every_reason() {
    let review = policy(json!({"module": "ftp://x", "rules": [], "protected": true}));
    let (status, answer) = ask(VALIDATE_PATH, &review).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!(response["uid"], "u1");
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 422);
    let message = response["status"]["message"].as_str().unwrap();
    for part in [
        "spec.module: ",
        "spec.rules: ",
        "spec.protected: unknown field",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn defaults_are_returned_as_a_patch() {
    let review = policy(json!({"module": "x", "rules": []}));
    let (_, answer) = ask(MUTATE_PATH, &review).await;
    let response = &answer["response"];
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = BASE64_STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(patch[0]["path"], "/metadata/finalizers");
}

#[tokio::test]
async fn injection_outcomes_are_observed() {
    let pod = json!({"metadata": {"labels": {crate::names::SERVER_LABEL: "nowhere"}}, "spec": {}});
    let state = Arc::new(Fixed {
        known: Some(Arc::default()),
        ..Fixed::default()
    });
    let body = review(("", "pods"), "CREATE", pod).to_string();
    let (_, answer) = send(state.clone(), post(INJECT_PATH, body)).await;
    assert_eq!(answer["response"]["allowed"], true);
    let warning = answer["response"]["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("there is no PolicyServer \"nowhere\""),
        "{warning}"
    );
    let outcomes = state.outcomes.lock().unwrap();
    assert!(
        outcomes.len() == 1 && outcomes[0].is_without(),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn malformed_review_is_refused_with_a_reason() {
    let secrets = review(("", "secrets"), "CREATE", json!({}));
    let mut no_uid = policy(json!({}));
    no_uid["request"]["uid"] = json!("");
    let mut no_request = policy(json!({}));
    no_request["request"] = json!(null);
    let mut beta = policy(json!({}));
    beta["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut eviction = review(("", "pods"), "CREATE", json!({}));
    eviction["request"]["subResource"] = json!("eviction");
    for (path, body, expect) in [
        (VALIDATE_PATH, "[".to_owned(), "failed to parse the body"),
        (VALIDATE_PATH, String::new(), "failed to parse the body"),
        (VALIDATE_PATH, "[".repeat(500), "failed to parse the body"),
        (VALIDATE_PATH, no_uid.to_string(), "no uid"),
        (VALIDATE_PATH, no_request.to_string(), "no request"),
        (VALIDATE_PATH, beta.to_string(), "admission.k8s.io/v1beta1"),
        (
            VALIDATE_PATH,
            secrets.to_string(),
            "\"secrets\" are not reviewed",
        ),
        (
            MUTATE_PATH,
            secrets.to_string(),
            "\"secrets\" are not reviewed",
        ),
        (
            INJECT_PATH,
            secrets.to_string(),
            "\"secrets\" are not reviewed",
        ),
        (
            INJECT_PATH,
            eviction.to_string(),
            "\"pods/eviction\" are not reviewed",
        ),
    ] {
        let (status, answer) = send(Arc::default(), post(path, body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expect), "{error}");
    }
}

#[tokio::test]
async fn other_methods_types_and_sizes_are_refused() {
    let get = HttpRequest::get(VALIDATE_PATH)
        .body(HttpBody::empty())
        .unwrap();
    assert_eq!(
        send(Arc::default(), get).await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
    let lost = post("/nowhere", "{}");
    assert_eq!(send(Arc::default(), lost).await.0, StatusCode::NOT_FOUND);
    let text = HttpRequest::builder()
        .method(Method::POST)
        .uri(VALIDATE_PATH)
        .header(header::CONTENT_TYPE, "text/plain")
        .body(HttpBody::from("{}"))
        .unwrap();
    let (status, answer) = send(Arc::default(), text).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(
        answer["error"],
        "reviews are application/json, not \"text/plain\""
    );
    let large = post(VALIDATE_PATH, vec![b' '; MAX_BODY + 1]);
    let (status, answer) = send(Arc::default(), large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer["error"], "the body is larger than 7340032 bytes");
    let fits = post(VALIDATE_PATH, vec![b' '; MAX_BODY]);
    assert_eq!(send(Arc::default(), fits).await.0, StatusCode::BAD_REQUEST);
}

fn server(spec: Value) -> Value {
    let object = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "PolicyServer",
        "metadata": {"name": "s"},
        "spec": spec,
    });
    review((assent_api::GROUP, "policyservers"), "CREATE", object)
}

#[tokio::test]
async fn author_of_a_policy_server_needs_what_its_pods_need() {
    let secret = json!({"env": [{"name": "A", "valueFrom": {
        "secretKeyRef": {"name": "s", "key": "k"},
    }}]});
    for (verbs, spec, code) in [
        (vec![], json!({"replicas": 3}), 0),
        (vec![], json!({"image": "x"}), 403),
        (vec!["create"], json!({"image": "x"}), 0),
        (vec!["create"], secret.clone(), 403),
        (vec!["create", "get"], secret, 0),
        (vec!["unavailable"], json!({"image": "x"}), 503),
        (vec!["unavailable"], json!({"replicas": 3}), 0),
    ] {
        let request = post(VALIDATE_PATH, server(spec.clone()).to_string());
        let (_, answer) = send_as(Verbs(verbs.clone()), Arc::default(), request).await;
        let response = &answer["response"];
        assert_eq!(response["allowed"], code == 0, "{verbs:?} {spec}: {answer}");
        assert_eq!(
            response["status"]["code"].as_i64().unwrap_or_default(),
            code,
            "{verbs:?} {spec}"
        );
    }
}

#[tokio::test]
async fn quota_is_enforced() {
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    }]);
    let policy = policy(json!({"module": "registry://x/y:v1", "rules": rules}));
    for (count, allowed) in [(1, true), (2, false)] {
        let known = AdmissionView {
            policies: [("shop".to_owned(), count)].into(),
            ..AdmissionView::default()
        };
        let state = Arc::new(Fixed {
            known: Some(Arc::new(known)),
            ..Fixed::default()
        });
        let (_, answer) = send(state, post(VALIDATE_PATH, policy.to_string())).await;
        assert_eq!(answer["response"]["allowed"], allowed, "{answer}");
    }
}
