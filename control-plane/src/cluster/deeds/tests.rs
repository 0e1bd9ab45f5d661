//! Answers of an API server that can't be had when one wants them.

#![allow(clippy::unwrap_used)]

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use assent_api::PolicyRevision;
use assent_core::rollout::RefusalReason;
use assent_k8s::{
    lease::{Elector, Timing},
    webhook::Desired,
};
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::{revisions::store, webhooks::point, *};
use crate::cluster::deed::Pointing;

/// An API server that gives these answers in turn, and notes what it was asked.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        let script = Self::default();
        script.answers.lock().unwrap().extend(answers);
        script
    }

    /// What was asked, without what all paths have in common.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// A context whose process does not lead.
    fn context(&self) -> Context {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let (_, path) = path.split_once("assent-system/").unwrap_or(("", path));
            let asked = format!("{} {path}", request.method());
            script.asked.lock().unwrap().push(asked);
            let answer = script.answers.lock().unwrap().pop_front();
            let (code, body) = answer.expect("nothing more should be asked");
            let response = Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let client = Client::new(service, "assent-system");
        let timing = Timing {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        };
        let elector = Elector::new(client.clone(), "assent-system", "a", "", timing);
        Context {
            client,
            namespace: "assent-system".into(),
            standing: elector.standing(),
        }
    }
}

fn revision(content: &str) -> Value {
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "PolicyRevision",
        "metadata": { "name": "a-1-00000000", "namespace": "assent-system" },
        "spec": {
            "policyRef": { "kind": "ClusterAdmissionPolicy", "name": "a", "uid": "u" },
            "generation": 1,
            "moduleUrl": "registry://example.com/policy:v1",
            "moduleDigest": "sha256:00",
            "moduleSize": 7,
            "abi": "wapc",
            "contentDigest": content,
            "settings": "{}",
            "hostCapabilities": [],
            "timeoutMs": 1,
            "memoryBytes": 1,
            "policy": {},
        },
    })
}

fn object() -> PolicyRevision {
    serde_json::from_value(revision("new")).unwrap()
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, body)
}

#[tokio::test]
async fn a_revision_that_another_leader_stored_is_taken_over() {
    let script = Script::of([
        status(409, "AlreadyExists", "it exists"),
        (200, revision("new")),
        (200, revision("new")),
    ]);
    let stored = store(&script.context(), &object()).await.unwrap();
    assert_eq!(stored.metadata.name.as_deref(), Some("a-1-00000000"));
    assert_eq!(
        script.asked(),
        [
            "POST policyrevisions",
            "GET policyrevisions/a-1-00000000",
            "PATCH policyrevisions/a-1-00000000/status",
        ]
    );
}

#[tokio::test]
async fn a_revision_of_other_content_is_replaced() {
    let script = Script::of([
        status(409, "AlreadyExists", "it exists"),
        (200, revision("old")),
        (200, revision("old")),
        (201, revision("new")),
    ]);
    store(&script.context(), &object()).await.unwrap();
    assert_eq!(
        script.asked(),
        [
            "POST policyrevisions",
            "GET policyrevisions/a-1-00000000",
            "DELETE policyrevisions/a-1-00000000",
            "POST policyrevisions",
        ]
    );
}

#[tokio::test]
async fn one_that_is_gone_when_it_is_looked_at_is_created_again() {
    let script = Script::of([
        status(409, "AlreadyExists", "it exists"),
        status(404, "NotFound", "it is gone"),
        (201, revision("new")),
    ]);
    store(&script.context(), &object()).await.unwrap();
    assert_eq!(script.asked().len(), 3);
}

#[tokio::test]
async fn one_that_somebody_keeps_changing_is_tried_another_time() {
    let round = || {
        [
            status(409, "AlreadyExists", "it exists"),
            (200, revision("old")),
            (200, revision("old")),
        ]
    };
    let script = Script::of([round(), round(), round()].into_iter().flatten());
    let failed = store(&script.context(), &object()).await.unwrap_err();
    assert!(failed.retryable);
    let message = failed.refusal.message;
    assert!(message.contains("keeps changing it"), "{message}");
}

#[tokio::test]
async fn what_is_refused_for_good_is_told_from_what_fails_now() {
    let script = Script::of([status(422, "Invalid", "spec.abi: no")]);
    let failed = store(&script.context(), &object()).await.unwrap_err();
    assert!(!failed.retryable);
    assert_eq!(failed.refusal.reason, RefusalReason::Invalid);
    assert_eq!(failed.refusal.message, "spec.abi: no");
    let script = Script::of([status(500, "InternalError", "etcd is full")]);
    let failed = store(&script.context(), &object()).await.unwrap_err();
    assert!(failed.retryable);
    let message = failed.refusal.message;
    assert!(message.contains("etcd is full"), "{message}");
}

#[tokio::test]
async fn whoever_does_not_lead_writes_no_webhook() {
    let script = Script::default();
    let pointing = Pointing {
        desired: Desired::Validating(Box::default()),
        present: Vec::new(),
    };
    let pointed = point(&script.context(), &pointing).await;
    assert!(matches!(pointed, Err(webhook::Error::Conflict)));
    assert!(script.asked().is_empty());
}

#[tokio::test]
async fn a_rollback_that_has_no_target_takes_the_annotation_away_all_the_same() {
    let meta = index::Meta {
        name: "a".into(),
        uid: "u".into(),
        resource_version: "7".into(),
        ..index::Meta::default()
    };
    let script = Script::of([status(500, "InternalError", "not now")]);
    let kind = index::Kind::ClusterPolicies;
    let target = Err("there is none".to_owned());
    let result = roll_back(&script.context(), kind, &meta, target).await;
    assert_eq!(result.unwrap_err(), "there is none");
    assert_eq!(script.asked().len(), 1);
}
