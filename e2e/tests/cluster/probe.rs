//! Sends requests without pause and records every response that is not as expected.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use assent_e2e::kube::api;
use kube::Client;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::installation::{
    Installation, SHOP, WORDS, exempting, pod, policy_path, within_patience,
};

/// The kinds of requests, all of them dry runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A privileged pod: the policy must deny it with its own message.
    Privileged,
    /// Another pod: it must be accepted.
    Compliant,
    /// An edit of the policy: the control plane must accept it.
    Edit,
}

/// The requests that evaluators answer.
pub(crate) const PODS: [Request; 2] = [Request::Privileged, Request::Compliant];

const ALL: [Request; 3] = [Request::Privileged, Request::Compliant, Request::Edit];

/// Between two requests of one kind: about twenty per second in total.
const PAUSE: Duration = Duration::from_millis(100);

/// Consecutive expected responses after which the system counts as stable.
const STABLE: u32 = 5;

/// Sends requests until it is dropped.
pub(crate) struct Probe {
    history: Arc<Mutex<History>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct History {
    responses: usize,
    /// Consecutive expected responses, by request.
    streaks: [u32; 3],
    failures: Vec<Failure>,
}

/// An unexpected response.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    request: Request,
    /// A request was allowed that the policy denies. No injected fault excuses that.
    pub(crate) unenforced: bool,
    pub(crate) message: String,
}

// === impl Probe ===

impl Probe {
    pub(crate) fn start(site: &Installation) -> Self {
        let history = Arc::default();
        let send = |request| {
            tokio::spawn(send_repeatedly(
                request,
                site.client.clone(),
                Arc::clone(&history),
            ))
        };
        let tasks = ALL.map(send).into();
        Self { history, tasks }
    }

    /// Runs `step`. Meanwhile no denied request may be allowed, and only requests in `may_fail`
    /// may fail; afterwards all must succeed.
    pub(crate) async fn through<T>(
        &self,
        what: &str,
        may_fail: &[Request],
        step: impl Future<Output = T>,
    ) -> T {
        let begun = Instant::now();
        let (sent, first) = self.counts();
        let done = step.await;
        self.wait_stable(what).await;
        let failures = self.lock().failures[first..].to_vec();
        let excused = |f: &Failure| !f.unenforced && may_fail.contains(&f.request);
        let inexcusable = failures.iter().filter(|f| !excused(f));
        let inexcusable: Vec<String> = inexcusable.map(Failure::to_string).collect();
        assert!(inexcusable.is_empty(), "while {what}: {inexcusable:#?}");
        let (took, failed) = (begun.elapsed().as_secs_f32(), failures.len());
        let sent = self.counts().0 - sent;
        eprintln!("{took:5.1} s  while {what}: {failed} of {sent} requests failed");
        done
    }

    /// Waits until every kind of request got the expected response several times in a row.
    async fn wait_stable(&self, what: &str) {
        self.lock().streaks = [0; 3];
        let stable = async || self.lock().streaks.iter().all(|streak| *streak >= STABLE);
        within_patience(&format!("stable after {what}"), stable).await;
    }

    /// Numbers of responses and of failures so far.
    fn counts(&self) -> (usize, usize) {
        let history = self.lock();
        (history.responses, history.failures.len())
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("the lock must not be poisoned")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if std::thread::panicking() {
            for failure in &self.lock().failures {
                eprintln!("--- unexpected response: {failure}");
            }
        }
    }
}

async fn send_repeatedly(request: Request, client: Client, history: Arc<Mutex<History>>) {
    for number in 0_u32.. {
        let response = request.send(&client, number).await;
        let history = history.lock();
        history
            .expect("the lock must not be poisoned")
            .record(request, response);
        tokio::time::sleep(PAUSE).await;
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.request, self.message)
    }
}

// === impl History ===

impl History {
    fn record(&mut self, request: Request, response: Result<(), Failure>) {
        self.responses += 1;
        let streak = &mut self.streaks[request as usize];
        *streak = response.as_ref().map_or(0, |()| *streak + 1);
        self.failures.extend(response.err());
    }
}

// === impl Request ===

impl Request {
    pub(crate) async fn send(self, client: &Client, number: u32) -> Result<(), Failure> {
        let response = match self {
            Self::Privileged => try_pod(client, true).await,
            Self::Compliant => try_pod(client, false).await,
            Self::Edit => try_edit(client, number).await,
        };
        match (self, response) {
            (Self::Privileged, Ok((201, _))) => Err(self.failure(true, "it was accepted".into())),
            (Self::Privileged, Ok((_, status))) if message(&status).contains(WORDS) => Ok(()),
            (Self::Compliant, Ok((201, _))) | (Self::Edit, Ok((200, _))) => Ok(()),
            // A concurrent write by somebody else.
            (Self::Edit, Ok((409, _))) => Ok(()),
            (_, Ok((code, status))) => {
                Err(self.failure(false, format!("{code} {}", message(&status))))
            }
            (_, Err(why)) => Err(self.failure(false, why)),
        }
    }

    fn failure(self, unenforced: bool, message: String) -> Failure {
        Failure {
            request: self,
            unenforced,
            message,
        }
    }
}

fn message(status: &Value) -> String {
    status["message"].to_string()
}

type Response = Result<(u16, Value), String>;

async fn try_pod(client: &Client, privileged: bool) -> Response {
    let pod = pod("probe", "localhost/busybox:1", privileged);
    let path = format!("/api/v1/namespaces/{SHOP}/pods?dryRun=All");
    api::try_ask(client, "POST", &path, &pod).await
}

/// Changes the spec: otherwise no webhook would be called.
async fn try_edit(client: &Client, number: u32) -> Response {
    let edit = exempting(&format!("example.com/never-{number}:*"));
    let path = format!("{}?dryRun=All", policy_path());
    api::try_ask(client, "PATCH", &path, &edit).await
}
