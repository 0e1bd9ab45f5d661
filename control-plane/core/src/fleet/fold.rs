//! The fold: what is true of a revision, given what replicas reported.

use std::{collections::BTreeSet, sync::Arc};

use super::{Connection, Fleet, Name};
use crate::{
    digest::Version,
    policy::RevisionId,
    session::{RefusedSnapshot, Rejection},
    snapshot::Snapshot,
};

/// What is true of one revision. The counters `applied` to `disconnected` add up to `wanted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    /// Replicas that count.
    pub wanted: u32,
    /// Replicas that are connected and serve the revision.
    pub applied: u32,
    /// Replicas that are connected and could not load it.
    pub rejected: u32,
    /// Replicas that are connected and have not answered for it yet.
    pub behind: u32,
    /// Replicas that are not connected, whatever they answered last.
    pub disconnected: u32,
    /// The last answer of every counted replica has the revision, and none is gone: the webhook
    /// may point at it.
    pub complete: bool,
    /// Some counted replica lacks the revision, or is gone. A replica that has not answered yet
    /// degrades nothing, so that one that joins does not undo `Enforced` (R37).
    pub degraded: bool,
}

/// What one replica has done with one revision.
#[derive(Clone, Debug)]
pub enum LoadState {
    /// It could not load the revision.
    Rejected(Rejection),
    /// It refused the version that brought the revision.
    Refused(RefusedSnapshot),
    /// It is not connected.
    Disconnected,
    /// It has not answered yet.
    Behind,
    /// It serves the revision.
    Applied,
}

/// Counted replicas that applied the same version. The sets are ordered, because a status lists
/// the first few replicas by name.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// `None` for replicas that have not answered.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    open: BTreeSet<Name>,
    grace: BTreeSet<Name>,
    gone: BTreeSet<Name>,
}

// === impl Fleet ===

impl Fleet {
    /// What is true of `revision`.
    pub fn fold(&self, revision: &RevisionId) -> Fold {
        let mut fold = Fold::default();
        let mut missing = 0;
        for group in self.groups.values() {
            let has = group.has(revision);
            let (open, absent) = (group.open.len(), group.grace.len() + group.gone.len());
            fold.wanted += count(open + absent);
            fold.disconnected += count(absent);
            *if has {
                &mut fold.applied
            } else {
                &mut fold.behind
            } += count(open);
            missing += if has { group.gone.len() } else { open + absent };
            // A replica that is away for longer than the grace period may serve anything, also
            // if it never connected to this process.
            fold.degraded |= !group.gone.is_empty() || (group.snapshot.is_some() && !has);
        }
        for name in self.exceptions.get(revision).into_iter().flatten() {
            missing += 1;
            fold.degraded = true;
            if self.is_connected(name) {
                fold.applied -= 1;
                fold.rejected += 1;
            }
        }
        for name in self.refusing.iter().filter(|n| self.refuses(n, revision)) {
            fold.degraded = true;
            if self.is_connected(name) {
                fold.behind -= 1;
                fold.rejected += 1;
            }
        }
        fold.complete = fold.wanted > 0 && missing == 0;
        fold
    }

    /// What replicas have done with `revision`, those that lack it first; at most `limit`.
    pub fn load_states(&self, revision: &RevisionId, limit: usize) -> Vec<(Name, LoadState)> {
        let mut rows: Vec<(Name, LoadState)> = Vec::new();
        let excepted = self.exceptions.get(revision);
        let refusing = self.refusing.iter().filter(|n| self.refuses(n, revision));
        let refused = excepted.into_iter().flatten().chain(refusing);
        for name in refused.filter(|n| self.is_connected(n)).take(limit) {
            rows.extend(self.refusal(name, revision).map(|s| (name.clone(), s)));
        }
        let is_excepted = |name: &Name| excepted.is_some_and(|set| set.contains(name));
        let absent = self.groups.values().flat_map(|g| [&g.grace, &g.gone]);
        fill(&mut rows, limit, absent, |_| true, &LoadState::Disconnected);
        let behind = self.groups.values().filter(|g| !g.has(revision));
        let waits = |n: &Name| !(self.refusing.contains(n) && self.refuses(n, revision));
        let behind = behind.map(|g| &g.open);
        fill(&mut rows, limit, behind, waits, &LoadState::Behind);
        let applied = self.groups.values().filter(|g| g.has(revision));
        let applied = applied.map(|g| &g.open);
        let serves = |n: &Name| !is_excepted(n);
        fill(&mut rows, limit, applied, serves, &LoadState::Applied);
        rows
    }

