//! The dispatcher against real HTTP servers.

use std::{collections::BTreeMap, sync::Mutex};

use axum::{Router, extract::Path, http::StatusCode, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::net::TcpListener;

use super::*;

mod failures;

/// What an evaluator answers for a policy, and what it was asked. A policy makes its change once, as
/// one does that finds the object as it should be, unless it is `stubborn`.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<BTreeMap<String, Value>>,
    asked: Arc<Mutex<Vec<(String, String)>>>,
    /// Policies that were asked whether they would still change the object.
    confirmed: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn new<const N: usize>(answers: [(&str, Value); N]) -> Self {
        let answers = answers.map(|(name, answer)| (name.to_owned(), answer));
        Self {
            answers: Arc::new(BTreeMap::from(answers)),
            ..Self::default()
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(path, _)| path.clone())
            .collect()
    }

    fn body_for(&self, path: &str) -> String {
        let asked = self.asked.lock().unwrap();
        asked.iter().find(|(p, _)| p == path).unwrap().1.clone()
    }

    /// Serves on loopback; gives the base URL.
    async fn serve(&self) -> String {
        let script = self.clone();
        let answer = move |Path(path): Path<String>, body: String| {
            let script = script.clone();
            async move { script.answer(path, body).await }
        };
        let script = self.clone();
        let confirm = move |Path(path): Path<String>, body: String| {
            let script = script.clone();
            async move { script.confirm(&path, &body) }
        };
        let router = Router::new()
            .route("/validate/{*path}", post(answer))
            .route("/confirm/{*path}", post(confirm));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    async fn answer(&self, path: String, body: String) -> (StatusCode, String) {
        let review: Value = serde_json::from_str(&body).unwrap();
        let again = self.asked().contains(&path);
        self.asked.lock().unwrap().push((path.clone(), body));
        let name = path.split('/').nth_back(1).unwrap();
        let mut response = self
            .answers
            .get(name)
            .cloned()
            .unwrap_or(json!({"allowed": true}));
        if let Some(text) = response.get("raw") {
            let status = response["code"].as_u64().unwrap_or(200);
            let status = StatusCode::from_u16(u16::try_from(status).unwrap()).unwrap();
            return (status, text.as_str().unwrap().to_owned());
        }
        if response.get("hang").is_some() {
            std::future::pending::<()>().await;
        }
        if response.get("uid").is_none() {
            response["uid"] = review["request"]["uid"].clone();
        }
        if again && response.get("stubborn").is_none() {
            response["patch"] = json!([]);
        }
        if let Some(patch) = response.get("patch").cloned() {
            response["patch"] = json!(BASE64_STANDARD.encode(patch.to_string()));
            response["patchType"] = json!("JSONPatch");
        }
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        (StatusCode::OK, answer.to_string())
    }
}

impl Script {
    fn confirm(&self, path: &str, body: &str) -> String {
        let review: Value = serde_json::from_str(body).unwrap();
        let name = path.split('/').nth_back(1).unwrap().to_owned();
        let answer = self.answers.get(&name);
        let undone = answer.and_then(|answer| answer.get("undone")).is_some();
        self.confirmed.lock().unwrap().push(name);
        let uid = &review["request"]["uid"];
        let response =
            json!({"uid": uid, "allowed": !undone, "status": {"message": "undone", "code": 403}});
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            .to_string()
    }

    fn confirmed(&self) -> Vec<String> {
        let mut confirmed = self.confirmed.lock().unwrap().clone();
        confirmed.sort();
        confirmed
    }
}

struct Urls(Vec<String>);

impl Environment for Urls {
    fn endpoints(&self, policy_server: &str) -> Vec<String> {
        match policy_server {
            "default" => self.0.clone(),
            _ => Vec::new(),
        }
    }
}

fn review(operation: &str) -> Value {
    let object = json!({"metadata": {"name": "x"}, "spec": {}});
    let mut request = json!({
        "uid": "u-1", "operation": operation, "namespace": "team",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "jane"},
    });
    let place = if operation == "DELETE" {
        "oldObject"
    } else {
        "object"
    };
    request[place] = object;
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

/// Sends a review through `targets`; gives the response.
async fn admit(script: &Script, targets: Vec<Arc<Target>>, review: &str) -> Value {
    let dispatcher = Dispatcher::new(Urls(vec![script.serve().await]));
    let answer = dispatcher
        .admit(&Table::new(targets), review.as_bytes())
        .await
        .unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
}

fn mutating(name: &str) -> Arc<Target> {
    cluster(name, json!({"mutating": true}))
}

fn patch_of(response: &Value) -> Value {
    let bytes = BASE64_STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn nobody_concerned_is_allowed() {
    let script = Script::new([]);
    let other = cluster(
        "p",
        json!({"rules": [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}]}),
    );
    let response = admit(&script, vec![other], &review("CREATE").to_string()).await;
    assert_eq!(response, json!({"uid": "u-1", "allowed": true}));
    assert!(script.asked().is_empty());
}

#[tokio::test]
async fn the_first_denial_by_name_decides() {
    let script = Script::new([
        (
            "a",
            json!({"allowed": true, "warnings": ["careful"], "auditAnnotations": {"k": "v"}}),
        ),
        (
            "b",
            json!({"allowed": false, "status": {"message": "no root", "code": 403, "reason": "Forbidden",
            "details": {"causes": [{"message": "why"}]}}, "warnings": ["beware"]}),
        ),
        (
            "c",
            json!({"allowed": false, "status": {"message": "later"}}),
        ),
    ]);
    let targets = ["c", "b", "a"]
        .map(|name| cluster(name, json!({})))
        .to_vec();
    let response = admit(&script, targets, &review("CREATE").to_string()).await;
    assert_eq!(
        response,
        json!({
            "uid": "u-1",
            "allowed": false,
            "status": {"status": "Failure", "message": "admission webhook \"b\" denied the request: no root",
                "code": 403, "reason": "Forbidden", "details": {"causes": [{"message": "why"}]}},
            "warnings": ["careful", "beware"],
            "auditAnnotations": {"a/k": "v"},
        })
    );
    let mut asked = script.asked();
    asked.sort();
    assert_eq!(
        asked,
        [
            "cluster/a/1-00000000",
            "cluster/b/1-00000000",
            "cluster/c/1-00000000"
        ]
    );
}

#[tokio::test]
async fn denials_without_words_or_with_odd_codes() {
    for (status, message, code) in [
        (json!(null), "denied the request without explanation", 400),
        (
            json!({"reason": "Forbidden"}),
            "denied the request: Forbidden",
            400,
        ),
        (
            json!({"message": "m", "code": 200}),
            "denied the request: m",
            400,
        ),
        (
            json!({"message": "m", "code": 599}),
            "denied the request: m",
            599,
        ),
    ] {
        let script = Script::new([("p", json!({"allowed": false, "status": status}))]);
        let response = admit(
            &script,
            vec![mk_target("AdmissionPolicy", "p", json!({}))],
            &review("CREATE").to_string(),
        )
        .await;
        assert_eq!(
            response["status"]["message"],
            format!("admission webhook \"team/p\" {message}")
        );
        assert_eq!(response["status"]["code"], code);
    }
}

#[tokio::test]
async fn patches_are_applied_in_turn_and_composed() {
    let script = Script::new([
        (
            "a",
            json!({"allowed": true, "patch": [{"op": "add", "path": "/spec/list", "value": [1]}]}),
        ),
        (
            "b",
            json!({"allowed": true, "patch": [{"op": "add", "path": "/spec/list/-", "value": 18446744073709551615u64}]}),
        ),
        (
            "v",
            json!({"allowed": true, "patch": [{"op": "remove", "path": "/spec"}]}),
        ),
    ]);
    let targets = vec![cluster("v", json!({})), mutating("b"), mutating("a")];
    let response = admit(&script, targets, &review("CREATE").to_string()).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    assert_eq!(
        patch_of(&response),
        json!([
            {"op": "add", "path": "/spec/list", "value": [1]},
            {"op": "add", "path": "/spec/list/-", "value": u64::MAX},
        ])
    );
    assert_eq!(
        script.asked(),
        [
            "cluster/a/1-00000000",
            "cluster/b/1-00000000",
            // The object changed after it.
            "cluster/a/1-00000000",
            "cluster/v/1-00000000"
        ]
    );
    assert_eq!(script.confirmed(), ["a", "b"]);
    let seen = |path: &str| -> Value {
        let body: Value = serde_json::from_str(&script.body_for(path)).unwrap();
        body["request"]["object"]["spec"].clone()
    };
    assert_eq!(seen("cluster/a/1-00000000"), json!({}));
    assert_eq!(seen("cluster/b/1-00000000"), json!({"list": [1]}));
    assert_eq!(seen("cluster/v/1-00000000"), json!({"list": [1, u64::MAX]}));
}

#[tokio::test]
async fn namespaced_policy_does_not_undo_what_a_cluster_policy_changed() {
    let add = json!([{"op": "add", "path": "/spec/x", "value": 1}]);
    let script = Script::new([
        (
            "a",
            json!({"allowed": true, "patch": add, "stubborn": true}),
        ),
        (
            "tenant",
            json!({"allowed": true, "patch": [{"op": "remove", "path": "/spec/x"}]}),
        ),
    ]);
    let tenant = mk_target("AdmissionPolicy", "tenant", json!({"mutating": true}));
    let targets = vec![mutating("a"), tenant.clone()];
    let response = admit(&script, targets, &review("CREATE").to_string()).await;
    assert_eq!(response["allowed"], true, "{response}");
    // The cluster policy has the last word, and only its changes are confirmed.
    let asked = script.asked();
    let tenants = "namespaced/team/tenant/1-00000000";
    assert_eq!(
        asked,
        ["cluster/a/1-00000000", tenants, "cluster/a/1-00000000"]
    );
    assert_eq!(patch_of(&response)[2], add[0]);
    assert_eq!(script.confirmed(), ["a"]);

    // What is undone all the same is denied.
    let undone = json!({"allowed": true, "patch": add, "undone": true});
    let script = Script::new([("a", undone)]);
    let targets = vec![mutating("a"), tenant];
    let response = admit(&script, targets, &review("CREATE").to_string()).await;
    assert_eq!(response["allowed"], false, "{response}");
    let message = "admission webhook \"a\" denied the request: undone";
    assert_eq!(response["status"]["message"], message);

    // A policy that only monitors changes nothing.
    let script = Script::new([]);
    let monitor = cluster("m", json!({"mutating": true, "mode": "monitor"}));
    admit(&script, vec![monitor], &review("CREATE").to_string()).await;
    assert_eq!(script.confirmed(), Vec::<String>::new());
}

#[tokio::test]
async fn a_mutating_denial_ends_it() {
    let script = Script::new([
        (
            "a",
            json!({"allowed": true, "patch": [{"op": "add", "path": "/spec/x", "value": 1}]}),
        ),
        ("b", json!({"allowed": false, "status": {"message": "no"}})),
    ]);
    let targets = vec![
        mutating("a"),
        mutating("b"),
        mutating("c"),
        cluster("v", json!({})),
    ];
    let response = admit(&script, targets, &review("CREATE").to_string()).await;
    assert_eq!(response["allowed"], false);
    assert!(
        response.get("patch").is_none(),
        "a denied request changes nothing"
    );
    assert_eq!(
        script.asked(),
        ["cluster/a/1-00000000", "cluster/b/1-00000000"]
    );
}

#[tokio::test]
async fn later_policies_match_the_changed_object() {
    let script = Script::new([(
        "a",
        json!({"allowed": true, "patch": [{"op": "add", "path": "/metadata/labels", "value": {"app": "web"}}]}),
    )]);
    let labelled = cluster(
        "v",
        json!({"objectSelector": {"matchLabels": {"app": "web"}}}),
    );
    admit(
        &script,
        vec![mutating("a"), labelled],
        &review("CREATE").to_string(),
    )
    .await;
    assert_eq!(
        script.asked(),
        ["cluster/a/1-00000000", "cluster/v/1-00000000"]
    );
}

/// Whatever the API server sent reaches the policy as it was written.
#[tokio::test]
async fn unknown_fields_and_large_numbers_survive() {
    let script = Script::new([]);
    let request = r#"{"uid":"u-1","zebra":{"b":1.0,"a":123456789012345678901234567890},"operation":"CREATE","namespace":"team","resource":{"group":"","version":"v1","resource":"pods"},"object":{"z":1e2,"a":0.10}}"#;
    let text = format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{request}}}"#
    );
    admit(&script, vec![cluster("p", json!({}))], &text).await;
    let body = script.body_for("cluster/p/1-00000000");
    assert!(body.contains(request), "{body}");
}

#[tokio::test]
async fn what_is_no_review_is_an_error() {
    let dispatcher = Dispatcher::new(Urls(Vec::new()));
    for (body, part) in [
        ("", "EOF"),
        ("[]", "failed to read AdmissionReview"),
        (
            r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#,
            "not admission.k8s.io/v1beta1 AdmissionReview",
        ),
        (
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
            "request.uid is missing",
        ),
        (
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"x"}}"#,
            "request.resource.version is missing",
        ),
    ] {
        let error = dispatcher
            .admit(&Table::default(), body.as_bytes())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{body}: {error}");
    }
}
