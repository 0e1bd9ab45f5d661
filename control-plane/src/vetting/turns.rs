//! Turns at a bounded number of places, shared fairly between namespaces.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Gives out a bounded number of turns. Namespaces take turns in rotation: one that
/// queues 500 policies delays another's single policy by one turn, not by 500.
#[derive(Clone, Debug)]
pub(super) struct FairTurns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: RoundRobin<oneshot::Sender<Turn>>,
    /// Served when nobody else waits.
    idle: VecDeque<oneshot::Sender<Turn>>,
}

/// One turn; dropping it passes it on.
#[derive(Debug)]
pub(super) struct Turn(Option<FairTurns>);

/// Queues by name that are served in rotation.
#[derive(Debug)]
struct RoundRobin<T> {
    queues: HashMap<Box<str>, VecDeque<T>>,
    /// The names with a queue, the next one first.
    order: VecDeque<Box<str>>,
}

// === impl FairTurns ===

impl FairTurns {
    pub(super) fn new(places: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: places.max(1),
            waiting: RoundRobin::default(),
            idle: VecDeque::new(),
        })))
    }

    /// Waits for a turn. Dropping the future gives up the place in the queue.
    pub(super) async fn take(&self, namespace: &str) -> Turn {
        self.wait(|state, sender| state.waiting.push(namespace, sender))
            .await
    }

    /// Waits for a turn that nobody else wants: work in the background delays a policy by
    /// what has begun, at most.
    pub(super) async fn take_idle(&self) -> Turn {
        self.wait(|state, sender| state.idle.push_back(sender))
            .await
    }

    async fn wait(&self, queue: impl FnOnce(&mut State, oneshot::Sender<Turn>)) -> Turn {
        let receiver = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(self.clone()));
            }
            let (sender, receiver) = oneshot::channel();
            queue(&mut state, sender);
            receiver
        };
        receiver
            .await
            .expect("a queued sender must be used before it is dropped")
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state()
            .waiting
            .queues
            .values()
            .map(VecDeque::len)
            .sum()
    }

    fn pass_on(self) {
        loop {
            let mut state = self.state();
            let next = state.waiting.pop();
            let Some(next) = next.or_else(|| state.idle.pop_front()) else {
                state.free += 1;
                return;
            };
            drop(state);
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // Nobody waits there any more. The turn must not pass itself on: this loop does.
                Err(mut unused) => drop(unused.0.take()),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass_on();
        }
    }
}

// === impl RoundRobin ===

impl<T> RoundRobin<T> {
    fn push(&mut self, name: &str, item: T) {
        let queue = self.queues.entry(name.into()).or_default();
        if queue.is_empty() {
            self.order.push_back(name.into());
        }
        queue.push_back(item);
    }

    fn pop(&mut self) -> Option<T> {
        let name = self.order.pop_front()?;
        let queue = self.queues.get_mut(&name)?;
        let item = queue.pop_front();
        match queue.is_empty() {
            true => drop(self.queues.remove(&name)),
            false => self.order.push_back(name),
        }
        item
    }
}

impl<T> Default for RoundRobin<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn names_are_served_in_rotation() {
        let mut queue = RoundRobin::default();
        for n in 0..500 {
            queue.push("large", ("large", n));
        }
        queue.push("small", ("small", 0));
        queue.push("other", ("other", 0));
        let first: Vec<_> = std::iter::from_fn(|| queue.pop()).take(5).collect();
        let expect = [
            ("large", 0),
            ("small", 0),
            ("other", 0),
            ("large", 1),
            ("large", 2),
        ];
        assert_eq!(first, expect);
        queue.push("small", ("small", 1));
        assert_eq!(queue.pop(), Some(("large", 3)));
        assert_eq!(queue.pop(), Some(("small", 1)));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 496);
        assert!(queue.queues.is_empty() && queue.order.is_empty());
    }

    #[tokio::test]
    async fn turns_are_bounded_and_passed_on() {
        let turns = FairTurns::new(2);
        let (first, second) = (turns.take("a").await, turns.take("a").await);
        let mut third = Box::pin(turns.take("a"));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        let third = third.now_or_never().unwrap();
        drop((second, third));
        assert_eq!(turns.state().free, 2);
    }

    #[tokio::test]
    async fn work_in_the_background_comes_last() {
        let turns = FairTurns::new(1);
        let held = turns.take("a").await;
        let mut idle = Box::pin(turns.take_idle());
        assert!(idle.as_mut().now_or_never().is_none());
        let mut first = Box::pin(turns.take("a"));
        let mut second = Box::pin(turns.take("b"));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        let held = first.now_or_never().unwrap();
        assert!(idle.as_mut().now_or_never().is_none());
        drop(held);
        let held = second.now_or_never().unwrap();
        assert!(idle.as_mut().now_or_never().is_none());
        drop(held);
        drop(idle.now_or_never().unwrap());
        assert_eq!(turns.state().free, 1);
    }

    #[tokio::test]
    async fn waiter_that_gives_up_is_passed_over() {
        let turns = FairTurns::new(1);
        let held = turns.take("a").await;
        let mut gone = Box::pin(turns.take("a"));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(turns.take("b"));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        drop(waiting.now_or_never().unwrap());
        assert_eq!(turns.state().free, 1);
        // One that gives up after it was given the turn does not keep it.
        let held = turns.take("a").await;
        let mut gone = Box::pin(turns.take("a"));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(held);
        drop(gone);
        assert_eq!(turns.state().free, 1);
    }
}