    /// Whether the replica's last answer has `revision` loaded.
    pub fn serves(&self, name: &str, revision: &RevisionId) -> bool {
        let applied = self.replicas.get(name).and_then(|r| r.applied.as_ref());
        applied.is_some_and(|t| {
            t.snapshot.contains(revision.as_str())
                && !t.rejected.iter().any(|r| r.revision == *revision)
        })
    }

    /// How many connected replicas have loaded this version completely.
    pub fn acked(&self, version: Version) -> usize {
        let group = self.groups.get(&Some(version));
        let open = group.map_or(0, |g| g.open.len());
        let whole = |name: &&Name| {
            let replica = self.replicas.get(*name);
            replica.is_some_and(|r| r.report.acked != Some(version))
        };
        let partly = self.exceptions.values().flatten().collect::<BTreeSet<_>>();
        open - partly
            .into_iter()
            .filter(|n| group.is_some_and(|g| g.open.contains(*n)))
            .filter(whole)
            .count()
    }

    /// Whether every counted replica is connected and has loaded this version completely.
    pub fn all_at(&self, version: Version) -> bool {
        let at = |(v, g): (&Option<Version>, &Group)| {
            *v == Some(version) && g.grace.is_empty() && g.gone.is_empty()
        };
        !self.groups.is_empty()
            && self.groups.iter().all(at)
            && self.refusing.is_empty()
            && self.exceptions.is_empty()
    }

    /// Whether the replica's last answer refused a version with this revision completely, and it
    /// does not have the revision from before.
    fn refuses(&self, name: &str, revision: &RevisionId) -> bool {
        let Some(replica) = self.replicas.get(name) else {
            return false;
        };
        let refused = replica.report.refused.as_ref().filter(|r| r.whole);
        refused.is_some_and(|r| r.snapshot.contains(revision.as_str()))
            && !replica
                .applied
                .as_ref()
                .is_some_and(|t| t.snapshot.contains(revision.as_str()))
    }

    fn refusal(&self, name: &str, revision: &RevisionId) -> Option<LoadState> {
        let replica = self.replicas.get(name)?;
        let rejected = replica.applied.iter().flat_map(|t| &t.rejected);
        let named = rejected
            .into_iter()
            .find(|r| r.revision == *revision)
            .cloned();
        named
            .map(LoadState::Rejected)
            .or_else(|| replica.report.refused.clone().map(LoadState::Refused))
    }
}

// === impl Group ===

impl Group {
    fn has(&self, revision: &RevisionId) -> bool {
        let snapshot = self.snapshot.as_ref();
        snapshot.is_some_and(|s| s.contains(revision.as_str()))
    }

    pub(super) fn side(&mut self, connection: Connection) -> &mut BTreeSet<Name> {
        match connection {
            Connection::Open { .. } => &mut self.open,
            Connection::Grace { .. } => &mut self.grace,
            Connection::Gone => &mut self.gone,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.grace.is_empty() && self.gone.is_empty()
    }
}

/// Appends rows in the order of their names until there are `limit`. It looks at no more names
/// of each set than there is room for, so that rows of a large fleet cost what is shown.
fn fill<'a>(
    rows: &mut Vec<(Name, LoadState)>,
    limit: usize,
    sets: impl Iterator<Item = &'a BTreeSet<Name>>,
    matches: impl Fn(&Name) -> bool,
    state: &LoadState,
) {
    let room = limit.saturating_sub(rows.len());
    let first = |set: &'a BTreeSet<Name>| set.iter().filter(|name| matches(name)).take(room);
    let mut names: Vec<&Name> = sets.flat_map(first).collect();
    names.sort_unstable();
    let names = names.into_iter().take(room);
    rows.extend(names.map(|name| (name.clone(), state.clone())));
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
