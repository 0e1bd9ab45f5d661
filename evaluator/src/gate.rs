//! How many requests of one policy run and wait, so that a slow policy leaves threads for the
//! others, and nobody waits for an answer that comes too late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

mod pace;

use pace::Pace;

/// The way in to one policy.
pub(crate) struct Gate {
    running: Arc<Semaphore>,
    places: usize,
    waiting: AtomicUsize,
    pace: Pace,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("too many requests wait for this policy")]
    Crowded,
    #[error("the request would wait for this policy until its time is over")]
    TooLate,
}

/// Requests of one policy that may wait for their turn. At 100 µs each they are answered
/// within some tens of milliseconds; more would only time out later.
const WAITING: usize = 512;

// === impl Gate ===

impl Gate {
    pub(crate) fn new(running: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(running)),
            places: running,
            waiting: AtomicUsize::new(0),
            pace: Pace::new(Instant::now()),
        }
    }

    /// Waits for a turn until `until`. A request whose turn will hardly come by then is told
    /// so at once: its client can try elsewhere.
    pub(crate) async fn enter(&self, until: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(permit) = self.running.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = Waiting::join(&self.waiting)?;
        if Instant::now() + self.expected_wait(waiting.before) > until {
            return Err(Refusal::TooLate);
        }
        let turn = self.running.clone().acquire_owned();
        match tokio::time::timeout_at(until.into(), turn).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Refusal::TooLate),
        }
    }

    /// Learns what an evaluation took.
    pub(crate) fn took(&self, time: Duration) {
        self.pace.took(time, Instant::now());
    }

    /// Whether this policy's evaluations can be relied on to be short.
    pub(crate) fn is_quick(&self) -> bool {
        self.pace.is_quick(Instant::now())
    }

    /// Those before it, each through one of the places.
    fn expected_wait(&self, before: usize) -> Duration {
        let rounds = before / self.places.max(1) + 1;
        let typical = self.pace.typical();
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
        if before < WAITING {
            Ok(waiting)
        } else {
            Err(Refusal::Crowded)
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
    async fn who_waits_longer_than_it_may_is_told() {
        let gate = Gate::new(1);
        let held = gate.enter(later(LONG)).await.unwrap();
        let refused = gate.enter(later(Duration::from_millis(20))).await;
        assert_eq!(refused.unwrap_err(), Refusal::TooLate);
        drop(held);
        assert!(gate.enter(later(Duration::ZERO)).await.is_ok());
    }

    #[tokio::test]
    async fn a_wait_that_can_not_end_in_time_does_not_begin() {
        let gate = Gate::new(2);
        let _held = [
            gate.enter(later(LONG)).await.unwrap(),
            gate.enter(later(LONG)).await.unwrap(),
        ];
        for _ in 0..100 {
            gate.took(Duration::from_secs(2));
        }
        let soon = gate.enter(later(Duration::from_secs(1)));
        assert_eq!(soon.now_or_never().unwrap().unwrap_err(), Refusal::TooLate);
        // Two wait for the first round; the third would get the second.
        let patient = || Box::pin(gate.enter(later(Duration::from_secs(3))));
        let (mut one, mut two, three) = (patient(), patient(), patient());
        assert!((&mut one).now_or_never().is_none());
        assert!((&mut two).now_or_never().is_none());
        assert_eq!(three.now_or_never().unwrap().unwrap_err(), Refusal::TooLate);
        drop((one, two));
        assert!(patient().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_crowd_is_sent_away() {
        let gate = Gate::new(1);
        let _held = gate.enter(later(LONG)).await.unwrap();
        let mut crowd: Vec<_> = (0..WAITING)
            .map(|_| Box::pin(gate.enter(later(LONG))))
            .collect();
        for waiting in &mut crowd {
            assert!(waiting.now_or_never().is_none());
        }
        let one_more = gate.enter(later(LONG)).now_or_never().unwrap();
        assert_eq!(one_more.unwrap_err(), Refusal::Crowded);
    }
}
