//! One PolicyServer: its replicas, and the snapshot that they must hold.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::Effect;
use crate::{
    coalesce::Coalescer,
    digest::Version,
    fleet::{CountedReplicas, Fleet},
    policy::{Policy, RevisionId},
    snapshot::{RouteState, Snapshot},
    time::Millis,
};

/// Revisions of one policy that evaluators must hold, with the states of their routes.
pub(super) type Placement = BTreeMap<RevisionId, (Arc<Policy>, RouteState)>;

/// One PolicyServer.
#[derive(Debug)]
pub struct Server {
    /// Its replicas.
    pub fleet: Fleet,
    coalescer: Coalescer,
    /// The snapshot that was built last; the first one is empty.
    current: Arc<Snapshot>,
    published: Option<Arc<Snapshot>>,
    /// Whether the coalescer has not been told of a change yet. That nothing was published is
    /// such a change.
    changed: bool,
    /// When the version that is not applied everywhere yet was published.
    waiting_since: Option<Millis>,
    /// Revisions to insert into the current snapshot, or to remove from it. While they wait
    /// no snapshot is built: its version would be hashed in vain.
    changes: BTreeMap<RevisionId, Option<(Arc<Policy>, RouteState)>>,
    /// Nothing is published: the snapshot lacks a revision that a webhook names.
    pub(super) withheld: bool,
}

// === impl Server ===

impl Server {
    pub(super) fn new(counted: CountedReplicas, grace: Duration) -> Self {
        Self {
            fleet: Fleet::new(counted, grace),
            coalescer: Coalescer::default(),
            current: Arc::new(Snapshot::empty()),
            published: None,
            changed: true,
            waiting_since: None,
            changes: BTreeMap::new(),
            withheld: false,
        }
    }

    /// The snapshot that was published last.
    pub fn published(&self) -> Option<&Arc<Snapshot>> {
        self.published.as_ref()
    }

    /// The version that was published last.
    pub fn version(&self) -> Option<Version> {
        self.published.as_ref().map(|s| s.version())
    }

    /// When time alone changes something next.
    pub(super) fn deadline(&self) -> Option<Millis> {
        let publishing = self.coalescer.deadline().filter(|_| !self.withheld);
        let deadlines = [self.fleet.deadline(), publishing];
        deadlines.into_iter().flatten().min()
    }

    /// Replaces what the snapshot holds of one policy.
    pub(super) fn place(&mut self, old: &Placement, new: &Placement) {
        for id in old.keys().filter(|id| !new.contains_key(*id)) {
            self.change(id, None);
        }
        for (id, (policy, state)) in new {
            let same = |(p, s): &(Arc<Policy>, RouteState)| Arc::ptr_eq(p, policy) && s == state;
            if !old.get(id).is_some_and(same) {
                self.change(id, Some((policy.clone(), *state)));
            }
        }
    }

    fn change(&mut self, id: &RevisionId, place: Option<(Arc<Policy>, RouteState)>) {
        // What goes back to what the snapshot has is no change any more.
        let known = match self.current.has(id, place.as_ref()) {
            true => self.changes.remove(id).is_none(),
            false => {
                self.changes.insert(id.clone(), place);
                false
            }
        };
        self.changed |= !known;
    }

    /// Builds the next snapshot and publishes it if it is due. True if a snapshot was
    /// published.
    pub(super) fn publish(&mut self, now: Millis, name: &Arc<str>, out: &mut Vec<Effect>) -> bool {
        if self.withheld {
            return false;
        }
        let due = match std::mem::take(&mut self.changed) {
            true => self.coalescer.change(now),
            false => self.coalescer.take_due(now),
        };
        if due {
            self.build();
        }
        let publishes = due && self.version() != Some(self.current.version());
        if publishes {
            self.published = Some(self.current.clone());
            self.waiting_since = Some(now);
            out.push(Effect::Publish {
                server: name.clone(),
                snapshot: self.current.clone(),
            });
        }
        if let (Some(since), Some(version)) = (self.waiting_since, self.version())
            && self.fleet.all_at(version)
        {
            self.waiting_since = None;
            out.push(Effect::AppliedEverywhere {
                server: name.clone(),
                took: now.since(since),
            });
        }
        publishes
    }

    /// Equal content keeps the same `Arc`, so that nobody compares it again.
    fn build(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let snapshot = self.current.with(std::mem::take(&mut self.changes));
        if snapshot.version() != self.current.version() {
            self.current = Arc::new(snapshot);
        }
    }

    /// The snapshot with all changes in it, whether or not it was published.
    #[cfg(test)]
    pub(super) fn upcoming(&self) -> Snapshot {
        self.current.with(self.changes.clone())
    }
}
