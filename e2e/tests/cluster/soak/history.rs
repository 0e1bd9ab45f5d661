//! The record of a run: what was written, acknowledged, flipped and decided, with times.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use assent_e2e::kube::api::{self, POLICIES};
use futures::TryStreamExt as _;
use hyper::Request;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::Soak;
use crate::{
    installation::{POLICY, items, name, uid},
    probe,
};

/// Kinds that are recorded.
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const REVISIONS: &str = "/apis/policies.assent.dev/v1alpha1/policyrevisions";
const SERVERS: &str = "/apis/policies.assent.dev/v1alpha1/policyservers";

#[derive(Clone, Default)]
pub(super) struct History {
    begun: Option<Instant>,
    entries: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Since the beginning.
    pub(super) at: Duration,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// A policy as it was stored.
    Policy(Box<PolicyState>),
    /// The generation that the webhook of a policy names; `None` if it is gone.
    Routed(String, Option<i64>),
    /// The phase of a revision.
    Phase(String, String),
    /// Evaluators that serve the whole snapshot, and all evaluators.
    Acknowledged(usize, usize),
    /// A response to a request that was sent at this time.
    Response(Duration, probe::Request, Result<(), probe::Failure>),
    /// A pod with the image that one content of the policy exempts: sent when, which content,
    /// whether it was accepted; `None` if the webhook failed.
    Decision(Duration, u64, Option<bool>),
    /// Something was done to the installation; requests of these kinds may fail for a while.
    Fault(String, Vec<probe::Request>),
    /// A user did something.
    User(String),
}

/// What matters of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyState {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    /// The number in its exempt image.
    pub(super) content: Option<u64>,
    /// The generation that its status is about.
    pub(super) observed: i64,
    /// Whether that generation is programmed and enforced.
    pub(super) programmed: bool,
    pub(super) enforced: bool,
    /// Replicas that apply the newest revision, and all that must.
    pub(super) applied: i64,
    pub(super) desired: i64,
}

// === impl History ===

impl History {
    pub(super) fn start() -> Self {
        Self {
            begun: Some(Instant::now()),
            entries: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    pub(super) fn add(&self, what: What) {
        let at = self.now();
        self.lock().push(Entry { at, what });
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    /// Everything but expected responses.
    pub(super) fn text(&self) -> String {
        let entries = self.entries();
        let worth = entries.iter().filter(|entry| {
            !matches!(
                entry.what,
                What::Response(_, _, Ok(())) | What::Decision(_, _, Some(_))
            )
        });
        worth.map(|entry| format!("{entry}\n")).collect()
    }

    pub(super) fn summary(&self) -> String {
        let entries = self.entries();
        let count = |is: fn(&What) -> bool| entries.iter().filter(|e| is(&e.what)).count();
        format!(
            "{} faults, {} changes, {} flips, {} responses, {} decisions",
            count(|w| matches!(w, What::Fault(..))),
            count(|w| matches!(w, What::User(_))),
            count(|w| matches!(w, What::Routed(..))),
            count(|w| matches!(w, What::Response(..))),
            count(|w| matches!(w, What::Decision(..))),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().expect("the lock must not be poisoned")
    }
}

// === impl Entry ===

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.3} {}", self.at.as_secs_f64(), self.what)
    }
}

// === impl What ===

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Policy(state) => write!(f, "{state:?}"),
            What::Routed(policy, to) => write!(f, "the webhook of {policy} names {to:?}"),
            What::Phase(revision, phase) => write!(f, "{revision} is {phase}"),
            What::Acknowledged(current, all) => {
                write!(f, "{current} of {all} evaluators serve the snapshot")
            }
            What::Response(sent, request, result) => {
                write!(f, "{request:?} of {:.3}: {result:?}", sent.as_secs_f64())
            }
            What::Decision(sent, content, accepted) => {
                let sent = sent.as_secs_f64();
                write!(f, "content {content} of {sent:.3}: accepted {accepted:?}")
            }
            What::Fault(what, _) => write!(f, "fault: {what}"),
            What::User(what) => write!(f, "user: {what}"),
        }
    }
}

