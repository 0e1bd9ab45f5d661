#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::admission::{ServerView, review::Resource};

fn mk_known(name: &str, allowed: Value, policies: usize) -> AdmissionView {
    let server = ServerView {
        policies_from: serde_json::from_value(allowed).unwrap(),
        ..ServerView::default()
    };
    AdmissionView {
        servers: [(name.to_owned(), server)].into(),
        policies: [("shop".to_owned(), policies)].into(),
        namespaces: [(
            "shop".to_owned(),
            [("team".to_owned(), "web".to_owned())].into(),
        )]
        .into(),
        ..AdmissionView::default()
    }
}

fn mk_policy(kind: &str, server: &str) -> Value {
    let mut policy = json!({
        "apiVersion": assent_api::API_VERSION, "kind": kind,
        "metadata": {"name": "p"},
        "spec": {
            "policyServer": server, "module": "registry://x/y:v1",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        },
    });
    if kind == "AdmissionPolicy" {
        policy["metadata"]["namespace"] = "shop".into();
    }
    policy
}

fn mk_request(operation: Operation, object: Value, old_object: Value) -> Request {
    Request {
        resource: Resource {
            group: assent_api::GROUP.to_owned(),
            resource: "admissionpolicies".to_owned(),
        },
        operation,
        object,
        old_object,
        ..Request::default()
    }
}

fn check(known: &AdmissionView, request: &Request, max: Option<usize>) -> Option<String> {
    refusal(request, known, max, &assent_api::Options::default())
}

#[test]
fn server_refuses_namespaces_that_it_does_not_allow() {
    let create = |kind: &str, server: &str| {
        mk_request(Operation::Create, mk_policy(kind, server), Value::Null)
    };
    let other = create("AdmissionPolicy", "other");
    let cluster = create("ClusterAdmissionPolicy", "other");
    let team =
        |team: &str| json!({"from": "Selected", "selector": {"matchLabels": {"team": team}}});
    for (allowed, refused) in [
        (Value::Null, true),
        (json!({"from": "None"}), true),
        (json!({"from": "All"}), false),
        (json!({"from": "Selected", "names": ["blog"]}), true),
        (json!({"from": "Selected", "names": ["shop"]}), false),
        (team("data"), true),
        (team("web"), false),
    ] {
        let known = mk_known("other", allowed.clone(), 0);
        let why = check(&known, &other, None);
        assert_eq!(why.is_some(), refused, "{allowed}: {why:?}");
        assert!(why.is_none_or(|why| why.contains("spec.allowedNamespaces")));
        assert_eq!(check(&known, &cluster, None), None, "{allowed}");
    }
    let known = mk_known("default", Value::Null, 0);
    assert_eq!(
        check(&known, &create("AdmissionPolicy", "default"), None),
        None
    );
    // One that does not exist is reported as a warning.
    assert_eq!(check(&known, &other, None), None);
}

#[test]
fn quota_counts_new_policies_only() {
    let policy = mk_policy("AdmissionPolicy", "default");
    let create = mk_request(Operation::Create, policy.clone(), Value::Null);
    let mut edited = policy.clone();
    edited["spec"]["mode"] = "monitor".into();
    let update = mk_request(Operation::Update, edited, policy.clone());
    let known = mk_known("default", Value::Null, 2);
    assert_eq!(check(&known, &create, Some(3)), None);
    assert_eq!(check(&known, &create, None), None);
    let why = check(&known, &create, Some(2)).unwrap();
    assert!(why.contains("may have 2 policies"), "{why}");
    assert_eq!(check(&known, &update, Some(2)), None);
}

#[test]
fn only_changes_of_the_spec_are_refused() {
    let known = mk_known("other", Value::Null, 0);
    let policy = mk_policy("AdmissionPolicy", "other");
    let mut labelled = policy.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let update = mk_request(Operation::Update, labelled.clone(), policy.clone());
    assert_eq!(check(&known, &update, None), None);
    labelled["spec"]["mode"] = "monitor".into();
    let update = mk_request(Operation::Update, labelled.clone(), policy.clone());
    assert!(check(&known, &update, None).is_some());
    labelled["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let update = mk_request(Operation::Update, labelled, policy);
    assert_eq!(check(&known, &update, None), None);
}
