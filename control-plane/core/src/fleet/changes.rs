//! Which folds changed, so that only the statuses of their policies are computed again.

use std::{collections::BTreeSet, sync::Arc};

use crate::{digest::Version, policy::RevisionId, snapshot::Snapshot};

/// More changed revisions than this count as a change of all: listing them would cost more
/// than it saves, and bounds the memory of a fleet whose changes nobody takes.
const MAX_REVISIONS: usize = 1_024;

/// Pairs of versions whose difference is remembered. When a snapshot is published, all
/// replicas move from one of a few versions to it.
const MAX_PAIRS: usize = 4;

/// What changed in a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldChanges {
    /// The fold of every revision may have changed.
    pub all: bool,
    /// Revisions whose fold may have changed; empty if `all` is set.
    pub revisions: BTreeSet<RevisionId>,
    /// The state of a replica changed.
    pub replicas: bool,
}

/// Remembers the revisions in which versions differ.
#[derive(Debug, Default)]
pub(super) struct Differences(Vec<(Version, Version, Arc<[RevisionId]>)>);

// === impl FoldChanges ===

impl FoldChanges {
    pub(super) fn everything(&mut self) {
        self.all = true;
        self.replicas = true;
        self.revisions = BTreeSet::new();
    }

    pub(super) fn add<'a>(&mut self, revisions: impl IntoIterator<Item = &'a RevisionId>) {
        for revision in revisions {
            if self.all {
                return;
            }
            // Without its parts a name leads to no policy.
            if self.revisions.len() == MAX_REVISIONS || revision.parts().is_none() {
                return self.everything();
            }
            self.revisions.insert(revision.clone());
        }
    }
}

// === impl Differences ===

impl Differences {
    /// Adds the revisions that only one of the two snapshots has.
    pub(super) fn between(
        &mut self,
        from: &Arc<Snapshot>,
        to: &Arc<Snapshot>,
        out: &mut FoldChanges,
    ) {
        if Arc::ptr_eq(from, to) || from.version() == to.version() || out.all {
            return;
        }
        let pair = (from.version(), to.version());
        let known = self.0.iter().find(|(a, b, _)| (*a, *b) == pair);
        if let Some((_, _, revisions)) = known {
            return out.add(revisions.iter());
        }
        let revisions: Arc<[RevisionId]> = from.changed_revisions(to).into();
        if self.0.len() == MAX_PAIRS {
            self.0.remove(0);
        }
        self.0.push((pair.0, pair.1, revisions.clone()));
        out.add(revisions.iter());
    }
}
