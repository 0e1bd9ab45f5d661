//! A bound on the bytes of modules that are in memory because they are being pulled.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits are counted in units of this size, because a semaphore counts in 32 bits.
const UNIT: u64 = 1 << 10;

/// Bytes that may be in flight at once.
#[derive(Clone, Debug)]
pub(super) struct ByteBudget {
    units: Arc<Semaphore>,
    total: u32,
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    _permit: OwnedSemaphorePermit,
}

// === impl ByteBudget ===

impl ByteBudget {
    pub(super) fn new(bytes: u64) -> Self {
        let total = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        Self {
            units: Arc::new(Semaphore::new(total as usize)),
            total,
        }
    }

    /// Waits until `bytes` fit, in the order of the calls. More than the whole budget waits
    /// for all of it.
    pub(super) async fn take(&self, bytes: u64) -> Share {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let permit = self.units.clone().acquire_many_owned(units.min(self.total));
        Share {
            _permit: permit.await.expect("the semaphore must never be closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn bytes_in_flight_are_bounded() {
        let budget = ByteBudget::new(10 * UNIT);
        let first = budget.take(6 * UNIT).now_or_never().unwrap();
        let mut second = Box::pin(budget.take(5 * UNIT));
        assert!(second.as_mut().now_or_never().is_none());
        // A small one does not overtake: large modules would wait for ever.
        assert!(budget.take(1).now_or_never().is_none());
        drop(first);
        let _second = second.now_or_never().unwrap();
        let _third = budget.take(5 * UNIT).now_or_never().unwrap();
        assert!(budget.take(1).now_or_never().is_none());
    }

    #[test]
    fn more_than_the_budget_takes_all_of_it() {
        let budget = ByteBudget::new(10 * UNIT);
        let all = budget.take(11 * UNIT).now_or_never().unwrap();
        assert!(budget.take(1).now_or_never().is_none());
        drop(all);
        assert!(budget.take(10 * UNIT).now_or_never().is_some());
    }
}
