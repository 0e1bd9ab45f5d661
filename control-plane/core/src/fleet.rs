//! The replicas of one PolicyServer, and what they have reported.
//!
//! Answers are kept as counts per version plus a list of exceptions, never as replicas times
//! policies. Folding one revision costs the number of versions in use plus the number of
//! replicas that rejected it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{
    digest::Version,
    policy::RevisionId,
    session::{AppliedSnapshot, RefusedSnapshot, Report},
    time::Millis,
};

mod changes;
mod fold;
mod replica;
#[cfg(test)]
mod tests;

use changes::Differences;
pub use changes::FoldChanges;
use fold::Group;
pub use fold::{Fold, LoadState};
pub use replica::{Connection, Node, Replica, ReplicaState, feature};

/// A replica's name: the pod's name in a cluster.
pub type Name = Arc<str>;

/// All replicas of one PolicyServer.
#[derive(Debug)]
pub struct Fleet {
    counted: CountedReplicas,
    grace: Duration,
    expected: BTreeSet<Name>,
    replicas: BTreeMap<Name, Replica>,
    /// Counted replicas by the version that they applied last.
    groups: HashMap<Option<Version>, Group>,
    /// Counted replicas that applied a version without these revisions.
    exceptions: BTreeMap<RevisionId, BTreeSet<Name>>,
    /// Counted replicas whose last answer refused a version completely.
    refusing: BTreeSet<Name>,
    /// Replicas in their grace period by its end, so that the passing of time costs nothing for
    /// connected ones.
    leaving: BTreeSet<(Millis, Name)>,
    changes: FoldChanges,
    differences: Differences,
}

