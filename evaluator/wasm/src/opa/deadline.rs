//! The deadline of an evaluation inside of host code.
//!
//! Wasmtime stops a guest at its deadline, but not a builtin that runs on the host. So builtins call [`tick`] in their
//! loops, and [`afford`] before work that can't be interrupted. Both end the call by unwinding, without a panic
//! message, to [`run`]: a result in every signature would reach through parsers and recursions that have no other
//! reason to fail.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use crate::budget::{MemoryBudget, Reservation, VALUE_BYTES};

/// One call of a builtin on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) deadline: Instant,
    /// Called once if the call is slow, for threads that have other work to do.
    pub(crate) on_slow: Option<fn()>,
}

/// Why a call has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The deadline has passed, or would pass.
    Timeout,
    /// There is not enough memory left for the result.
    OutOfMemory,
    /// A fault in a library.
    Panicked,
}

/// Travel with the unwinding.
struct Timeout;
struct OutOfMemory;

#[derive(Clone, Copy)]
struct Running {
    limit: Limit,
    slow_at: Instant,
    ticks: u32,
}

/// Ticks between two looks at the clock, which takes about as long as 50 of them.
const TICKS: u32 = 64;

/// A call that takes longer counts as slow, as a guest that runs for two ticks of its clock.
const SLOW: Duration = Duration::from_millis(10);

/// How late a deadline may be noticed: as late as with guests.
const GRACE: Duration = Duration::from_millis(20);

/// A unit of [`afford`]: one step of an automaton, or one byte that is parsed or encoded.
const UNIT: Duration = Duration::from_nanos(10);

thread_local! {
    static RUNNING: Cell<Option<Running>> = const { Cell::new(None) };
    static MEMORY: RefCell<Option<Reservation>> = const { RefCell::new(None) };
}

/// Restores what was running before, even if the call panics.
struct Restore(Option<Running>);

impl Drop for Restore {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// Runs a call that ends by itself when `limit` is reached.
pub(super) fn run<T>(limit: Limit, call: impl FnOnce() -> T) -> Result<T, Interrupted> {
    let running = Running {
        limit,
        slow_at: Instant::now() + SLOW,
        ticks: 0,
    };
    let _restore = Restore(RUNNING.replace(Some(running)));
    panic::catch_unwind(AssertUnwindSafe(call)).map_err(|cause| {
        if cause.is::<Timeout>() {
            Interrupted::Timeout
        } else if cause.is::<OutOfMemory>() {
            Interrupted::OutOfMemory
        } else {
            Interrupted::Panicked
        }
    })
}

/// As [`run`], and what the call reserves with [`reserve`] comes from `memory` until the call ends.
pub(super) fn run_within<T>(
    limit: Limit,
    memory: &MemoryBudget,
    call: impl FnOnce() -> T,
) -> Result<T, Interrupted> {
    let before = MEMORY.replace(Some(memory.reservation()));
    let result = run(limit, call);
    MEMORY.set(before);
    result
}

/// Takes memory for a result that is larger than the arguments it is made from.
pub(super) fn reserve(bytes: usize) {
    let reserved = MEMORY.with_borrow_mut(|memory| match memory {
        Some(memory) => memory.grow(bytes as u64).is_ok(),
        None => true,
    });
    if !reserved {
        panic::resume_unwind(Box::new(OutOfMemory));
    }
}

/// One step of a loop whose steps take less than some microseconds.
#[inline]
pub(super) fn tick() {
    if let Some(mut running) = RUNNING.get() {
        running.ticks += 1;
        let due = running.ticks >= TICKS;
        if due {
            running.ticks = 0;
        }
        RUNNING.set(Some(running));
        if due {
            check();
        }
    }
}

/// Looks at the clock. For steps that take longer.
pub(super) fn check() {
    if let Some(running) = RUNNING.get() {
        let now = Instant::now();
        if now >= running.slow_at {
            hand_over();
        }
        if now >= running.limit.deadline {
            panic::resume_unwind(Box::new(Timeout));
        }
    }
}

/// Ends the call if `units` of work that can't be interrupted would not end by the deadline.
pub(super) fn afford(units: usize) {
    check();
    if let Some(running) = RUNNING.get() {
        let work = UNIT.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX));
        if work >= SLOW {
            hand_over();
        }
        if Instant::now() + work > running.limit.deadline + GRACE {
            panic::resume_unwind(Box::new(Timeout));
        }
    }
}

/// As [`reserve`], for a list of small values.
pub(super) fn reserve_values(count: usize) {
    reserve(count.saturating_mul(VALUE_BYTES));
}

/// Has another thread do the other work of this one; once per call.
fn hand_over() {
    if let Some(mut running) = RUNNING.get()
        && let Some(on_slow) = running.limit.on_slow.take()
    {
        RUNNING.set(Some(running));
        on_slow();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn limit(left: Duration) -> Limit {
        Limit {
            deadline: Instant::now() + left,
            on_slow: None,
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_loop_ends_at_the_deadline() {
        let endless = || loop {
            tick();
        };
        assert_eq!(
            run(limit(Duration::from_millis(5)), endless),
            Err(Interrupted::Timeout)
        );
        // Nothing runs any more.
        tick();
        afford(usize::MAX);
    }

    #[test]
    fn work_is_refused_if_it_would_end_too_late() {
        assert_eq!(run(limit(LONG), || afford(1_000_000)), Ok(()));
        let short = limit(Duration::from_millis(100));
        assert_eq!(
            run(short, || afford(1_000_000_000)),
            Err(Interrupted::Timeout)
        );
    }

    #[test]
    fn memory_is_reserved_until_the_call_ends() {
        let budget = MemoryBudget::new(100);
        let call = |bytes| run_within(limit(LONG), &budget, || reserve(bytes));
        assert_eq!(call(100), Ok(()));
        assert_eq!(budget.used(), 0);
        assert_eq!(call(101), Err(Interrupted::OutOfMemory));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn faults_are_told_from_timeouts() {
        let result = run(limit(LONG), || panic!("a fault in a library"));
        assert_eq!(result, Err(Interrupted::Panicked));
    }

    #[test]
    fn a_slow_call_hands_over_once() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let limit = Limit {
            on_slow: Some(|| {
                CALLS.fetch_add(1, Relaxed);
            }),
            ..limit(LONG)
        };
        let slow = || {
            check();
            assert_eq!(CALLS.load(Relaxed), 0);
            std::thread::sleep(SLOW);
            check();
            check();
        };
        assert_eq!(run(limit, slow), Ok(()));
        assert_eq!(CALLS.load(Relaxed), 1);
    }
}
