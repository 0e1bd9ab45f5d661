//! From a request to its answer: look up, admit, read, judge.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use assent_core::Mode;
use assent_wasm::Verdict;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming as Body};
use prometheus_client::metrics::histogram::Histogram;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    answer,
    review::{Endpoint, Error, Incoming, check_content_type},
};
use crate::{
    active::{Active, Found},
    metrics::{CodeLabels, Metrics},
    readiness::Readiness,
    served::Served,
};

/// Answers review requests.
pub(crate) struct Handler {
    active: Arc<Active>,
    readiness: Arc<Readiness>,
    metrics: Metrics,
    bounds: Bounds,
    /// Whether the runtime's threads can judge: one alone has other things to do.
    threaded: bool,
}

/// What all requests together may take.
struct Bounds {
    /// Requests in the house, waiting ones included.
    requests: Arc<Semaphore>,
    /// Body bytes in memory, in KiB.
    memory: Arc<Semaphore>,
    /// Evaluations at once.
    threads: Arc<Semaphore>,
}

/// Who is to judge, and how.
struct Asked {
    endpoint: Endpoint,
    served: Vec<Arc<Served>>,
    /// When waiting is of no more use.
    until: Instant,
    /// Whether other requests come over the same connection meanwhile.
    multiplexed: bool,
}

/// A review that may be judged now, with all that it holds meanwhile.
struct Admitted {
    asked: Asked,
    body: Bytes,
    seconds: Histogram,
    _held: [OwnedSemaphorePermit; 3],
}

type Answer = Response<Full<Bytes>>;

/// An UPDATE carries two objects of at most 3 MiB each.
const BODY: usize = 7 << 20;

/// A body comes from the same cluster; the API server gives up after 10 s by default.
const BODY_TIME: Duration = Duration::from_secs(10);

/// What a webhook waits for unless it says otherwise, and the most that it may say.
const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(30);

/// Some thousand requests wait for less than the API server's patience; more would time out.
const REQUESTS: usize = 4_096;

/// What a thread needs to begin with work that it has taken; more only if the machine is overloaded.
const BEGIN: Duration = Duration::from_millis(1);

/// For a new thread on an overloaded machine.
const HAND_OVER: Duration = Duration::from_millis(50);

/// Longer bodies take time by themselves.
const SMALL: usize = 64 << 10;

/// 256 MiB: 36 of the largest reviews, or all of the typical ones.
const MEMORY_KIB: usize = 256 << 10;

// === impl Handler ===

impl Handler {
    pub(crate) fn new(
        active: Arc<Active>,
        readiness: Arc<Readiness>,
        metrics: Metrics,
        threads: usize,
    ) -> Self {
        Self {
            active,
            readiness,
            metrics,
            bounds: Bounds {
                requests: Arc::new(Semaphore::new(REQUESTS)),
                memory: Arc::new(Semaphore::new(MEMORY_KIB)),
                threads: Arc::new(Semaphore::new(threads)),
            },
            threaded: Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread,
        }
    }

    pub(crate) async fn handle(&self, request: Request<Body>) -> Answer {
        let old = request.version() < Version::HTTP_2;
        let mut response = match self.answer(request).await {
            Ok(response) => response,
            Err(error) => answer::problem(error.status(), &error.to_string()),
        };
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(header::ALLOW, post);
        }
        if old && self.readiness.is_draining() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        let code = response.status().as_u16();
        self.metrics
            .requests
            .get_or_create(&CodeLabels { code })
            .inc();
        response
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, Error> {
        let arrived = Instant::now();
        let path = request.uri().path().to_owned();
        let (endpoint, path) = Endpoint::split(&path).ok_or(Error::Endpoint)?;
        if request.method() != Method::POST {
            return Err(Error::Method(request.method().clone()));
        }
        check_content_type(request.headers())?;
        let served = match self.active.load().find(path, &self.metrics) {
            Found::By(served) => served,
            Found::NotLoaded(why) => {
                return Ok(answer::problem(StatusCode::SERVICE_UNAVAILABLE, &why));
            }
            Found::Unknown => {
                let why = format!("no policy answers {path:?}");
                return Ok(answer::problem(StatusCode::NOT_FOUND, &why));
            }
        };
        let asked = Asked {
            endpoint,
            until: arrived + patience(request.uri().query(), &served),
            served,
            multiplexed: request.version() >= Version::HTTP_2,
        };
        let Ok(_place) = self.bounds.requests.clone().try_acquire_owned() else {
            return Ok(self.overloaded("too many requests are waiting"));
        };
        let Some((body, memory)) = self.read(request).await? else {
            return Ok(self.overloaded("too many large requests are waiting"));
        };
        self.evaluate(asked, body, memory).await
    }

