//! What happened in a history: a simulation in which nothing happens proves nothing.

/// How often something happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) flips: usize,
    pub(crate) repairs: usize,
    pub(crate) orphans: usize,
    pub(crate) fail_overs: usize,
    pub(crate) lost_responses: usize,
    pub(crate) conflicts: usize,
    pub(crate) rollbacks: usize,
    /// Revisions that became active again after their server was recreated.
    pub(crate) returned: usize,
    pub(crate) last_good: usize,
}

// === impl Seen ===

impl Seen {
    pub(crate) fn add(&mut self, other: &Seen) {
        self.flips += other.flips;
        self.repairs += other.repairs;
        self.orphans += other.orphans;
        self.fail_overs += other.fail_overs;
        self.lost_responses += other.lost_responses;
        self.conflicts += other.conflicts;
        self.rollbacks += other.rollbacks;
        self.returned += other.returned;
        self.last_good += other.last_good;
    }

    pub(crate) fn assert_everything_happened(&self) {
        let all = [
            self.flips,
            self.repairs,
            self.orphans,
            self.fail_overs,
            self.lost_responses,
            self.conflicts,
            self.rollbacks,
            self.returned,
            self.last_good,
        ];
        assert!(all.iter().all(|n| *n > 0), "{self:?}");
    }
}
