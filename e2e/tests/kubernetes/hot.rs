//! A policy is edited while it is asked without pause.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use assent_e2e::{
    eventually,
    kube::{
        Harness,
        harness::{NAMESPACE, no_privileged},
    },
};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::api::{self, POLICIES};

const EDITS: usize = 50;

/// Retired revisions that the policy keeps.
const KEPT: usize = 3;

/// Asks about pods until it is stopped. Privileged ones must be denied with a message that begins with that word.
pub(crate) struct Asking {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

impl Asking {
    pub(crate) fn start(client: &Client) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let asked: Arc<AtomicUsize> = Arc::default();
        let ask = |privileged| {
            let (stop, asked) = (stop.clone(), asked.clone());
            tokio::spawn(ask(client.clone(), privileged, stop, asked))
        };
        let tasks = vec![ask(true), ask(false), ask(true)];
        Self { stop, asked, tasks }
    }

    /// Everything that was not answered as every revision answers it.
    pub(crate) async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut wrong = Vec::new();
        for task in self.tasks {
            wrong.extend(task.await.unwrap());
        }
        wrong
    }

    /// Waits until each edit meets requests.
    pub(crate) async fn more(&self) {
        let before = self.asked.load(Ordering::Relaxed);
        let more = async || self.asked.load(Ordering::Relaxed) >= before + 6;
        eventually("requests are answered", more).await;
    }
}

async fn ask(
    client: Client,
    privileged: bool,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = api::try_pod(&client, privileged).await;
        asked.fetch_add(1, Ordering::Relaxed);
        match (privileged, answer) {
            (false, Ok(())) => {}
            (true, Err(why)) if why.contains("denied the request: privileged") => {}
            (_, Ok(())) => wrong.push("a privileged pod was taken".into()),
            (_, Err(why)) => wrong.push(why),
        }
    }
    wrong
}

async fn pod_uids(client: &Client) -> Vec<Value> {
    let pods = api::get(client, &format!("/api/v1/namespaces/{NAMESPACE}/pods")).await;
    let pods = pods["items"].as_array().unwrap().iter();
    pods.map(|pod| pod["metadata"]["uid"].clone()).collect()
}

async fn revisions(client: &Client) -> Vec<i64> {
    let path = format!("/apis/policies.assent.dev/v1alpha1/namespaces/{NAMESPACE}/policyrevisions");
    let list = api::get(client, &path).await;
    let list = list["items"].as_array().unwrap().iter();
    let mut list: Vec<i64> = list
        .map(|r| r["spec"]["generation"].as_i64().unwrap())
        .collect();
    list.sort_unstable();
    list
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_edits_lose_no_request_and_restart_nothing() {
    let mut harness = Harness::start(2).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    let mut policy = no_privileged("np", &module, &[]);
    policy["spec"]["revisionHistoryLimit"] = KEPT.into();
    harness.enforce(&policy).await;
    let client = api::admin(&harness).await;
    let before = pod_uids(&client).await;
    assert_eq!(before.len(), 2);

    let asking = Asking::start(&client);
    for edit in 0..EDITS {
        // Exempt is what nobody runs: each revision denies what is asked.
        let exempt = if edit % 2 == 0 {
            json!(["other:*"])
        } else {
            json!([])
        };
        let patch = json!({"spec": {"settings": {"exemptImages": exempt}}});
        let path = format!("{POLICIES}/np");
        let (code, object) = api::ask(&client, "PATCH", &path, &patch).await;
        assert_eq!(code, 200, "{object}");
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        // Some follow each other at once, some after they took over.
        if edit % 5 == 4 {
            let flipped = async || {
                let status = &api::get(&client, &path).await["status"];
                status["active"]["generation"] == generation
            };
            eventually(&format!("generation {generation} is active"), flipped).await;
        }
        asking.more().await;
    }
    let policy = harness.enforced("np").await;
    let last = EDITS as i64 + 1;
    assert_eq!(policy["status"]["active"]["generation"], last);
    assert_eq!(policy["status"]["rollout"]["applied"], 2);
    let trimmed = async || revisions(&client).await.len() <= KEPT + 1;
    eventually("revisions are trimmed", trimmed).await;
    let wrong = asking.end().await;
    assert_eq!(wrong, Vec::<String>::new());

    let kept = revisions(&client).await;
    assert_eq!(kept.len(), KEPT + 1, "{kept:?}");
    assert_eq!(kept.last(), Some(&last));
    assert_eq!(pod_uids(&client).await, before);
    for evaluator in &mut harness.evaluators {
        assert!(evaluator.process.ended().is_none(), "an evaluator ended");
        let metrics = evaluator.metrics().await;
        let errors = metrics
            .lines()
            .find(|line| line.starts_with("assent_evaluation_errors_total"));
        assert_eq!(errors, None);
    }
}