    /// Reads the body within the budget of bytes; none when that is used up.
    async fn read(
        &self,
        request: Request<Body>,
    ) -> Result<Option<(Bytes, OwnedSemaphorePermit)>, Error> {
        let body = request.into_body();
        let upper = body.size_hint().upper().unwrap_or(BODY as u64);
        if upper > BODY as u64 {
            return Err(Error::TooLarge(BODY));
        }
        let kib = u32::try_from(upper.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let Ok(memory) = self.bounds.memory.clone().try_acquire_many_owned(kib) else {
            return Ok(None);
        };
        let collected = tokio::time::timeout(BODY_TIME, Limited::new(body, BODY).collect()).await;
        match collected.map_err(|_| Error::Slow)? {
            Ok(body) => Ok(Some((body.to_bytes(), memory))),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(Error::TooLarge(BODY))
            }
            Err(error) => Err(Error::Body(error.to_string())),
        }
    }

    /// Judges a quick policy right here, because waking another thread takes as long as many an
    /// evaluation, and others on a thread of their own: a policy that burns its deadline must not hold
    /// up those that accept and read.
    async fn evaluate(
        &self,
        asked: Asked,
        body: Bytes,
        memory: OwnedSemaphorePermit,
    ) -> Result<Answer, Error> {
        let turn = match asked.served[0].gate.enter(asked.until).await {
            Ok(turn) => turn,
            Err(refusal) => return Ok(self.overloaded(&refusal.to_string())),
        };
        let Some(thread) = self.thread(asked.until).await else {
            return Ok(self.overloaded("the request would wait until its time is over"));
        };
        let admitted = Admitted {
            asked,
            body,
            seconds: self.metrics.evaluation_seconds.clone(),
            // Until the work is done, even if the client goes away.
            _held: [turn, thread, memory],
        };
        let judged = if self.threaded && admitted.is_quick() {
            if admitted.asked.multiplexed {
                // Reading the body has woken the connection, on this thread: it goes first.
                tokio::task::yield_now().await;
            }
            let judge = || admitted.judge(Some(hand_over));
            panic::catch_unwind(AssertUnwindSafe(judge)).ok()
        } else {
            let judge = || admitted.judge(None);
            tokio::task::spawn_blocking(judge).await.ok()
        };
        judged.unwrap_or_else(|| {
            tracing::error!("an evaluation ended without an answer");
            let why = "the evaluation ended without an answer";
            Ok(answer::problem(StatusCode::INTERNAL_SERVER_ERROR, why))
        })
    }

    /// Waits for one of the threads that judge.
    async fn thread(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.bounds.threads.clone().try_acquire_owned() {
            return Some(permit);
        }
        let turn = self.bounds.threads.clone().acquire_owned();
        let turn = tokio::time::timeout_at(until.into(), turn).await;
        turn.ok()?.ok()
    }

