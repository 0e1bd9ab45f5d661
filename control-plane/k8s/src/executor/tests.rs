//! Answers of an API server that are hard to get from a real one.

#![allow(clippy::unwrap_used)]

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use assent_api::{
    Parsed, PolicyRevisionSpec,
    parse::{self, Module},
    revision::{Phase, ResolvedRevision},
};
use assent_controller::action::RouteUpdate;
use assent_core::{
    Digest, RevisionId,
    policy::Limits,
    rollout::{PolicyId, RefusalReason},
};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use serde_json::json;

use super::{
    revisions::store,
    routes::{remove_all, write},
    *,
};
use crate::{
    convert,
    status::StatusWriter,
    testing::{Requests, failure, not_found, scripted},
    webhook::{Desired, WebhookDefaults, WebhookEndpoint},
};

/// An API server that gives these answers in turn, and a process that leads or does not.
struct Script {
    context: Context,
    requests: Requests,
    leads: Arc<AtomicBool>,
}

// === impl Script ===

impl Script {
    fn new(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        let answers: VecDeque<(u16, Value)> = answers.into_iter().collect();
        let answers = Mutex::new(answers);
        let (client, requests) = scripted(move |_| {
            let answer = answers.lock().unwrap().pop_front();
            answer.expect("no further request is expected")
        });
        let leads = Arc::new(AtomicBool::new(true));
        let check = leads.clone();
        let context = Context {
            client,
            namespace: "assent-system".into(),
            converter: Arc::new(Converter::new("assent-system", parse::Options::default())),
            is_leader: Arc::new(move || check.load(Ordering::Relaxed)),
        };
        Self {
            context,
            requests,
            leads,
        }
    }

    /// Methods and paths of the requests, without what all paths have in common.
    fn requests(&self) -> Vec<String> {
        let lines = self.requests.take().into_iter();
        lines
            .map(|line| {
                let (method, path) = line.split_once(' ').unwrap();
                let (_, path) = path.split_once("assent-system/").unwrap_or(("", path));
                format!("{method} {path}")
            })
            .collect()
    }

    async fn store(&self, other: Existing) -> Result<DynamicObject, Failure> {
        let key = PolicyKey::cluster("a");
        store(&self.context, &key, &mk_id(), mk_spec("new"), other).await
    }

    fn executor(&self) -> (Executor, mpsc::Receiver<Outcome<Cluster>>) {
        let (outcomes, receiver) = mpsc::channel(16);
        let (_, statuses) = StatusWriter::new(self.context.client.clone());
        let (events, _) = EventRecorder::new();
        let executor = Executor::new(self.context.clone(), outcomes, events, statuses);
        (executor, receiver)
    }
}

fn mk_id() -> RevisionId {
    RevisionId::new(&PolicyKey::cluster("a"), 1, "u")
}

fn mk_parsed() -> Parsed {
    let spec = json!({
        "module": "registry://example.com/policy:v1",
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["pods"],
        }],
    });
    parse::spec(&PolicyKey::cluster("a"), &spec, &parse::Options::default()).unwrap()
}

fn mk_desired() -> ValidatingWebhookConfiguration {
    let defaults = WebhookDefaults {
        namespace: "assent-system".into(),
        namespace_uid: "n".into(),
        ca_bundle: Vec::new(),
        excluded_namespaces: Vec::new(),
        service_accounts: Vec::new(),
    };
    let desired = webhook::desired(&webhook::Input {
        policy: &mk_parsed(),
        revision: &mk_id(),
        resolved: &ResolvedRevision::default(),
        uid: "u",
        endpoint: &WebhookEndpoint::Url("https://example.com".into()),
        defaults: &defaults,
        confirmed: true,
    });
    match desired.into_iter().next() {
        Some(Desired::Validating(object)) => *object,
        other => panic!("the policy validates: {other:?}"),
    }
}

/// A revision with this module.
fn mk_spec(module: &str) -> PolicyRevisionSpec {
    let module = Module {
        digest: Digest::of(module.as_bytes()),
        size: 7,
        abi: "wapc".into(),
        host_capabilities: Vec::new(),
        url: "registry://example.com/policy:v1".into(),
        signer: None,
        secret_settings: None,
    };
    let limits = Limits::default();
    assent_controller::revision::make(&mk_parsed(), "u", 1, &module, limits).1
}

/// A revision as the API server answers it.
fn mk_stored(content: &str) -> Value {
    let key = PolicyKey::cluster("a");
    let object = crate::revision::object(&key, &mk_id(), mk_spec(content), "assent-system");
    serde_json::to_value(object).unwrap()
}