impl Soak {
    /// Watches everything that is recorded, until the run is over.
    pub(super) async fn record(&self) -> Vec<JoinHandle<()>> {
        let kinds = [POLICIES, WEBHOOKS, REVISIONS, SERVERS];
        let mut tasks = Vec::new();
        for path in kinds {
            // The first list is recorded before anything happens.
            let version = self.list(path).await;
            tasks.push(tokio::spawn(self.clone().follow(path, version)));
        }
        tasks
    }

    async fn follow(self, path: &'static str, mut version: String) {
        while !self.is_over() {
            let watch = self.watch(path, &version).await;
            if watch.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            version = self.list(path).await;
        }
    }

    /// Lists a kind: the version to watch from.
    async fn list(&self, path: &str) -> String {
        loop {
            let listed = api::try_ask(&self.site.client, "GET", path, &Value::Null).await;
            if let Ok((200, list)) = listed {
                for object in items(&list) {
                    self.saw(path, object, false);
                }
                let version = &list["metadata"]["resourceVersion"];
                return version.as_str().unwrap_or_default().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Follows a kind until the watch ends, at the latest after some seconds.
    async fn watch(&self, path: &str, version: &str) -> Result<(), kube::Error> {
        let query = format!("watch=true&timeoutSeconds=10&resourceVersion={version}");
        let request = Request::get(format!("{path}?{query}")).body(Vec::new());
        let request = request.expect("a request must be complete");
        let events = self.site.client.request_events::<Value>(request).await?;
        let mut events = pin!(events);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.saw(path, &object, false);
                }
                WatchEvent::Deleted(object) => self.saw(path, &object, true),
                WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn saw(&self, path: &str, object: &Value, gone: bool) {
        let what = match path {
            WEBHOOKS => routed(object, gone),
            POLICIES => (!gone).then(|| What::Policy(Box::new(policy(object)))),
            REVISIONS => {
                let phase = object["status"]["phase"].as_str().unwrap_or("Candidate");
                let phase = if gone { "gone" } else { phase };
                Some(What::Phase(name(object).to_owned(), phase.to_owned()))
            }
            _ => Some(acknowledged(object)),
        };
        if let Some(what) = what {
            self.history.add(what);
        }
    }
}

/// The generation in the path of a policy's webhook.
fn routed(object: &Value, gone: bool) -> Option<What> {
    let policy = name(object).strip_prefix("assent.cluster.")?;
    let path = object.pointer("/webhooks/0/clientConfig/service/path")?;
    let short = path.as_str()?.rsplit('/').next()?;
    let generation = short.split('-').next()?.parse().ok()?;
    Some(What::Routed(
        policy.to_owned(),
        (!gone).then_some(generation),
    ))
}

fn policy(object: &Value) -> PolicyState {
    let status = &object["status"];
    let is_true = |kind: &str| {
        let conditions = status["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|c| c["type"] == kind && c["status"] == "True")
    };
    let count = |field: &str| status["rollout"][field].as_i64().unwrap_or(0);
    let image = object.pointer("/spec/settings/exemptImages/0");
    PolicyState {
        name: name(object).to_owned(),
        uid: uid(object).to_owned(),
        generation: object["metadata"]["generation"].as_i64().unwrap_or(0),
        content: image.and_then(Value::as_str).and_then(content),
        observed: status["observedGeneration"].as_i64().unwrap_or(0),
        programmed: is_true("Programmed"),
        enforced: is_true("Enforced"),
        applied: count("applied"),
        desired: count("desired"),
    }
}

fn acknowledged(server: &Value) -> What {
    let rows = server["status"]["evaluators"].as_array();
    let rows = rows.map_or(&[][..], Vec::as_slice);
    let current = |row: &&Value| row["conditions"][0]["status"] == "True";
    What::Acknowledged(rows.iter().filter(current).count(), rows.len())
}

/// The image that a content of the policy exempts.
pub(super) fn image(content: u64) -> String {
    format!("example.com/soak-{content}:1")
}

/// The setting that exempts it.
pub(super) fn exempt(content: u64) -> String {
    format!("example.com/soak-{content}:*")
}

fn content(setting: &str) -> Option<u64> {
    let rest = setting.strip_prefix("example.com/soak-")?;
    rest.strip_suffix(":*")?.parse().ok()
}

/// Whether an entry is about the policy that is under load.
pub(super) fn is_main(name: &str) -> bool {
    name == POLICY
}
