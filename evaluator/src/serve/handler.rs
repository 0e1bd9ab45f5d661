//! From a request to its answer: look up, admit, read, judge.

use std::{sync::Arc, time::Instant};

use assent_core::Mode;
use assent_wasm::Verdict;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming as Body};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

type Answer = Response<Full<Bytes>>;

/// An UPDATE carries two objects of at most 3 MiB each.
const BODY: usize = 7 << 20;

/// A body comes from the same cluster; the API server gives up after 10 s by default.
const BODY_TIME: std::time::Duration = std::time::Duration::from_secs(10);

/// Some thousand requests wait for less than the API server's patience; more would time out.
const REQUESTS: usize = 4_096;

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
        let Ok(_place) = self.bounds.requests.clone().try_acquire_owned() else {
            return Ok(self.overloaded("too many requests are waiting"));
        };
        let Some((body, memory)) = self.read(request).await? else {
            return Ok(self.overloaded("too many large requests are waiting"));
        };
        self.evaluate(endpoint, served, body, memory).await
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

    /// Judges on a thread of its own kind: a policy that burns its deadline must not hold
    /// up those that accept and read.
    async fn evaluate(
        &self,
        endpoint: Endpoint,
        served: Vec<Arc<Served>>,
        body: Bytes,
        memory: OwnedSemaphorePermit,
    ) -> Result<Answer, Error> {
        let Some(turn) = served[0].gate.clone().enter().await else {
            return Ok(self.overloaded("too many requests wait for this policy"));
        };
        let Ok(thread) = self.bounds.threads.clone().acquire_owned().await else {
            return Ok(self.overloaded("shutting down"));
        };
        let seconds = self.metrics.evaluation_seconds.clone();
        let work = move || -> Result<Answer, Error> {
            // Held until the work is done, even if the client goes away.
            let _held = (turn, thread, memory);
            let incoming = Incoming::parse(endpoint, &body)?;
            let began = Instant::now();
            let verdict = judge(endpoint, &served, &incoming);
            seconds.observe(began.elapsed().as_secs_f64());
            Ok(answer::verdict(endpoint, &incoming.uid, &verdict))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "an evaluation ended without an answer");
                let why = "the evaluation ended without an answer";
                Ok(answer::problem(StatusCode::INTERNAL_SERVER_ERROR, why))
            }
        }
    }

    fn overloaded(&self, why: &str) -> Answer {
        self.metrics.overload_rejections.inc();
        answer::problem(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

/// Asks each revision of the route in turn; the first denial ends it.
fn judge(endpoint: Endpoint, served: &[Arc<Served>], incoming: &Incoming<'_>) -> Verdict {
    let mut all = Verdict {
        allowed: true,
        ..Verdict::default()
    };
    for one in served {
        let mut verdict = judge_one(endpoint, one, incoming);
        answer::name_revision(&mut verdict, one.policy.revision.as_str());
        all = merge(all, verdict, one);
        if !all.allowed {
            break;
        }
    }
    all
}

fn judge_one(endpoint: Endpoint, one: &Served, incoming: &Incoming<'_>) -> Verdict {
    let (verdict, failed) = match one.evaluate(&incoming.review) {
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