fn mk_policy_id() -> PolicyId {
    PolicyId {
        key: PolicyKey::cluster("a"),
        uid: "u".into(),
    }
}

#[tokio::test]
async fn revision_of_an_earlier_leader_is_reused() {
    for other in [Existing::Keep, Existing::Replace] {
        let script = Script::new([failure(409, "AlreadyExists"), (200, mk_stored("new"))]);
        let stored = script.store(other).await.unwrap();
        assert_eq!(stored.metadata.name.as_deref(), Some("a-1-u"));
        assert_eq!(
            script.requests(),
            ["POST policyrevisions", "GET policyrevisions/a-1-u"]
        );
    }
}

/// Replicas may hold it: a name has one content.
#[tokio::test]
async fn revision_with_other_content_stays() {
    let script = Script::new([failure(409, "AlreadyExists"), (200, mk_stored("old"))]);
    let failure = script.store(Existing::Keep).await.unwrap_err();
    assert!(failure.retryable);
    assert_eq!(
        script.requests(),
        ["POST policyrevisions", "GET policyrevisions/a-1-u"]
    );
}

#[tokio::test]
async fn forged_or_damaged_revision_is_replaced() {
    let mut forged = mk_stored("new");
    forged["metadata"]["ownerReferences"] = json!([]);
    let mut damaged = mk_stored("new");
    damaged["spec"]["settings"] = r#"{"n":666}"#.into();
    let cases = [
        (forged.clone(), Existing::Keep),
        (forged, Existing::Replace),
        (damaged, Existing::Keep),
        (mk_stored("old"), Existing::Replace),
    ];
    for (existing, other) in cases {
        let script = Script::new([
            failure(409, "AlreadyExists"),
            (200, existing.clone()),
            (200, existing.clone()),
            (200, existing),
            (201, mk_stored("new")),
        ]);
        script.store(other).await.unwrap();
        // The finalizer would keep the one that is deleted.
        assert_eq!(
            script.requests(),
            [
                "POST policyrevisions",
                "GET policyrevisions/a-1-u",
                "DELETE policyrevisions/a-1-u",
                "PATCH policyrevisions/a-1-u",
                "POST policyrevisions",
            ]
        );
    }
}

#[tokio::test]
async fn revision_that_is_deleted_meanwhile_is_created_again() {
    let script = Script::new([
        failure(409, "AlreadyExists"),
        not_found(),
        (201, mk_stored("new")),
    ]);
    script.store(Existing::Keep).await.unwrap();
    assert_eq!(script.requests().len(), 3);
}

#[tokio::test]
async fn revision_that_somebody_keeps_changing_is_retried_later() {
    let round = || {
        [
            failure(409, "AlreadyExists"),
            (200, mk_stored("old")),
            (200, mk_stored("old")),
            (200, mk_stored("old")),
        ]
    };
    let script = Script::new([round(), round(), round()].into_iter().flatten());
    let failure = script.store(Existing::Replace).await.unwrap_err();
    assert!(failure.retryable);
    let message = failure.refusal.message;
    assert!(message.contains("keeps changing it"), "{message}");
}

#[tokio::test]
async fn rejection_for_good_is_told_from_a_temporary_failure() {
    let script = Script::new([failure(422, "Invalid")]);
    let rejected = script.store(Existing::Keep).await.unwrap_err();
    assert!(!rejected.retryable);
    assert_eq!(rejected.refusal.reason, RefusalReason::Invalid);
    assert_eq!(rejected.refusal.message, "Invalid from the test");
    let script = Script::new([failure(500, "InternalError")]);
    let failed = script.store(Existing::Keep).await.unwrap_err();
    assert!(failed.retryable);
    let message = failed.refusal.message;
    assert!(message.contains("InternalError"), "{message}");
}

#[tokio::test]
async fn process_that_does_not_lead_writes_no_route() {
    let script = Script::new([]);
    script.leads.store(false, Ordering::Relaxed);
    let update = RouteUpdate {
        desired: vec![Desired::Validating(Box::default())],
        existing: Vec::new(),
    };
    let written = write(&script.context, &update).await;
    assert!(matches!(written, Err(webhook::Error::Conflict)));
    assert!(script.requests().is_empty());
}

#[tokio::test]
async fn removed_routes_are_reported_by_uid() {
    let object = json!({
        "metadata": { "name": "assent.cluster.a", "uid": "w" },
        "webhooks": [],
    });
    let object = serde_json::from_value(object).unwrap();
    let route = convert::route(Kind::Mutating, object).unwrap();
    let script = Script::new([failure(500, "InternalError"), not_found()]);
    let [removed] = remove_all(&script.context, &[route])
        .await
        .try_into()
        .unwrap();
    assert_eq!(removed.kind, Kind::Mutating);
    assert_eq!(
        (removed.name.as_str(), removed.uid.as_str()),
        ("assent.cluster.a", "w")
    );
    assert_eq!(script.requests().len(), 2);
}

