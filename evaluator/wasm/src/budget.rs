//! The memory that all evaluations of an engine may use together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::sandbox::Stop;

/// A number of bytes that is shared by everything that reserves some of it. Cheap to clone.
///
/// It counts what guests and the host may use at most, not what they use: a process that stays within it is not
/// killed for its memory. The compiled code of loaded modules counts as well, but leaves evaluations at least a
/// quarter: a process with more code than was planned for should not refuse every request.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<State>);

#[derive(Debug)]
struct State {
    total: u64,
    /// Compiled code.
    code: AtomicU64,
    /// Reserved by evaluations.
    used: AtomicU64,
}

/// Bytes of a budget; returned when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: u64,
}

/// Compiled code; its bytes are returned when this is dropped.
#[derive(Debug)]
pub(crate) struct CodeReservation {
    budget: MemoryBudget,
    bytes: u64,
}

/// A small value in a list, with what allocating it costs.
pub(crate) const VALUE_BYTES: usize = 64;

/// The budget is used up: the same request may succeed later, or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget is used up")]
pub struct BudgetExceeded;

// === impl MemoryBudget ===

impl MemoryBudget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Self {
        Self(Arc::new(State {
            total,
            code: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }))
    }

    /// A budget that nothing exceeds.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// The bytes that evaluations may reserve together.
    pub fn available_to_evaluations(&self) -> u64 {
        let State { total, code, .. } = &*self.0;
        total.saturating_sub(code.load(Relaxed)).max(total / 4)
    }

    /// The bytes that are reserved.
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// A reservation that holds nothing yet.
    pub fn reservation(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Counts compiled code. It is there already, so this never fails.
    pub(crate) fn hold_code(&self, bytes: u64) -> CodeReservation {
        self.0.code.fetch_add(bytes, Relaxed);
        CodeReservation {
            budget: self.clone(),
            bytes,
        }
    }

    fn take(&self, bytes: u64) -> Result<(), BudgetExceeded> {
        let most = self.available_to_evaluations();
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        let taken = self.0.used.fetch_update(Relaxed, Relaxed, add);
        taken.map(|_| ()).map_err(|_| BudgetExceeded)
    }
}

// === impl Reservation ===

impl Reservation {
    /// Reserves `bytes` more, or nothing.
    pub fn grow(&mut self, bytes: u64) -> Result<(), BudgetExceeded> {
        self.budget.take(bytes)?;
        // The sum of all reservations fits, so this one does.
        self.bytes += bytes;
        Ok(())
    }

    /// Returns up to `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.0.used.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

// === impl CodeReservation ===

impl Drop for CodeReservation {
    fn drop(&mut self) {
        self.budget.0.code.fetch_sub(self.bytes, Relaxed);
    }
}

// === impl BudgetExceeded ===

impl From<BudgetExceeded> for Stop {
    fn from(_: BudgetExceeded) -> Self {
        Self::Overloaded
    }
}

/// An upper estimate of the memory that a document takes when it is parsed. Small objects are the most expensive: each
/// has a node with room for eleven fields.
pub(crate) fn parsed_bytes(json: &[u8]) -> u64 {
    const OBJECT: u64 = 640;
    const VALUE: u64 = VALUE_BYTES as u64;
    let values: u64 = json
        .iter()
        .map(|byte| match byte {
            b'{' => OBJECT,
            // Escapes are line ends of documents that the text holds.
            b',' | b':' | b'[' | b'\\' => VALUE,
            _ => 1,
        })
        .sum();
    VALUE.saturating_add(values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn code_leaves_a_quarter_to_evaluations() {
        let budget = MemoryBudget::new(100);
        let code = budget.hold_code(30);
        assert_eq!(budget.available_to_evaluations(), 70);
        let more = budget.hold_code(1_000);
        assert_eq!(budget.available_to_evaluations(), 25);
        drop((code, more));
        assert_eq!(budget.available_to_evaluations(), 100);
    }

    #[test]
    fn sums_do_not_wrap() {
        let budget = MemoryBudget::unlimited();
        let (mut one, mut two) = (budget.reservation(), budget.reservation());
        one.grow(u64::MAX).unwrap();
        assert_eq!(two.grow(1), Err(BudgetExceeded));
        drop(one);
        two.grow(1).unwrap();
    }

    /// One step of one of four reservations.
    #[derive(Clone, Debug)]
    enum Step {
        Grow(usize, u64),
        Shrink(usize, u64),
        Drop(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let amount = prop_oneof![0_u64..200, Just(u64::MAX), Just(u64::MAX - 5)];
        prop_oneof![
            (0_usize..4, amount.clone()).prop_map(|(which, by)| Step::Grow(which, by)),
            (0_usize..4, amount).prop_map(|(which, by)| Step::Shrink(which, by)),
            (0_usize..4).prop_map(Step::Drop),
        ]
    }

    proptest! {
        /// Whatever is reserved and returned, the sum is exact, never above the total, and nothing leaks.
        #[test]
        fn the_sum_of_reservations_stays_within_the_budget(
            total in 0_u64..1_000,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let budget = MemoryBudget::new(total);
            let mut held = [(); 4].map(|()| budget.reservation());
            for step in steps {
                match step {
                    Step::Grow(which, by) => {
                        let before = budget.used();
                        let grown = held[which].grow(by);
                        let fits = before.checked_add(by).is_some_and(|sum| sum <= total);
                        prop_assert_eq!(grown.is_ok(), fits);
                    }
                    Step::Shrink(which, by) => held[which].shrink(by),
                    Step::Drop(which) => held[which] = budget.reservation(),
                }
                let sum: u64 = held.iter().map(Reservation::bytes).sum();
                prop_assert_eq!(budget.used(), sum);
                prop_assert!(sum <= total);
            }
            drop(held);
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
