//! Does what rollouts ask for by writing it into the book of objects.

use std::time::SystemTime;

use assent_api::revision::Phase;
use assent_core::{
    plane::Event,
    rollout::{Input, Output, PolicyId},
};
use assent_local::Book;
use jiff::Timestamp;
use uuid::Uuid;

use crate::{drive::Performer, metrics::Metrics};

/// The book as the place where deeds are done. A flip is one write of one file.
pub(super) struct Keeper {
    pub(super) book: Book,
    pub(super) metrics: Metrics,
}

// === impl Keeper ===

impl Performer for Keeper {
    fn perform(&mut self, id: &PolicyId, output: &Output, now: SystemTime) -> Vec<Event> {
        let Ok(uid) = id.uid.parse::<Uuid>() else {
            return Vec::new();
        };
        let done = match output {
            Output::Flip { from, to } => {
                let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
                self.book.set_active(uid, Some(to.revision.short()), now);
                self.book.set_phase(uid, to.revision.short(), Phase::Active);
                if let Some(from) = from {
                    self.book.set_phase(uid, from.short(), Phase::Draining);
                }
                Input::Flipped(to.revision.clone())
            }
            Output::Retire(revision) => {
                self.retire(uid, revision.short());
                Input::Retired(revision.clone())
            }
            // The record says that it is being deleted: the dispatch no longer sees it.
            Output::Unroute => Input::Unrouted,
            Output::Release => {
                self.book.forget(uid);
                return Vec::new();
            }
            Output::Enforced(_) => return Vec::new(),
        };
        vec![Event::Policy(id.clone(), done)]
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        if !self.book.has_changes() {
            return Ok(());
        }
        let written = self.book.commit();
        self.metrics.count_write(written.is_ok());
        Ok(written?)
    }
}

impl Keeper {
    /// A candidate that was never active is no history to go back to.
    fn retire(&mut self, uid: Uuid, name: &str) {
        let record = self.book.by_uid(uid);
        let mut revisions = record.into_iter().flat_map(|r| &r.revisions);
        let phase = revisions.find(|r| r.name == name).map(|r| r.phase);
        match phase {
            Some(Phase::Candidate) => self.book.drop_revision(uid, name),
            _ => self.book.set_phase(uid, name, Phase::History),
        }
    }
}
