//! Evaluation: runs the policies of a route within the evaluator's bounds and combines their verdicts.
//!
//! Nothing here knows the protocol of a request. A front end reserves what the request needs while it is read
//! ([`Executor::read`]), takes a place for it ([`Executor::admit`]), calls [`Executor::run`] with a closure that parses the request
//! and calls [`Evaluation::decide`], and writes the [`Decision`] in its own protocol.

use std::{
    net::IpAddr,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use prometheus_client::metrics::histogram::Histogram;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::metrics::Metrics;

mod concurrency;
mod decision;
mod intake;
mod loaded;
mod route;
mod shared;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use decision::{Decision, Query};
pub(crate) use intake::{Intake, Reading, RequestMemory};
pub(crate) use loaded::{HealthEvent, LoadedPolicy};
pub(crate) use route::Route;
pub(crate) use shared::PolicyStates;

/// Runs evaluations. All front ends of an evaluator share one, because its bounds are those of the process.
pub(crate) struct Executor {
    bounds: Bounds,
    metrics: Metrics,
    /// Whether policies may run on the runtime's own threads: a runtime with a single thread would stop
    /// accepting connections meanwhile.
    multi_threaded: bool,
}

/// What all requests together may take.
struct Bounds {
    /// Requests that are being read.
    intake: Arc<Intake>,
    /// Requests that were read, waiting ones included.
    requests: Arc<Semaphore>,
    /// Concurrent evaluations.
    threads: Arc<Semaphore>,
}

/// A request that was read and is ready to be evaluated.
pub(crate) struct Job {
    pub(crate) route: Arc<Route>,
    /// Evaluation must start by then: a later answer would be of no use to the client.
    pub(crate) start_by: Instant,
    /// Bytes of the request.
    pub(crate) size: usize,
    /// The memory that was reserved for the request.
    pub(crate) memory: RequestMemory,
    /// Whether other requests arrive over the same connection meanwhile.
    pub(crate) multiplexed: bool,
}

/// A running job.
pub(crate) struct Evaluation {
    route: Arc<Route>,
    on_slow: Option<fn()>,
    seconds: Histogram,
    /// Held until the work is done, even if the client goes away: the thread is busy until then.
    _held: (route::Turn, OwnedSemaphorePermit, RequestMemory),
}

/// A place among the concurrent requests.
pub(crate) struct RequestPermit {
    _permit: OwnedSemaphorePermit,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The request was refused to protect the evaluator. Another replica may have room.
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    /// The work panicked.
    #[error("the evaluation ended without an answer")]
    NoAnswer,
}

/// The bound that refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overloaded {
    #[error("too many requests are waiting")]
    Requests,
    #[error("too many large requests are waiting")]
    Memory,
    #[error("too many requests or bytes are on their way from this client")]
    Peer,
    #[error("the evaluator has no memory left for this evaluation")]
    Evaluations,
    #[error("the request would wait past its deadline")]
    Threads,
    #[error(transparent)]
    Policy(#[from] concurrency::Refusal),
}

/// Some thousand requests wait for less than a client's timeout; more would time out.
const REQUESTS: usize = 4_096;

/// The largest request that is evaluated in place: parsing a larger one takes long by itself.
const IN_PLACE_BYTES: usize = 64 << 10;

/// What a thread needs to begin with work that it has taken; more only if the machine is overloaded.
const BEGIN: Duration = Duration::from_millis(1);

/// What a new thread needs to start on an overloaded machine.
const HAND_OVER: Duration = Duration::from_millis(50);

// === impl Executor ===

impl Executor {
    /// Must be called inside of the runtime that serves the front ends. `threads` bounds concurrent evaluations.
    pub(crate) fn new(metrics: Metrics, threads: usize, intake: Intake) -> Self {
        Self {
            bounds: Bounds {
                intake: Arc::new(intake),
                requests: Arc::new(Semaphore::new(REQUESTS)),
                threads: Arc::new(Semaphore::new(threads)),
            },
            metrics,
            multi_threaded: Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread,
        }
    }

    /// Takes a place for a request that was read.
    pub(crate) fn admit(&self) -> Result<RequestPermit, Overloaded> {
        match self.bounds.requests.clone().try_acquire_owned() {
            Ok(permit) => Ok(RequestPermit { _permit: permit }),
            Err(_) => Err(self.refuse(Overloaded::Requests)),
        }
    }

    /// Begins to read a request of this peer.
    pub(crate) fn read(&self, peer: IpAddr) -> Reading {
        self.bounds.intake.begin(peer)
    }

    /// Runs `work` when the route's policies and a thread are free.
    ///
    /// Quick policies run in place, because waking another thread takes as long as many an evaluation. Others run
    /// on a thread of their own: a policy that uses its whole deadline must not delay the threads that accept and
    /// read.
    pub(crate) async fn run<T, F>(&self, job: Job, work: F) -> Result<T, Error>
    where
        F: FnOnce(&Evaluation) -> T + Send + 'static,
        T: Send + 'static,
    {
        let turn = job.route.acquire(job.start_by).await;
        let turn = turn.map_err(|refusal| self.refuse(refusal.into()))?;
        let thread = self.thread(job.start_by).await?;
        let in_place = self.multi_threaded && job.size <= IN_PLACE_BYTES && job.route.is_quick();
        let evaluation = Evaluation {
            route: job.route,
            on_slow: in_place.then_some(hand_over),
            seconds: self.metrics.evaluation_seconds.clone(),
            _held: (turn, thread, job.memory),
        };
        let work = move || work(&evaluation);
        let done = if in_place {
            if job.multiplexed {
                // Reading the request has woken the connection, on this thread: it goes first.
                tokio::task::yield_now().await;
            }
            panic::catch_unwind(AssertUnwindSafe(work)).ok()
        } else {
            tokio::task::spawn_blocking(work).await.ok()
        };
        done.ok_or_else(|| {
            tracing::error!("an evaluation ended without an answer");
            Error::NoAnswer
        })
    }

    /// Waits for one of the threads that evaluate.
    async fn thread(&self, start_by: Instant) -> Result<OwnedSemaphorePermit, Overloaded> {
        if let Ok(permit) = self.bounds.threads.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let turn = self.bounds.threads.clone().acquire_owned();
        match tokio::time::timeout_at(start_by.into(), turn).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(self.refuse(Overloaded::Threads)),
        }
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&self, overloaded: Overloaded) -> Overloaded {
        self.metrics.overload_rejections.inc();
        overloaded
    }
}

// === impl Evaluation ===

impl Evaluation {
    /// The route whose policies are asked.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// Asks the policies of the route in order.
    pub(crate) fn decide(&self, query: &Query<'_>) -> Decision<'_> {
        self.decide_by(&self.route, query)
    }

    /// The same by another route of the same policy, within the limits of this one.
    pub(crate) fn decide_by<'a>(&self, route: &'a Route, query: &Query<'_>) -> Decision<'a> {
        let decision = decision::decide(route, query, self.on_slow);
        self.seconds.observe(decision.took.as_secs_f64());
        decision
    }
}

/// Called when a policy that was expected to be quick is not: another thread takes the place of this one in the
/// runtime, with everything that is scheduled here, unless it has not begun by the end of this function.
fn hand_over() {
    tokio::task::block_in_place(|| {
        let (sender, receiver) = mpsc::channel();
        // Blocking threads take tasks in order: the one that runs this has taken the worker's core before.
        tokio::task::spawn_blocking(move || sender.send(()));
        let _ = receiver.recv_timeout(HAND_OVER);
        thread::sleep(BEGIN);
    });
}
