//! Work that several jobs want the same result of, done once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};

/// Results by key, each shared by the jobs that want it.
///
/// A tag may move between two pulls of it. Therefore a job shares only work that began
/// after the job did: whoever pushes a module and then applies a policy gets what was
/// pushed. Work on an immutable key is shared in any case.
pub(super) struct Flights<K, T, E>(Arc<Mutex<State<K, T, E>>>);

struct State<K, T, E> {
    /// Counts starts of jobs and of work, to tell which came first.
    clock: u64,
    flights: HashMap<K, Flight<T, E>>,
}

struct Flight<T, E> {
    /// Jobs that entered and have not left. The last one to leave forgets the result.
    jobs: usize,
    /// Weak: work that nobody waits for any more must end, not hold what it has taken.
    running: Option<(u64, WeakShared<Work<T, E>>)>,
    done: Option<(u64, Result<T, E>)>,
}

type Work<T, E> = BoxFuture<'static, Result<T, E>>;

enum Joined<T, E> {
    Done(Result<T, E>),
    /// With the time at which it began.
    Running(u64, Shared<Work<T, E>>),
}

/// A job's interest in a key.
pub(super) struct Ticket<K: Eq + Hash, T, E> {
    flights: Flights<K, T, E>,
    key: K,
    since: u64,
    is_immutable: bool,
}

// === impl Flights ===

impl<K: Clone + Eq + Hash, T, E> Flights<K, T, E> {
    /// Registers the interest of a job that began at `since`.
    pub(super) fn enter(&self, key: K, since: u64, is_immutable: bool) -> Ticket<K, T, E> {
        self.state().flights.entry(key.clone()).or_default().jobs += 1;
        Ticket {
            flights: Self(self.0.clone()),
            key,
            since,
            is_immutable,
        }
    }
}

impl<K, T, E> Flights<K, T, E> {
    /// The present, as jobs and work are ordered by it.
    pub(super) fn now(&self) -> u64 {
        self.state().tick()
    }

    fn state(&self) -> MutexGuard<'_, State<K, T, E>> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, T, E> Default for Flights<K, T, E> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            clock: 0,
            flights: HashMap::new(),
        })))
    }
}

// === impl State ===

impl<K, T, E> State<K, T, E> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

// === impl Flight ===

impl<T, E> Default for Flight<T, E> {
    fn default() -> Self {
        Self {
            jobs: 0,
            running: None,
            done: None,
        }
    }
}

// === impl Ticket ===

impl<K, T, E> Ticket<K, T, E>
where
    K: Eq + Hash,
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// The result of work that this job may share, begun now if there is none. The work
    /// ends early when everybody who waits for it has gone.
    pub(super) async fn share(&self, work: impl FnOnce() -> Work<T, E>) -> Result<T, E> {
        let (began, work) = match self.with_flight(|now, flight| self.join(now, flight, work)) {
            Joined::Done(result) => return result,
            Joined::Running(began, work) => (began, work),
        };
        let result = work.await;
        self.with_flight(|_, flight| flight.done = Some((began, result.clone())));
        result
    }

    fn join(
        &self,
        now: u64,
        flight: &mut Flight<T, E>,
        work: impl FnOnce() -> Work<T, E>,
    ) -> Joined<T, E> {
        let may_share = |began: u64| self.is_immutable || began > self.since;
        match &flight.done {
            // An old failure does not mean that the work would fail now.
            Some((began, done)) if *began > self.since || may_share(*began) && done.is_ok() => {
                return Joined::Done(done.clone());
            }
            _ => {}
        }
        if let Some((began, running)) = &flight.running
            && may_share(*began)
            && let Some(running) = running.upgrade()
        {
            return Joined::Running(*began, running);
        }
        let begun = work().shared();
        flight.running = begun.downgrade().map(|weak| (now, weak));
        Joined::Running(now, begun)
    }

    fn with_flight<R>(&self, change: impl FnOnce(u64, &mut Flight<T, E>) -> R) -> R {
        let mut state = self.flights.state();
        let now = state.tick();
        let flight = state
            .flights
            .get_mut(&self.key)
            .expect("a key must stay while a ticket names it");
        change(now, flight)
    }
}

