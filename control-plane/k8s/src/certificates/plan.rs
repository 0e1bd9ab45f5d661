//! What to do next with the authority: old and new are trusted together before the new one
//! signs, and for as long as anything that the old one signed is alive.

use std::time::SystemTime;

use super::{CLOCK_SKEW, Life, Lives};

#[cfg(test)]
mod tests;

/// What of the stored authorities matters for rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dates {
    /// The one that signs.
    pub current: Option<Life>,
    /// The one that will.
    pub next: Option<Life>,
    /// Those that signed before.
    pub previous: Vec<Life>,
    /// Since when the current one signs; without it nothing is dropped before its own end.
    pub signing_since: Option<SystemTime>,
    /// A user requested a new one.
    pub asked: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the first one.
    Create,
    /// Make the next one and publish it.
    Prepare,
    /// Let the next one sign.
    Promote,
    /// Forget those that signed before.
    Drop,
    /// Nothing before this time.
    Wait(SystemTime),
}

/// Rotations that are requested faster than leaves expire accumulate in the bundle: at most this
/// many.
const MAX_PREVIOUS: usize = 4;

/// The next step.
pub fn plan(now: SystemTime, dates: &Dates, lives: &Lives) -> Step {
    let Some(current) = dates.current else {
        return Step::Create;
    };
    let drop_at = drop_at(dates, lives);
    if drop_at.is_some_and(|at| at <= now) {
        return Step::Drop;
    }
    let (at, step) = match dates.next {
        // One that ended before it ever signed is made again.
        Some(next) if next.ends <= now => (now, Step::Prepare),
        // The end of the current one leaves no choice.
        Some(next) => ((next.made + lives.overlap).min(current.ends), Step::Promote),
        None if dates.asked && dates.previous.len() < MAX_PREVIOUS => (now, Step::Prepare),
        None => (rotate_at(current, lives), Step::Prepare),
    };
    if at <= now {
        return step;
    }
    Step::Wait(drop_at.map_or(at, |drop_at| drop_at.min(at)))
}

/// After two thirds of its life, and early enough for the overlap and for the longest leaf.
fn rotate_at(current: Life, lives: &Lives) -> SystemTime {
    let life = current.ends.duration_since(current.made);
    let at = current.made + life.unwrap_or_default() * 2 / 3;
    let latest = current.ends.checked_sub(lives.leaf + lives.overlap);
    latest.map_or(at, |latest| at.min(latest.max(current.made)))
}

/// When the last leaf that a previous one signed has ended, on the slowest clock.
fn drop_at(dates: &Dates, lives: &Lives) -> Option<SystemTime> {
    let ends = dates.previous.iter().map(|life| life.ends).max()?;
    let leaves = dates.signing_since.map(|since| since + lives.leaf);
    Some(leaves.map_or(ends, |leaves| leaves.min(ends)) + CLOCK_SKEW)
}
