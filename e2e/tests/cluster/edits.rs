//! A policy is edited while pods are made.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use assent_e2e::kube::api;
use serde_json::{Value, json};

use crate::{
    installation::{EVALUATORS, Installation, SHOP, WORDS, items, pod, uid},
    probe::Probe,
};

const PODS: usize = 200;
const EDITS: usize = 4;

/// Pods that were made, and what went wrong.
#[derive(Default)]
struct Made {
    asked: usize,
    taken: usize,
    wrong: Vec<String>,
}

/// Every pod that may be is made, no other is, and no evaluator is restarted for it.
pub(crate) async fn two_hundred_pods(site: &Installation, probe: &Probe) {
    let before = lives(site).await;
    let mut made = Made::default();
    let what = "a policy is edited while 200 pods are made";
    let step = async {
        for round in 1..=EDITS {
            let enough = PODS * round / EDITS;
            let changed = AtomicBool::new(false);
            let change = async {
                site.change().await;
                changed.store(true, Ordering::Relaxed);
            };
            let make = async {
                while !changed.load(Ordering::Relaxed) || made.asked < enough {
                    made.make_one(site).await;
                }
            };
            tokio::join!(change, make);
        }
    };
    probe.through(what, &[], step).await;
    assert_eq!(made.wrong, Vec::<String>::new());
    assert_eq!(lives(site).await, before, "evaluators went on");

    let path = format!("/api/v1/namespaces/{SHOP}/pods?labelSelector=made-by%3Dtest");
    let list = api::get(&site.client, &path).await;
    let privileged = |pod: &&Value| {
        let context = &pod["spec"]["containers"][0]["securityContext"];
        context["privileged"] == true
    };
    assert_eq!(items(&list).len(), made.taken);
    assert_eq!(items(&list).iter().find(privileged), None);
    let (code, answer) = api::ask(&site.client, "DELETE", &path, &json!({})).await;
    assert_eq!(code, 200, "{answer}");
}

// === impl Made ===

impl Made {
    /// Every other pod is privileged.
    async fn make_one(&mut self, site: &Installation) {
        let privileged = self.asked.is_multiple_of(2);
        let pod = pod(
            &format!("made-{}", self.asked),
            "localhost/busybox:1",
            privileged,
        );
        let path = format!("/api/v1/namespaces/{SHOP}/pods");
        let answer = api::ask(&site.client, "POST", &path, &pod).await;
        self.asked += 1;
        match answer {
            (201, _) if !privileged => self.taken += 1,
            (_, status) if privileged && status["message"].to_string().contains(WORDS) => {}
            (code, status) => self.wrong.push(format!("{code} {}", status["message"])),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Every evaluator's pod, and how often its container was started.
async fn lives(site: &Installation) -> Vec<(String, Value)> {
    let pods = site.pods(EVALUATORS).await;
    let life = |pod: &Value| {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        (uid(pod).to_owned(), restarts.clone())
    };
    pods.iter().map(life).collect()
}