#[tokio::test]
async fn rollback_without_a_target_removes_the_annotation() {
    let policy = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": { "name": "a", "uid": "u", "resourceVersion": "8", "generation": 3 },
    });
    let script = Script::new([
        failure(500, "InternalError"),
        (200, policy.clone()),
        (200, policy),
    ]);
    let meta = Meta {
        name: "a".into(),
        uid: "u".into(),
        resource_version: "7".into(),
        ..Meta::default()
    };
    let target = Err("there is none".to_owned());
    let key = PolicyKey::cluster("a");
    let result = roll_back(&script.context, &key, &meta, target).await;
    assert_eq!(result.unwrap_err(), "there is none");
    assert_eq!(script.requests().len(), 3);
}

#[tokio::test]
async fn phases_of_a_policy_are_written_in_order() {
    let fine = || (200, mk_stored("new"));
    // The first write fails twice; the second must not overtake it.
    let script = Script::new([
        failure(500, "InternalError"),
        failure(500, "InternalError"),
        fine(),
        fine(),
        fine(),
    ]);
    let (mut executor, mut outcomes) = script.executor();
    for phase in [Phase::Active, Phase::Draining] {
        executor.perform(Action::SetPhase(mk_policy_id(), mk_id(), phase));
    }
    executor.perform(Action::RetireRevision {
        id: mk_policy_id(),
        revision: mk_id(),
        keep: true,
    });
    for _ in 0..2 {
        let outcome = outcomes.recv().await.unwrap();
        let Outcome::PhaseSet(_, _, object) = outcome else {
            panic!("a phase must be reported: {outcome:?}");
        };
        assert!(object.is_some());
    }
    let outcome = outcomes.recv().await.unwrap();
    assert!(matches!(outcome, Outcome::Retired(id, _) if id == mk_policy_id()));
    let phases = script.requests.take_all().into_iter();
    let phases: Vec<Value> = phases.map(|r| r.body["status"]["phase"].clone()).collect();
    assert_eq!(
        phases,
        ["Active", "Active", "Active", "Draining", "History"]
    );
    // What comes later is written too.
    assert!(
        executor
            .phases
            .push(&mk_policy_id(), PhaseWrite::Retire(mk_id(), true))
    );
}

#[tokio::test]
async fn executor_returns_actions_that_concern_no_object() {
    let (mut executor, _outcomes) = Script::new([]).executor();
    let action = executor.perform(Action::AddServer("default".into()));
    assert!(matches!(action, Some(Action::AddServer(_))));
}

/// Somebody removed the labels of a configuration: watches no longer report it.
#[tokio::test]
async fn configuration_that_lost_its_labels_is_taken_back() {
    let desired = mk_desired();
    let mut stripped = serde_json::to_value(&desired).unwrap();
    stripped["metadata"]["labels"] = json!({});
    stripped["metadata"]["resourceVersion"] = "7".into();
    let script = Script::new([
        (200, stripped.clone()),
        not_found(),
        failure(409, "AlreadyExists"),
        (200, stripped.clone()),
        (200, stripped),
    ]);
    let written = write(&script.context, &mk_update(&desired)).await;
    assert!(written.is_ok(), "{written:?}");
}

/// The response to a flip was lost, and the watch has not reported its configuration: going on would create another one
/// beside it.
#[tokio::test]
async fn configuration_that_the_watch_has_not_reported_is_a_conflict() {
    let desired = mk_desired();
    let written_before = serde_json::to_value(&desired).unwrap();
    let same_kind = vec![(200, written_before.clone())];
    let other_kind = vec![not_found(), (200, written_before)];
    for answers in [same_kind, other_kind] {
        let reads = answers.len();
        let script = Script::new(answers);
        let written = write(&script.context, &mk_update(&desired)).await;
        assert!(
            matches!(written, Err(webhook::Error::Conflict)),
            "{written:?}"
        );
        let requests = script.requests();
        assert_eq!(requests.len(), reads, "{requests:?}");
        assert!(
            requests.iter().all(|r| r.starts_with("GET ")),
            "{requests:?}"
        );
    }
}

/// A configuration of which the mirror knows nothing.
fn mk_update(desired: &ValidatingWebhookConfiguration) -> RouteUpdate<Cluster> {
    RouteUpdate {
        desired: vec![Desired::Validating(Box::new(desired.clone()))],
        existing: Vec::new(),
    }
}
