//! When changes are published: the first one at once, changes that follow shortly after together
//! (R22).

use std::time::Duration;

use crate::time::Millis;

/// Changes that are closer together than this are published together.
pub const QUIET: Duration = Duration::from_millis(50);

/// No change waits longer than this, however many follow.
pub const LONGEST: Duration = Duration::from_secs(1);

/// Decides when waiting changes are published.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coalescer {
    last_change: Option<Millis>,
    first_waiting: Option<Millis>,
}

// === impl Coalescer ===

impl Coalescer {
    /// Records a change; true if it is published now, together with every change that waits:
    /// either no change preceded it recently, or the waiting ones are due. A caller that sees
    /// a change every time it looks never calls [`Coalescer::take_due`], so that the bound of
    /// [`LONGEST`] has to hold here as well.
    pub fn change(&mut self, now: Millis) -> bool {
        let is_recent = |last: Millis| now.since(last) < QUIET;
        let is_busy = self.last_change.is_some_and(is_recent);
        let publish = match self.first_waiting {
            Some(_) => self.take_due(now),
            None => !is_busy,
        };
        self.last_change = Some(now);
        if !publish {
            self.first_waiting.get_or_insert(now);
        }
        publish
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
    fn first_change_is_published_at_once() {
        check(&[100], &[100]);
        check(&[100, 1_000], &[100, 1_000]);
    }

    #[test]
    fn following_changes_wait_for_quiet() {
        check(&[100, 120, 160], &[100, 210]);
    }

    /// Every look at the coalescer brings another change.
    #[test]
    fn nothing_waits_longer_than_a_second_without_a_quiet_look() {
        let mut coalescer = Coalescer::default();
        let looks = (0..3_000).step_by(40).map(Millis);
        let published: Vec<Millis> = looks.filter(|now| coalescer.change(*now)).collect();
        assert_eq!(published, [0, 1_040, 2_080].map(Millis));
    }

    #[test]
    fn late_look_publishes_what_is_due() {
        let mut coalescer = Coalescer::default();
        assert!(coalescer.change(Millis(0)));
        assert!(!coalescer.change(Millis(20)));
        assert!(coalescer.change(Millis(100)));
        assert_eq!(coalescer.deadline(), None);
    }

    #[test]
    fn nothing_waits_longer_than_a_second() {
        let busy: Vec<u64> = (0..60).map(|n| 100 + n * 40).collect();
        check(&busy, &[100, 1_140, 2_140, 2_510]);
    }
}
