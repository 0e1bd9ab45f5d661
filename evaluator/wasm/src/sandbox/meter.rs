//! Measures and limits what a guest uses.

use std::time::{Duration, Instant};

use wasmtime::ResourceLimiter;

use super::Stop;
use crate::{
    budget::{MemoryBudget, Reservation},
    limits::{HOST_CALL_BYTES, HOST_CALLS, Limits, TABLE_ELEMENTS},
    policy::EvalError,
};

/// The end of a guest's output that is kept for error messages.
const LAST_OUTPUT: usize = 1024;

/// Called on the thread of the evaluation if it takes longer than some milliseconds.
pub(crate) type OnSlow = fn();

/// Calls of [`OnSlow`], one per tick: it may need more than one try.
const SLOW_CALLS: u8 = 3;

/// Far beyond any webhook's time, and safe to add to a clock.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The limits of one evaluation and what is used of them.
pub(crate) struct Meter {
    pub(super) deadline: Instant,
    pub(crate) limits: Limits,
    /// What this evaluation has of the memory that all share.
    memory: Reservation,
    on_slow: Option<OnSlow>,
    /// How often `on_slow` may still be called.
    slow_calls: u8,
    /// Memory that the guest does not know of, so that it does not count.
    pub(crate) unseen_bytes: usize,
    calls_left: u32,
    bytes_left: usize,
    /// Whether growth was refused: a trap that follows is a consequence.
    pub(crate) memory_refused: bool,
    pub(crate) table_refused: bool,
    /// The end of what the guest logged: the reason for a trap is usually there.
    pub(crate) last_output: String,
    /// The last external host call, if it failed: guests crash for want of an answer.
    pub(crate) unanswered: Option<String>,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(limits: &Limits, memory: Reservation) -> Self {
        let now = Instant::now();
        Self {
            deadline: now + limits.timeout.min(LONGEST),
            limits: *limits,
            memory,
            on_slow: None,
            slow_calls: SLOW_CALLS,
            unseen_bytes: 0,
            calls_left: HOST_CALLS,
            bytes_left: HOST_CALL_BYTES,
            memory_refused: false,
            table_refused: false,
            last_output: String::new(),
            unanswered: None,
        }
    }

    /// Calls `on_slow` if the evaluation is slow.
    pub(super) fn watch(&mut self, on_slow: Option<OnSlow>) {
        self.on_slow = on_slow;
    }

    /// The limit of a builtin that runs on the host.
    pub(crate) fn builtin_limit(&self) -> crate::opa::Limit {
        crate::opa::Limit {
            deadline: self.deadline,
            on_slow: self.on_slow,
        }
    }

    /// The evaluation is slow, or about to be.
    pub(crate) fn mark_slow(&mut self) {
        if let Some(on_slow) = self.on_slow.filter(|_| self.slow_calls > 0) {
            self.slow_calls -= 1;
            on_slow();
        }
    }

    /// Takes one host call from the budget.
    pub(crate) fn charge_call(&mut self, bytes: usize) -> Result<(), Stop> {
        self.calls_left = self.calls_left.checked_sub(1).ok_or(Stop::HostCallBudget)?;
        self.charge_bytes(bytes)
    }

    /// Takes bytes that cross the boundary from the budget.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), Stop> {
        self.bytes_left = self
            .bytes_left
            .checked_sub(bytes)
            .ok_or(Stop::HostCallBudget)?;
        self.hold(bytes as u64)
    }

    /// Takes memory from what all evaluations share, until this one ends.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), EvalError> {
        self.memory.grow(bytes).map_err(|_| EvalError::Overloaded)
    }

    /// As [`Meter::reserve`], for host functions.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), Stop> {
        Ok(self.memory.grow(bytes)?)
    }

    /// Returns what [`Meter::hold`] has taken.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.memory.shrink(bytes);
    }

    /// The memory that all evaluations share.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        self.memory.budget()
    }

    /// Ends an evaluation whose time is over; for host functions that take time themselves.
    pub(crate) fn check_deadline(&self) -> Result<(), Stop> {
        if self.remaining().is_zero() {
            Err(Stop::Timeout)
        } else {
            Ok(())
        }
    }

    /// Remembers whether the last host call to the outside failed.
    pub(crate) fn note_answer(&mut self, operation: &str, failure: Option<&String>) {
        self.unanswered = failure.map(|why| {
            let why: String = why.chars().take(LAST_OUTPUT).collect();
            format!("the host call {operation} failed: {why}")
        });
    }

    /// Keeps the end of what the guest wrote.
    pub(crate) fn note(&mut self, words: &str) {
        self.last_output.clear();
        let words = words.trim_end();
        let mut start = words.len().saturating_sub(LAST_OUTPUT);
        while !words.is_char_boundary(start) {
            start += 1;
        }
        self.last_output.push_str(&words[start..]);
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // Only when it is created: a guest that grows it has used up the unseen part.
        let unseen = if current == 0 { self.unseen_bytes } else { 0 };
        let allowed = desired.saturating_sub(unseen) as u64 <= self.limits.memory_bytes;
        self.memory_refused |= !allowed;
        if allowed {
            self.hold(desired.saturating_sub(current) as u64)?;
        }
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_refused = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let allowed = desired <= TABLE_ELEMENTS;
        self.table_refused |= !allowed;
        if allowed {
            let elements = desired.saturating_sub(current);
            self.hold((elements * size_of::<usize>()) as u64)?;
        }
        Ok(allowed)
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        2
    }
}
