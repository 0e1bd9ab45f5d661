//! Counts what a guest uses.

use std::time::{Duration, Instant};

use wasmtime::ResourceLimiter;

use super::Stop;
use crate::limits::{HOST_CALL_BYTES, HOST_CALLS, Limits, TABLE_ELEMENTS};

/// Longest end of a guest's own words that is kept for error messages.
const LAST_WORDS: usize = 1024;

/// Somebody who wants to know, on the thread of the evaluation, that it takes longer than some milliseconds.
pub(crate) type OnLong = fn();

/// Tick by tick: who is told may need more than one try at what it does then.
const TELL: u8 = 3;

/// Far beyond any webhook's time, and safe to add to a clock.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The limits of one evaluation and what is used of them.
pub(crate) struct Meter {
    pub(super) deadline: Instant,
    pub(crate) limits: Limits,
    /// To be told if it takes long, so many times.
    long: Option<OnLong>,
    tell: u8,
    /// Memory that the guest does not know of, so that it does not count.
    pub(crate) unseen_bytes: usize,
    calls_left: u32,
    bytes_left: usize,
    /// Whether growth was refused: what follows is the guest's way of failing.
    pub(crate) memory_refused: bool,
    pub(crate) table_refused: bool,
    /// The end of what the guest logged: the reason for a trap is usually there.
    pub(crate) last_words: String,
    /// The last host call to the outside, if it got an error: a crash that follows is
    /// the guest's way of saying so.
    pub(crate) unanswered: Option<String>,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(limits: &Limits) -> Self {
        let now = Instant::now();
        Self {
            deadline: now + limits.timeout.min(LONGEST),
            limits: *limits,
            long: None,
            tell: TELL,
            unseen_bytes: 0,
            calls_left: HOST_CALLS,
            bytes_left: HOST_CALL_BYTES,
            memory_refused: false,
            table_refused: false,
            last_words: String::new(),
            unanswered: None,
        }
    }

    /// Has `long` told if the evaluation takes long.
    pub(super) fn watch(&mut self, long: Option<OnLong>) {
        self.long = long;
    }

    /// Tells who wants to know that this takes long.
    pub(crate) fn takes_long(&mut self) {
        if let Some(long) = self.long.filter(|_| self.tell > 0) {
            self.tell -= 1;
            long();
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
        Ok(())
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
            let why: String = why.chars().take(LAST_WORDS).collect();
            format!("the host call {operation} failed: {why}")
        });
    }

    /// Remembers what the guest said.
    pub(crate) fn note(&mut self, words: &str) {
        self.last_words.clear();
        let words = words.trim_end();
        let mut start = words.len().saturating_sub(LAST_WORDS);
        while !words.is_char_boundary(start) {
            start += 1;
        }
        self.last_words.push_str(&words[start..]);
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // When it is made; whoever grows it has used up the unseen part.
        let unseen = if current == 0 { self.unseen_bytes } else { 0 };
        let allowed = desired.saturating_sub(unseen) as u64 <= self.limits.memory_bytes;
        self.memory_refused |= !allowed;
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_refused = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let allowed = desired <= TABLE_ELEMENTS;
        self.table_refused |= !allowed;
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
