//! When a change goes out: the first one at once, what follows close behind together.

use std::time::Duration;

use crate::time::Millis;

/// Changes closer together than this go out together.
pub const QUIET: Duration = Duration::from_millis(50);

/// No change waits longer than this, however busy it is.
pub const LONGEST: Duration = Duration::from_secs(1);

/// Decides when waiting changes are published.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coalescer {
    last_change: Option<Millis>,
    first_waiting: Option<Millis>,
}

// === impl Coalescer ===

impl Coalescer {
    /// Notes a change; true if it may go out at once because no change preceded it recently.
    pub fn change(&mut self, now: Millis) -> bool {
        let open = self.last_change.is_some_and(|last| now.since(last) < QUIET);
        self.last_change = Some(now);
        if !open && self.first_waiting.is_none() {
            return true;
        }
        self.first_waiting.get_or_insert(now);
        false
    }

    /// When the waiting changes are due, if any wait.
    pub fn deadline(&self) -> Option<Millis> {
        let first = self.first_waiting?;
        let last = self.last_change.unwrap_or(first);
        Some((last + QUIET).min(first + LONGEST))
    }

    /// Takes the waiting changes if they are due.
    pub fn take_due(&mut self, now: Millis) -> bool {
        let due = self.deadline().is_some_and(|at| at <= now);
        if due {
            self.first_waiting = None;
            self.last_change = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds changes at the given times and returns when something went out.
    #[track_caller]
    fn check(changes: &[u64], expect: &[u64]) {
        let mut coalescer = Coalescer::default();
        let mut sent = Vec::new();
        for now in 0..5_000 {
            if coalescer.take_due(Millis(now)) {
                sent.push(now);
            }
            for _ in changes.iter().filter(|at| **at == now) {
                if coalescer.change(Millis(now)) {
                    sent.push(now);
                }
            }
        }
        assert_eq!(sent, expect);
    }

    #[test]
    fn the_first_change_goes_at_once() {
        check(&[100], &[100]);
        check(&[100, 1_000], &[100, 1_000]);
    }

    #[test]
    fn what_follows_waits_for_quiet() {
        check(&[100, 120, 160], &[100, 210]);
    }

    #[test]
    fn nothing_waits_longer_than_a_second() {
        let busy: Vec<u64> = (0..60).map(|n| 100 + n * 40).collect();
        check(&busy, &[100, 1_140, 2_140, 2_510]);
    }
}
