//! From a call of `Check` to its response: read it, find the policies, evaluate, answer.
//!
//! Whatever goes wrong is a gRPC error, which Envoy treats as its `failure_mode_allow` says; it is never an answer
//! that allows.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_proto::envoy::service::auth::v3::CheckResponse;
use assent_serve::Peer;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::{
    check::{Call, Failed},
    grpc, response,
    subject::RequestSubject,
    table::{Selection, Workloads},
};
use crate::{
    active::ActiveSet,
    admission::body,
    config::DefaultDecision,
    decision_log::{DecisionLog, Entry, Outcome},
    evaluation::{self, Executor, Job, Overloaded, Route},
    metrics::{CodeLabels, Endpoint, Metrics},
};

/// Answers calls of Envoy.
pub(crate) struct CheckHandler {
    pub(crate) active: Arc<ActiveSet>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) metrics: Metrics,
    /// For requests that no policy matches.
    pub(crate) default: DefaultDecision,
    pub(crate) workloads: Workloads,
    pub(crate) decisions: DecisionLog,
}

/// What was decided about one request.
pub(super) struct Decided {
    pub(super) allowed: bool,
    /// Whether a denial was let pass, because its policy is in monitor mode.
    pub(super) monitored: bool,
    /// The message of the denial, for logs.
    pub(super) message: String,
    /// The status for the client, as far as it is known here.
    pub(super) code: u16,
    /// The policy that decided, and its revision; empty if none did.
    pub(super) policy: String,
    pub(super) revision: String,
    pub(super) response: CheckResponse,
}

/// Why there is no decision.
struct Refusal {
    status: Status,
    /// The policy that gave no verdict, and its revision; empty if it was another reason.
    policy: String,
    revision: String,
}

/// The largest message: a body of 8 MiB, with headers and attributes.
const MAX_MESSAGE: usize = 9 << 20;

/// Messages come from the same machine or the same cluster.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// What a document and the parsed body take, in lengths of the message.
const DOCUMENT: usize = 3;

/// How long Envoy waits unless the call says otherwise, and the longest that is waited for.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(200);
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// What is sent of an error message.
const MAX_ERROR: usize = 512;

// === impl CheckHandler ===

impl CheckHandler {
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> Response<grpc::Body> {
        let (code, response) = match self.respond(request, peer).await {
            Ok(decided) => (decided.code, grpc::reply(&decided.response)),
            Err(status) => (http_code(status.code()), grpc::fail(&status)),
        };
        let endpoint = Endpoint::Authz;
        let labels = CodeLabels { code, endpoint };
        self.metrics.requests.get_or_create(&labels).inc();
        response
    }

    async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Result<Decided, Status> {
        let arrived = Instant::now();
        grpc::check_call(&request)?;
        let timeout = grpc::timeout(request.headers()).unwrap_or(DEFAULT_TIMEOUT);
        let deadline = arrived + timeout.min(MAX_TIMEOUT);
        let overloaded = |overloaded| self.overloaded(overloaded);
        let reading = self.executor.read(peer.addr.ip().to_canonical());
        let read = body::read(request.into_body(), reading, MAX_MESSAGE);
        let read = tokio::time::timeout(READ_TIMEOUT, read).await;
        let read = read.map_err(|_| slow())?;
        let (body, mut memory) = read.map_err(|error| self.unread(error))?;
        memory.grow(body.len() * DOCUMENT).map_err(overloaded)?;
        let size = body.len();
        let call = Call::new(grpc::decode(body)?).ok_or_else(incomplete)?;
        let call = Arc::new(call);
        let decided = match self.select(&call)? {
            Ok(decided) => Ok(decided),
            Err(route) => {
                let _permit = self.executor.admit().map_err(status_of)?;
                let start_by = arrived + route.patience(deadline - arrived);
                let job = Job {
                    route,
                    start_by,
                    size,
                    memory,
                    multiplexed: true,
                };
                self.evaluate(job, call.clone()).await
            }
        };
        self.record(&call, &decided, arrived);
        decided.map_err(|refusal| refusal.status)
    }

