//! Bounds how many requests of one policy run and wait: a slow policy leaves threads for the others, and no
//! request waits for an answer that would come too late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

mod latency;

use latency::LatencyTracker;

/// The concurrent evaluations of one policy, and the requests that wait for them.
pub(crate) struct ConcurrencyLimit {
    running: Arc<Semaphore>,
    max_running: usize,
    waiting: AtomicUsize,
    latency: LatencyTracker,
}

/// Why a request is not evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("too many requests are waiting for this policy")]
    QueueFull,
    #[error("the request would wait for this policy past its deadline")]
    TooLate,
}

/// Requests of one policy that may wait for their turn. At 100 µs each they are answered
/// within some tens of milliseconds; more would only time out later.
const MAX_WAITING: usize = 512;

// === impl ConcurrencyLimit ===

impl ConcurrencyLimit {
    pub(crate) fn new(max_running: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(max_running)),
            max_running,
            waiting: AtomicUsize::new(0),
            latency: LatencyTracker::new(Instant::now()),
        }
    }

    /// Waits for a permit until `start_by`. A request that will hardly get one by then is refused at once: its
    /// client can try another replica.
    pub(crate) async fn acquire(&self, start_by: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(permit) = self.running.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = Waiting::join(&self.waiting)?;
        if Instant::now() + self.expected_wait(waiting.before) > start_by {
            return Err(Refusal::TooLate);
        }
        let turn = self.running.clone().acquire_owned();
        match tokio::time::timeout_at(start_by.into(), turn).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Refusal::TooLate),
        }
    }

    /// Takes note of how long an evaluation took.
    pub(crate) fn record(&self, duration: Duration) {
        self.latency.record(duration, Instant::now());
    }

    /// Whether this policy's evaluations can be relied on to be short.
    pub(crate) fn is_quick(&self) -> bool {
        self.latency.is_quick(Instant::now())
    }

    #[cfg(test)]
    pub(super) fn typical_latency(&self) -> Duration {
        self.latency.typical()
    }

    /// The time that the requests before this one take, `max_running` at a time.
    fn expected_wait(&self, before: usize) -> Duration {
        let rounds = before / self.max_running.max(1) + 1;
        let typical = self.latency.typical();
        typical.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }
}

/// Counts one waiting request, even if its client goes away.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    before: usize,
}

impl<'a> Waiting<'a> {
    fn join(count: &'a AtomicUsize) -> Result<Self, Refusal> {
        let before = count.fetch_add(1, Relaxed);
        let waiting = Self { count, before };
        if before < MAX_WAITING {
            Ok(waiting)
        } else {
            Err(Refusal::QueueFull)
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn later(by: Duration) -> Instant {
        Instant::now() + by
    }

    #[tokio::test]
    async fn a_request_that_waits_past_its_deadline_is_refused() {
        let limit = ConcurrencyLimit::new(1);
        let held = limit.acquire(later(LONG)).await.unwrap();
        let refused = limit.acquire(later(Duration::from_millis(20))).await;
        assert_eq!(refused.unwrap_err(), Refusal::TooLate);
        drop(held);
        assert!(limit.acquire(later(Duration::ZERO)).await.is_ok());
    }

    #[tokio::test]
    async fn a_wait_that_would_end_too_late_does_not_begin() {
        let limit = ConcurrencyLimit::new(2);
        let _held = [
            limit.acquire(later(LONG)).await.unwrap(),
            limit.acquire(later(LONG)).await.unwrap(),
        ];
        for _ in 0..100 {
            limit.record(Duration::from_secs(2));
        }
        let soon = limit.acquire(later(Duration::from_secs(1)));
        assert_eq!(soon.now_or_never().unwrap().unwrap_err(), Refusal::TooLate);
        // Two wait for the first round; the third would have to wait for the second.
        let patient = || Box::pin(limit.acquire(later(Duration::from_secs(3))));
        let (mut one, mut two, three) = (patient(), patient(), patient());
        assert!((&mut one).now_or_never().is_none());
        assert!((&mut two).now_or_never().is_none());
        assert_eq!(three.now_or_never().unwrap().unwrap_err(), Refusal::TooLate);
        drop((one, two));
        assert!(patient().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_full_queue_refuses_requests() {
        let limit = ConcurrencyLimit::new(1);
        let _held = limit.acquire(later(LONG)).await.unwrap();
        let mut queue: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(limit.acquire(later(LONG))))
            .collect();
        for waiting in &mut queue {
            assert!(waiting.now_or_never().is_none());
        }
        let one_more = limit.acquire(later(LONG)).now_or_never().unwrap();
        assert_eq!(one_more.unwrap_err(), Refusal::QueueFull);
    }
}
