//! From an HTTP request to its response: find the route, read the review, evaluate, answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use assent_serve::Peer;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use hyper::body::Incoming as Body;

use super::{
    body,
    confirm::{OtherRevisions, confirm},
    response,
    review::{Endpoint, Error, Incoming, check_content_type},
    subject::AdmissionSubject,
};
use crate::{
    active::{ActiveSet, Lookup},
    decision_log::DecisionLog,
    evaluation::{self, Decision, Evaluation, Executor, Job, Overloaded, Query},
    metrics::{self, CodeLabels, Metrics},
    readiness::Readiness,
};

/// Answers review requests.
pub(crate) struct Handler {
    pub(crate) active: Arc<ActiveSet>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) metrics: Metrics,
    pub(crate) decisions: DecisionLog,
    /// Whether clients must present a certificate. The handshake verifies it, but does not insist on one: probes have
    /// none, and others get a reason.
    pub(crate) client_certificates: bool,
}

type HttpResponse = Response<Full<Bytes>>;

/// The path of probes.
pub(crate) const READYZ: &str = "/readyz";

/// The body comes from the same cluster; the API server gives up after 10 s by default.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an API server waits unless the request says otherwise, and the most that a webhook may ask for.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Handler ===

impl Handler {
    pub(crate) async fn handle(&self, request: Request<Body>, peer: &Peer) -> HttpResponse {
        let mut response = match self.respond(request, peer).await {
            Ok(response) => response,
            Err(error) => response::error(error.status(), &error.to_string()),
        };
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(header::ALLOW, post);
        }
        let labels = CodeLabels {
            code: response.status().as_u16(),
            endpoint: metrics::Endpoint::Reviews,
        };
        self.metrics.requests.get_or_create(&labels).inc();
        response
    }

    async fn respond(&self, request: Request<Body>, peer: &Peer) -> Result<HttpResponse, Error> {
        let arrived = Instant::now();
        if request.uri().path() == READYZ {
            return Ok(self.readyz());
        }
        if self.client_certificates && peer.certificate.is_none() {
            return Err(Error::NoCertificate);
        }
        let path = request.uri().path().to_owned();
        let (endpoint, path) = Endpoint::split(&path).ok_or(Error::Endpoint)?;
        if request.method() != Method::POST {
            return Err(Error::Method(request.method().clone()));
        }
        check_content_type(request.headers())?;
        let route = match self.active.load().find(path, &self.metrics) {
            Lookup::Route(route) => route,
            Lookup::NotLoaded(why) => {
                return Ok(response::error(StatusCode::SERVICE_UNAVAILABLE, &why));
            }
            Lookup::Unknown => {
                let why = format!("no policy answers {path:?}");
                return Ok(response::error(StatusCode::NOT_FOUND, &why));
            }
        };
        let start_by = arrived + route.patience(timeout(request.uri().query()));
        let multiplexed = request.version() >= Version::HTTP_2;
        let reading = self.executor.read(peer.addr.ip().to_canonical());
        let read = body::read(request.into_body(), reading, body::MAX_BODY);
        let read = tokio::time::timeout(BODY_TIMEOUT, read).await;
        let (body, memory) = read.map_err(|_| Error::Slow)?.map_err(|error| {
            if let Error::Overloaded(overloaded) = error {
                self.executor.refuse(overloaded);
            }
            error
        })?;
        let _permit = self.executor.admit()?;
        let job = Job {
            route,
            start_by,
            size: body.len(),
            memory,
            multiplexed,
        };
        let others = match endpoint {
            Endpoint::Confirm => OtherRevisions::of(path, self.active.load_full()),
            _ => OtherRevisions::default(),
        };
        let decisions = self.decisions.clone();
        let review =
            move |evaluation: &Evaluation| review(evaluation, endpoint, &others, &decisions, &body);
        match self.executor.run(job, review).await {
            Ok(Err(Error::Overloaded(overloaded))) => Err(self.executor.refuse(overloaded).into()),
            Ok(result) => result,
            Err(evaluation::Error::Overloaded(overloaded)) => Err(overloaded.into()),
            Err(error @ evaluation::Error::NoAnswer) => Ok(response::error(
                StatusCode::INTERNAL_SERVER_ERROR,
                &error.to_string(),
            )),
        }
    }

    /// The same answer as on the admin port, for probes of this port itself.
    fn readyz(&self) -> HttpResponse {
        match self.readiness.check() {
            Ok(()) => Response::new(Full::from("ok\n")),
            Err(why) => response::error(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
}

/// Parses, evaluates and answers a review, on the thread that evaluates.
fn review(
    evaluation: &Evaluation,
    endpoint: Endpoint,
    others: &OtherRevisions,
    decisions: &DecisionLog,
    body: &[u8],
) -> Result<HttpResponse, Error> {
    let incoming = Incoming::parse(endpoint, body)?;
    let query = Query {
        review: incoming.review,
        monitor: endpoint != Endpoint::Audit,
        join: join_patches,
    };
    let decision = match endpoint {
        Endpoint::Confirm => confirm(evaluation, others, &query),
        _ => evaluation.decide(&query),
    };
    if decision.overloaded {
        return Err(Overloaded::Evaluations.into());
    }
    // An audit looks at objects that exist: nobody was refused anything.
    if endpoint != Endpoint::Audit {
        let subject = || AdmissionSubject::of(&query.review, &incoming.uid);
        decisions.record("admission", &(&decision).into(), subject);
    }
    let Decision {
        mut verdict,
        policy,
        ..
    } = decision;
    response::name_revision(&mut verdict, policy.policy.revision.as_str());
    Ok(response::verdict(endpoint, &incoming.uid, &verdict))
}

/// Both patches were made against the object as it was sent: applying one after the other could undo a change, or
/// make one at the wrong place.
fn join_patches(_: &[u8], _: &[u8]) -> Option<Vec<u8>> {
    None
}

/// How long the client waits for the response. The API server says so in the parameter `timeout`.
fn timeout(query: Option<&str>) -> Duration {
    let mut parameters = query.unwrap_or_default().split('&');
    let given = parameters.find_map(|one| parse_duration(one.strip_prefix("timeout=")?));
    given.unwrap_or(DEFAULT_TIMEOUT)
}

/// Minutes and seconds as Go writes a duration: `10s`, `1m30s`, `1.5s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (minutes, rest) = text.split_once('m').unwrap_or(("0", text));
    let minutes: f64 = minutes.parse().ok()?;
    let seconds: f64 = rest.strip_suffix('s')?.parse().ok()?;
    let duration = Duration::try_from_secs_f64(minutes * 60.0 + seconds).ok()?;
    (!duration.is_zero()).then_some(duration.min(MAX_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_parsed_as_go_writes_them() {
        let check =
            |text, millis| assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)));
        check("10s", 10_000);
        check("1.5s", 1_500);
        check("1m0s", 30_000);
        for bad in ["", "10", "0s", "-1s", "s", "NaNs", "1h0m0s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