    /// What is decided without asking policies, or else the policies to ask.
    fn select(&self, call: &Call) -> Result<Result<Decided, Arc<Route>>, Status> {
        let set = self.active.load();
        let table = set.requests().map_err(Status::unavailable)?;
        let headers: BTreeMap<String, String>;
        let headers = match call.raw_headers() {
            Some(raw) => {
                headers = raw;
                &headers
            }
            None => &call.http().headers,
        };
        match table.select(call.http(), headers, &self.workloads) {
            Ok(Selection::Route(route)) => Ok(Err(route)),
            Ok(Selection::Unmatched) => Ok(Ok(self.by_default(call))),
            Ok(Selection::NotLoaded(why)) => Err(Status::unavailable(why)),
            Err(_) if table.only_monitors() && self.default == DefaultDecision::Allow => {
                Ok(Ok(self.by_default(call)))
            }
            Err(error) => Ok(Ok(call.refused(&error.to_string(), None))),
        }
    }

    fn by_default(&self, call: &Call) -> Decided {
        match self.default {
            DefaultDecision::Allow => call.default(true),
            DefaultDecision::Deny => call.default(false),
        }
    }

    async fn evaluate(&self, job: Job, call: Arc<Call>) -> Result<Decided, Refusal> {
        let decided = self.executor.run(job, move |it| call.decide(it)).await;
        match decided {
            Ok(Ok(decided)) => Ok(decided),
            Ok(Err(Failed::Overloaded)) => Err(self.overloaded(Overloaded::Evaluations).into()),
            Ok(Err(Failed::NoVerdict {
                why,
                policy,
                revision,
            })) => Err(Refusal {
                status: Status::internal(cut(why)),
                policy,
                revision,
            }),
            Err(evaluation::Error::Overloaded(overloaded)) => Err(status_of(overloaded).into()),
            Err(error @ evaluation::Error::NoAnswer) => {
                Err(Status::internal(error.to_string()).into())
            }
        }
    }

    fn record(&self, call: &Call, decided: &Result<Decided, Refusal>, arrived: Instant) {
        let (policy, revision) = match decided {
            Ok(it) => (&it.policy, &it.revision),
            Err(refusal) => (&refusal.policy, &refusal.revision),
        };
        let (outcome, message, code) = match decided {
            Ok(it) if it.monitored => (Outcome::Monitored, &*it.message, it.code),
            Ok(it) if it.allowed => (Outcome::Allowed, "", it.code),
            Ok(it) => (Outcome::Denied, &*it.message, it.code),
            Err(Refusal { status, .. }) => {
                (Outcome::Error, status.message(), http_code(status.code()))
            }
        };
        let entry = Entry {
            outcome,
            policy,
            revision,
            message,
            code: Some(code),
            patch_bytes: 0,
            took: arrived.elapsed(),
        };
        let subject = || RequestSubject::of(call);
        self.decisions.record("envoy", &entry, subject);
    }

    fn unread(&self, error: body::Error) -> Status {
        match error {
            body::Error::Overloaded(overloaded) => self.overloaded(overloaded),
            body::Error::TooLarge(limit) => Status::new(
                Code::ResourceExhausted,
                format!("the message is larger than {limit} bytes"),
            ),
            error => Status::unavailable(error.to_string()),
        }
    }

    fn overloaded(&self, overloaded: Overloaded) -> Status {
        status_of(self.executor.refuse(overloaded))
    }
}

// === impl Refusal ===

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            status,
            policy: String::new(),
            revision: String::new(),
        }
    }
}

fn status_of(overloaded: Overloaded) -> Status {
    Status::resource_exhausted(overloaded.to_string())
}

fn slow() -> Status {
    Status::deadline_exceeded("the message did not arrive in time")
}

fn incomplete() -> Status {
    Status::invalid_argument("the message has no attributes.request.http")
}

fn cut(mut text: String) -> String {
    let end = (0..=MAX_ERROR.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or_default());
    text
}

/// The status that stands for a gRPC error in metrics and logs.
fn http_code(code: Code) -> u16 {
    match code {
        Code::InvalidArgument => response::BAD_REQUEST,
        Code::Unimplemented => 501,
        Code::ResourceExhausted | Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    }
}