/// Which replicas count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedReplicas {
    /// Expected ones, and every other one while it is connected and in its grace period.
    All,
    /// Expected ones. Others follow: they are reported and never counted.
    Expected,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet without replicas. One that disconnects counts for `grace`.
    pub fn new(counted: CountedReplicas, grace: Duration) -> Self {
        Self {
            counted,
            grace,
            expected: BTreeSet::new(),
            replicas: BTreeMap::new(),
            groups: HashMap::new(),
            exceptions: BTreeMap::new(),
            refusing: BTreeSet::new(),
            leaving: BTreeSet::new(),
            changes: FoldChanges::default(),
            differences: Differences::default(),
        }
    }

    /// Replaces the names of the expected replicas, which count whether or not they are connected.
    pub fn expect(&mut self, now: Millis, names: impl IntoIterator<Item = Name>) {
        let names: BTreeSet<Name> = names.into_iter().collect();
        let dropped: Vec<Name> = self.expected.difference(&names).cloned().collect();
        let added: Vec<Name> = names.difference(&self.expected).cloned().collect();
        if !(dropped.is_empty() && added.is_empty()) {
            self.changes.everything();
        }
        for name in dropped.iter().chain(&added) {
            self.unlist(name);
        }
        self.expected = names;
        for name in added {
            // After a fail-over a replica has not reconnected yet, although it serves: it gets
            // the time that one gets whose stream closed.
            if !self.replicas.contains_key(&name) {
                self.replicas.insert(name.clone(), Replica::default());
                let until = now + self.grace;
                self.set_connection(&name, Connection::Grace { until });
            }
            self.list(&name);
        }
        for name in dropped {
            // A replica that was expected and never connected is forgotten.
            let replica = self.replicas.get(&name);
            if replica.is_some_and(Replica::never_connected) {
                self.set_connection(&name, Connection::Gone);
            }
            if self.connection(&name) == Some(Connection::Gone) {
                self.replicas.remove(&name);
            }
            self.list(&name);
        }
        self.tick(now);
    }

    /// A stream opened. It supersedes an earlier stream of the same replica (R28).
    pub fn opened(&mut self, now: Millis, node: Node, identity: String, stream: u64) {
        let name: Name = node.id.as_str().into();
        if let Some(Connection::Open { stream: newer }) =
            self.replicas.get(&name).map(|r| r.connection)
            && newer > stream
        {
            return;
        }
        self.unlist(&name);
        self.replicas.entry(name.clone()).or_default();
        self.set_connection(&name, Connection::Open { stream });
        let replica = self.replicas.entry(name.clone()).or_default();
        // Another process of that name has not reported what it serves.
        if replica.node.instance_uid != node.instance_uid {
            replica.applied = None;
        }
        replica.before.clone_from(&replica.applied);
        replica.node = node;
        replica.identity = identity;
        replica.connected_since = Some(now);
        replica.last_seen = Some(now);
        replica.report = Report::default();
        self.list(&name);
        self.changed(&name);
    }

    /// A stream reported its state. Reports of a superseded stream are ignored (R28).
    pub fn reported(&mut self, now: Millis, name: &str, stream: u64, report: Report) {
        let Some((name, replica)) = self.replicas.get_key_value(name) else {
            return;
        };
        if replica.connection != (Connection::Open { stream }) {
            return;
        }
        let name = name.clone();
        // Before its first answer a stream does not know what the replica has applied.
        let answered = report.applied.is_some() || report.refused.is_some();
        let applied = match answered {
            true => Some(replica.after(&report)),
            false => replica.applied.clone(),
        };
        // Most reports are about a response that was sent, which changes no counts.
        let moves = replica.moves(applied.as_ref(), &report);
        self.note_report(&name, applied.as_ref(), &report);
        if moves {
            self.unlist(&name);
        }
        if let Some(replica) = self.replicas.get_mut(&name) {
            replica.last_seen = Some(now);
            replica.applied = applied;
            replica.report = report;
        }
        if moves {
            self.list(&name);
        }
    }

    /// A health check of a replica arrived.
    pub fn heard(&mut self, now: Millis, name: &str) {
        if let Some(replica) = self.replicas.get_mut(name) {
            replica.last_seen = Some(now);
        }
    }

    /// A stream closed. The end of a superseded stream is ignored (R28).
    pub fn closed(&mut self, now: Millis, name: &str, stream: u64) {
        if !self.is_open(name, stream) {
            return;
        }
        let name: Name = name.into();
        self.unlist(&name);
        let until = now + self.grace;
        self.set_connection(&name, Connection::Grace { until });
        if let Some(replica) = self.replicas.get_mut(&name) {
            replica.last_seen = Some(now);
            replica.report.outstanding = None;
        }
        self.list(&name);
        self.changed(&name);
    }

    /// Ends grace periods that are over; true if one ended.
    pub fn tick(&mut self, now: Millis) -> bool {
        let over = self.leaving.iter().take_while(|(until, _)| *until <= now);
        let ended: Vec<Name> = over.map(|(_, name)| name.clone()).collect();
        for name in &ended {
            self.changed(name);
            self.unlist(name);
            self.set_connection(name, Connection::Gone);
            if self.expected.contains(name) {
                self.list(name);
            } else {
                self.replicas.remove(name);
            }
        }
        !ended.is_empty()
    }

    /// Takes the changes of folds and replicas since the last call.
    pub fn take_changes(&mut self) -> FoldChanges {
        std::mem::take(&mut self.changes)
    }

    /// When the next grace period ends.
    pub fn deadline(&self) -> Option<Millis> {
        self.leaving.first().map(|(until, _)| *until)
    }

    /// All replicas in the order of their names, followers included.
    pub fn replicas(&self) -> impl Iterator<Item = (&Name, &Replica)> {
        self.replicas.iter()
    }

    /// One replica.
    pub fn replica(&self, name: &str) -> Option<&Replica> {
        self.replicas.get(name)
    }

    /// Expected replicas without an open stream, in the order of their names.
    pub fn missing(&self) -> impl Iterator<Item = &Name> {
        self.expected.iter().filter(|name| !self.is_connected(name))
    }

    /// Whether every counted replica has reported this feature; false without replicas.
    pub fn supports(&self, feature: &str) -> bool {
        let mut counted = self.counted_replicas().peekable();
        counted.peek().is_some() && counted.all(|r| r.node.supports(feature))
    }

    /// Whether some counted replica has connected and lacks this feature. Nothing is known of
    /// one that has not connected to this process yet.
    pub fn lacks(&self, feature: &str) -> bool {
        let mut counted = self.counted_replicas();
        counted.any(|r| !r.never_connected() && !r.node.supports(feature))
    }

    fn counted_replicas(&self) -> impl Iterator<Item = &Replica> {
        let counted = self.replicas.iter().filter(|(name, _)| self.counts(name));
        counted.map(|(_, replica)| replica)
    }

    /// Whether a replica that has not connected yet may count: nobody knows it before it does.
    pub fn counts_unknown(&self) -> bool {
        self.counted == CountedReplicas::All
    }

    /// Whether the replica counts.
    pub fn counts(&self, name: &str) -> bool {
        match self.counted {
            CountedReplicas::All => self.replicas.contains_key(name),
            CountedReplicas::Expected => self.expected.contains(name),
        }
    }

    fn connection(&self, name: &str) -> Option<Connection> {
        self.replicas.get(name).map(|r| r.connection)
    }

    fn is_open(&self, name: &str, stream: u64) -> bool {
        self.connection(name) == Some(Connection::Open { stream })
    }

    fn is_connected(&self, name: &str) -> bool {
        matches!(self.connection(name), Some(Connection::Open { .. }))
    }

    /// Changes the connection of a replica, which must not be listed in the counts meanwhile.
    fn set_connection(&mut self, name: &Name, connection: Connection) {
        let Some(replica) = self.replicas.get_mut(name) else {
            return;
        };
        let old = std::mem::replace(&mut replica.connection, connection);
        if let Connection::Grace { until } = old {
            self.leaving.remove(&(until, name.clone()));
        }
        if let Connection::Grace { until } = connection {
            self.leaving.insert((until, name.clone()));
        }
    }

    /// A replica connected or disconnected: the counters of every revision change.
    fn changed(&mut self, name: &Name) {
        self.changes.replicas = true;
        if self.counts(name) {
            self.changes.everything();
        }
    }

    /// Records which folds and rows a report changes. It compares the report with the previous
    /// one, so that it is called before the report is stored.
    fn note_report(&mut self, name: &Name, applied: Option<&AppliedSnapshot>, report: &Report) {
        let counts = self.counts(name);
        let Some(replica) = self.replicas.get(name) else {
            return;
        };
        let old = &replica.report;
        self.changes.replicas |=
            old.acked != report.acked || old.refused.is_some() != report.refused.is_some();
        if !counts {
            return;
        }
        match (replica.applied.as_ref(), applied) {
            (None, None) => {}
            (Some(old), Some(new)) => {
                let (from, to) = (&old.snapshot, &new.snapshot);
                self.differences.between(from, to, &mut self.changes);
                if old.rejected != new.rejected {
                    let rejected = old.rejected.iter().chain(&new.rejected);
                    self.changes.add(rejected.map(|r| &r.revision));
                }
            }
            // A first answer moves every revision from behind to applied.
            _ => self.changes.everything(),
        }
        // A replica that refuses a snapshot completely lacks what is new in it.
        let refusals = [old.refused_whole(), report.refused_whole()];
        if !same_refusal(refusals[0], refusals[1]) {
            for (refusal, applied) in refusals
                .into_iter()
                .zip([replica.applied.as_ref(), applied])
            {
                match (refusal, applied) {
                    (None, _) => {}
                    (Some(refused), Some(applied)) => {
                        let (from, to) = (&applied.snapshot, &refused.snapshot);
                        self.differences.between(from, to, &mut self.changes);
                    }
                    (Some(_), None) => self.changes.everything(),
                }
            }
        }
    }

    /// Adds a replica to the counts, if it counts.
    fn list(&mut self, name: &Name) {
        if !self.counts(name) {
            return;
        }
        let Some(replica) = self.replicas.get(name) else {
            return;
        };
        let applied = replica.applied.as_ref();
        let group = self
            .groups
            .entry(applied.map(|t| t.snapshot.version()))
            .or_default();
        if group.snapshot.is_none() {
            group.snapshot = applied.map(|t| t.snapshot.clone());
        }
        group.side(replica.connection).insert(name.clone());
        for rejection in applied.iter().flat_map(|t| &t.rejected) {
            let names = self
                .exceptions
                .entry(rejection.revision.clone())
                .or_default();
            names.insert(name.clone());
        }
        if replica.report.refuses_whole() {
            self.refusing.insert(name.clone());
        }
    }

    /// Removes a replica from the counts, before anything changes that they depend on.
    fn unlist(&mut self, name: &Name) {
        let Some(replica) = self.replicas.get(name) else {
            return;
        };
        let applied = replica.applied.as_ref();
        let version = applied.map(|t| t.snapshot.version());
        if let Some(group) = self.groups.get_mut(&version) {
            group.side(replica.connection).remove(name);
            if group.is_empty() {
                self.groups.remove(&version);
            }
        }
        for rejection in applied.iter().flat_map(|t| &t.rejected) {
            if let Some(names) = self.exceptions.get_mut(&rejection.revision) {
                names.remove(name);
                if names.is_empty() {
                    self.exceptions.remove(&rejection.revision);
                }
            }
        }
        self.refusing.remove(name);
    }
}

fn same_refusal(a: Option<&RefusedSnapshot>, b: Option<&RefusedSnapshot>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            a.failure == b.failure && a.snapshot.version() == b.snapshot.version()
        }
        _ => false,
    }
}