impl<K: Eq + Hash, T, E> Drop for Ticket<K, T, E> {
    fn drop(&mut self) {
        let mut state = self.flights.state();
        let Some(flight) = state.flights.get_mut(&self.key) else {
            return;
        };
        flight.jobs -= 1;
        if flight.jobs == 0 {
            state.flights.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    type Pulls = Flights<&'static str, usize, &'static str>;

    /// Work that counts how often it began.
    #[derive(Default)]
    struct Counter(Arc<AtomicUsize>);

    impl Counter {
        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }

        fn work(&self) -> Work<usize, &'static str> {
            let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(number) }.boxed()
        }
    }

    fn enter(
        pulls: &Pulls,
        key: &'static str,
        is_immutable: bool,
    ) -> Ticket<&'static str, usize, &'static str> {
        pulls.enter(key, pulls.now(), is_immutable)
    }

    #[tokio::test]
    async fn jobs_that_wait_share_work_that_begins_later() {
        let (pulls, counter) = (Pulls::default(), Counter::default());
        let jobs: Vec<_> = (0..500).map(|_| enter(&pulls, "tag", false)).collect();
        for job in &jobs {
            assert_eq!(job.share(|| counter.work()).await, Ok(1));
        }
        assert_eq!(counter.count(), 1);
        // A policy that is applied now must see what the tag names now.
        let later = enter(&pulls, "tag", false);
        assert_eq!(later.share(|| counter.work()).await, Ok(2));
        drop((jobs, later));
        assert!(pulls.state().flights.is_empty());
    }

    #[tokio::test]
    async fn work_on_an_immutable_key_is_shared_in_any_case() {
        let (pulls, counter) = (Pulls::default(), Counter::default());
        let first = enter(&pulls, "digest", true);
        assert_eq!(first.share(|| counter.work()).await, Ok(1));
        let later = enter(&pulls, "digest", true);
        assert_eq!(later.share(|| counter.work()).await, Ok(1));
        drop((first, later));
        let last = enter(&pulls, "digest", true);
        assert_eq!(last.share(|| counter.work()).await, Ok(2));
    }

    #[tokio::test]
    async fn failure_is_not_shared_with_a_later_job() {
        let (pulls, counter) = (Pulls::default(), Counter::default());
        let first = enter(&pulls, "digest", true);
        let failed = first.share(|| async { Err("away") }.boxed()).await;
        assert_eq!(failed, Err("away"));
        let again = enter(&pulls, "digest", true);
        assert_eq!(again.share(|| counter.work()).await, Ok(1));
    }

    #[tokio::test]
    async fn running_work_is_joined_and_survives_who_began_it() {
        let (pulls, counter) = (Pulls::default(), Counter::default());
        let (first, second) = (enter(&pulls, "tag", false), enter(&pulls, "tag", false));
        let (sender, receiver) = oneshot::channel();
        let slow = async move { Ok(receiver.await.unwrap()) }.boxed();
        let mut began = Box::pin(first.share(|| slow));
        assert!(began.as_mut().now_or_never().is_none());
        let mut joined = Box::pin(second.share(|| counter.work()));
        assert!(joined.as_mut().now_or_never().is_none());
        drop(began);
        sender.send(7).unwrap();
        assert_eq!(joined.await, Ok(7));
        assert_eq!(counter.count(), 0);
    }

    #[tokio::test]
    async fn work_ends_when_nobody_waits_for_it() {
        let pulls = Pulls::default();
        let (first, _second) = (enter(&pulls, "tag", false), enter(&pulls, "tag", false));
        let (held, mut ended) = oneshot::channel::<()>();
        let endless = async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(1)
        };
        let mut began = Box::pin(first.share(|| endless.boxed()));
        assert!(began.as_mut().now_or_never().is_none());
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(began);
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