    fn overloaded(&self, why: &str) -> Answer {
        self.metrics.overload_rejections.inc();
        answer::problem(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

// === impl Admitted ===

impl Admitted {
    /// Whether judging will hardly take longer than reading did. Calls to the outside wait.
    fn is_quick(&self) -> bool {
        let quick = |one: &Arc<Served>| {
            one.policy.content.host_capabilities.is_empty() && one.gate.is_quick()
        };
        self.body.len() <= SMALL && self.asked.served.iter().all(quick)
    }

    fn judge(self, long: Option<fn()>) -> Result<Answer, Error> {
        let Asked {
            endpoint, served, ..
        } = &self.asked;
        let incoming = Incoming::parse(*endpoint, &self.body)?;
        let began = Instant::now();
        let verdict = judge(*endpoint, served, &incoming, long);
        let took = began.elapsed();
        served[0].gate.took(took);
        self.seconds.observe(took.as_secs_f64());
        Ok(answer::verdict(*endpoint, &incoming.uid, &verdict))
    }
}

/// A policy that was quick is not: from now on another thread is one of the runtime's in place of this one, with
/// all that is scheduled here, unless it has not begun by the end of this.
fn hand_over() {
    tokio::task::block_in_place(|| {
        let (sender, receiver) = mpsc::channel();
        // Threads take what they are given in order: who takes this comes after the other.
        tokio::task::spawn_blocking(move || sender.send(()));
        let _ = receiver.recv_timeout(HAND_OVER);
        thread::sleep(BEGIN);
    });
}

/// How long a request may wait before it is judged: what it has, less what judging may take.
/// The API server tells what it has as `timeout`.
fn patience(query: Option<&str>, served: &[Arc<Served>]) -> Duration {
    let mut parameters = query.unwrap_or_default().split('&');
    let given = parameters.find_map(|one| seconds(one.strip_prefix("timeout=")?));
    let whole = given.unwrap_or(TIMEOUT);
    let limits = served
        .iter()
        .map(|one| one.policy.content.limits.timeout_ms);
    let judging = Duration::from_millis(limits.map(u64::from).sum());
    // Most judge in far less than they may: a policy whose limit is that of its webhook waits
    // for a while too.
    whole.saturating_sub(judging).max(whole / 4)
}

/// Seconds as Go writes them: `10s`, `1m30s`, `1.5s`.
fn seconds(text: &str) -> Option<Duration> {
    let (minutes, rest) = text.split_once('m').unwrap_or(("0", text));
    let minutes: f64 = minutes.parse().ok()?;
    let seconds: f64 = rest.strip_suffix('s')?.parse().ok()?;
    let time = Duration::try_from_secs_f64(minutes * 60.0 + seconds).ok()?;
    (!time.is_zero()).then_some(time.min(LONGEST))
}

/// Asks each revision of the route in turn; the first denial ends it.
fn judge(
    endpoint: Endpoint,
    served: &[Arc<Served>],
    incoming: &Incoming<'_>,
    long: Option<fn()>,
) -> Verdict {
    let mut all = Verdict {
        allowed: true,
        ..Verdict::default()
    };
    for one in served {
        let mut verdict = judge_one(endpoint, one, incoming, long);
        answer::name_revision(&mut verdict, one.policy.revision.as_str());
        all = merge(all, verdict, one);
        if !all.allowed {
            break;
        }
    }
    all
}

fn judge_one(
    endpoint: Endpoint,
    one: &Served,
    incoming: &Incoming<'_>,
    long: Option<fn()>,
) -> Verdict {
    let (verdict, failed) = match one.evaluate(&incoming.review, long) {
        Ok(verdict) => (verdict, false),
        Err(error) => {
            let policy = &one.policy;
            tracing::warn!(policy = %policy.policy, revision = %policy.revision, reason = error.reason(), %error, "evaluation failed");
            let message = format!(
                "policy {} (revision {}) gave no verdict ({}): {error}",
                policy.policy,
                policy.revision,
                error.reason()
            );
            (failure(message), true)
        }
    };
    if !failed {
        let counter = match (&verdict.patch, verdict.allowed) {
            (_, false) => &one.metrics.denied,
            (Some(_), true) => &one.metrics.mutated,
            (None, true) => &one.metrics.allowed,
        };
        counter.inc();
    }
    let monitored = one.policy.content.mode == Mode::Monitor && endpoint != Endpoint::Audit;
    if monitored {
        let_pass(one, verdict, failed)
    } else {
        verdict
    }
}

/// Monitor mode: what the policy said is told to operators, and the request goes through
/// as it is.
fn let_pass(one: &Served, verdict: Verdict, failed: bool) -> Verdict {
    let mut warnings = verdict.warnings;
    if !verdict.allowed {
        let message = verdict.message.as_deref().unwrap_or("no message");
        tracing::info!(policy = %one.policy.policy, revision = %one.policy.revision, message, "denied in monitor mode; let pass");
        if failed {
            warnings.push(message.to_owned());
        }
    }
    Verdict {
        allowed: true,
        warnings,
        audit_annotations: verdict.audit_annotations,
        ..Verdict::default()
    }
}

fn failure(message: String) -> Verdict {
    Verdict {
        allowed: false,
        code: Some(500),
        message: Some(message),
        ..Verdict::default()
    }
}

/// Joins verdicts of one route. Two patches of one object can't be joined blindly.
fn merge(before: Verdict, verdict: Verdict, one: &Served) -> Verdict {
    if before.patch.is_some() && verdict.patch.is_some() {
        let message = format!(
            "policy {} (revision {}) mutates on a route that is mutated already",
            one.policy.policy, one.policy.revision
        );
        return failure(message);
    }
    let mut audit_annotations = before.audit_annotations;
    audit_annotations.extend(verdict.audit_annotations);
    let mut warnings = before.warnings;
    warnings.extend(verdict.warnings);
    Verdict {
        patch: verdict.patch.or(before.patch).filter(|_| verdict.allowed),
        audit_annotations,
        warnings,
        ..verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_go_writes_them() {
        let check = |text, millis| assert_eq!(seconds(text), Some(Duration::from_millis(millis)));
        check("10s", 10_000);
        check("1.5s", 1_500);
        check("1m0s", 30_000);
        for bad in ["", "10", "0s", "-1s", "s", "NaNs", "1h0m0s"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
