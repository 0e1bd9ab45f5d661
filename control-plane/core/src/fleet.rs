//! The replicas of one PolicyServer, and the fold: what is true of a revision, given what
//! they said.
//!
//! Answers are kept as counts per version plus a list of exceptions, never as replicas
//! times policies: folding one revision costs the number of distinct versions in use plus
//! the number of replicas that refused it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{
    digest::Version,
    policy::RevisionId,
    session::{AppliedSnapshot, RefusedSnapshot, Rejection, Report},
    snapshot::Snapshot,
    time::Millis,
};

mod changes;
#[cfg(test)]
mod tests;

use changes::Differences;
pub use changes::FoldChanges;

/// A replica's name: the pod's name in a cluster.
pub type Name = Arc<str>;

/// All replicas of one PolicyServer.
#[derive(Debug)]
pub struct Fleet {
    counted: CountedReplicas,
    grace: Duration,
    expected: BTreeSet<Name>,
    replicas: BTreeMap<Name, Replica>,
    /// Counted replicas by the version that they took last.
    groups: HashMap<Option<Version>, Group>,
    /// Counted replicas that took a version without these revisions.
    exceptions: BTreeMap<RevisionId, BTreeSet<Name>>,
    /// Counted replicas whose last answer refused a version whole.
    refusing: BTreeSet<Name>,
    /// Replicas in their grace period by its end, so that time passing costs nothing for
    /// those that are there.
    leaving: BTreeSet<(Millis, Name)>,
    changes: FoldChanges,
    differences: Differences,
}

/// Whose answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedReplicas {
    /// Those expected, and everyone else while connected and in the grace period.
    All,
    /// Those expected; others only follow.
    Expected,
}

/// One replica.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    /// What it says of itself.
    pub node: Node,
    /// What its credential says.
    pub identity: String,
    /// Whether it is there.
    pub connection: Connection,
    /// When its stream opened.
    pub connected_since: Option<Millis>,
    /// When it was last heard of.
    pub last_seen: Option<Millis>,
    /// What its stream reported last.
    pub report: Report,
    /// The last set that it took, on this stream or an earlier one of the same process.
    pub applied: Option<AppliedSnapshot>,
    /// What it had applied when its stream opened.
    before: Option<AppliedSnapshot>,
}

/// What a replica says of itself: informative, apart from its name and instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The replica's name.
    pub id: String,
    /// Its PolicyServer.
    pub policy_server: String,
    /// Random per process start.
    pub instance_uid: String,
    /// Its build.
    pub evaluator_version: String,
    /// Fingerprint of its Wasm engine.
    pub engine: String,
    /// Module ABIs that it can run.
    pub abis: Vec<String>,
    /// Where it answers admission reviews.
    pub endpoint: String,
}

/// Whether a replica is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// This stream is open.
    Open {
        /// Its number; a later stream of the same replica has a higher one.
        stream: u64,
    },
    /// It disconnected recently and counts with its last answer, or it is expected and has not
    /// connected yet.
    Grace {
        /// When that ends.
        until: Millis,
    },
    /// It is expected and not there.
    #[default]
    Gone,
}

/// What is true of one revision. The counters add up to `wanted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    /// Replicas that count.
    pub wanted: u32,
    /// Connected and serving it.
    pub applied: u32,
    /// Connected and unable to load it.
    pub rejected: u32,
    /// Connected, not answered for it yet.
    pub behind: u32,
    /// Not connected, whatever they said last.
    pub disconnected: u32,
    /// Every counted replica's last answer has it, and none is gone: it may be pointed at.
    pub complete: bool,
    /// Some counted replica has answered and lacks it.
    pub degraded: bool,
}

/// How one replica stands to one revision.
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

/// Replicas by what they are doing about the current version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// Serves it whole.
    Current,
    /// Has not answered for it.
    Behind,
    /// Refused it or a part of it.
    Rejected,
    /// Has no open stream.
    Disconnected,
}

/// Ordered sets, because a status lists the first few replicas by name.
#[derive(Debug, Default)]
struct Group {
    snapshot: Option<Arc<Snapshot>>,
    open: BTreeSet<Name>,
    grace: BTreeSet<Name>,
    gone: BTreeSet<Name>,
}

// === impl Fleet ===

impl Fleet {
    /// No replicas yet.
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

    /// Says which replicas there must be, whether or not they are connected.
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

    /// A stream opened; whatever stream the replica had before is superseded.
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
        // Another process under the name has not said what it serves.
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

    /// A stream said something; a superseded stream's words are void.
    pub fn reported(&mut self, now: Millis, name: &str, stream: u64, report: Report) {
        let Some((name, replica)) = self.replicas.get_key_value(name) else {
            return;
        };
        if replica.connection != (Connection::Open { stream }) {
            return;
        }
        let name = name.clone();
        // Before its first answer a stream has nothing to say of what was applied.
        let answered = report.applied.is_some() || report.refused.is_some();
        let applied = match answered {
            true => Some(replica.after(&report)),
            false => replica.applied.clone(),
        };
        // Most reports say only that something was sent: then the counts stay as they are.
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

    /// A replica was heard of outside its stream.
    pub fn heard(&mut self, now: Millis, name: &str) {
        if let Some(replica) = self.replicas.get_mut(name) {
            replica.last_seen = Some(now);
        }
    }

    /// A stream closed; a superseded stream's end is void.
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

    /// Ends grace periods that are over; true where one ended.
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

    /// How replicas stand to `revision`, those that lack it first; at most `limit`.
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

    /// Whether the replica counts.
    pub fn counts(&self, name: &str) -> bool {
        match self.counted {
            CountedReplicas::All => self.replicas.contains_key(name),
            CountedReplicas::Expected => self.expected.contains(name),
        }
    }

    /// How many connected replicas have loaded this version whole.
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

    /// Whether everyone who counts is connected and has loaded this version whole.
    pub fn all_at(&self, version: Version) -> bool {
        let at = |(v, g): (&Option<Version>, &Group)| {
            *v == Some(version) && g.grace.is_empty() && g.gone.is_empty()
        };
        !self.groups.is_empty()
            && self.groups.iter().all(at)
            && self.refusing.is_empty()
            && self.exceptions.is_empty()
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

    /// Changes whether a replica is there, and when that ends; it must be out of the counts.
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

    /// Whether the replica's last answer refused whole a version with this revision, which
    /// it does not have from before.
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

    /// A replica connected or disconnected: the counters of every revision change.
    fn changed(&mut self, name: &Name) {
        self.changes.replicas = true;
        if self.counts(name) {
            self.changes.everything();
        }
    }

    /// Notes which folds and rows a report changes. It is called before the report is taken
    /// over.
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
        // Who refuses a snapshot as a whole lacks what is new in it.
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

    /// Enters a counted replica into the counts.
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

    /// Takes a replica out of the counts, before it changes.
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

// === impl Replica ===

impl Replica {
    /// Whether no stream of it was ever seen.
    fn never_connected(&self) -> bool {
        self.connected_since.is_none()
    }

    /// What the replica has after an answer. One that took nothing, or took it back, leaves
    /// what was before its stream; where that is nothing, it has answered and has nothing.
    fn after(&self, report: &Report) -> AppliedSnapshot {
        let applied = report.applied.as_ref().or(self.before.as_ref());
        applied.cloned().unwrap_or_else(|| AppliedSnapshot {
            snapshot: Arc::new(Snapshot::empty()),
            rejected: Vec::new(),
        })
    }

    /// Whether this report, after which it has `applied`, changes where it is counted.
    fn moves(&self, applied: Option<&AppliedSnapshot>, report: &Report) -> bool {
        let stays = match (&self.applied, applied) {
            (None, None) => true,
            (Some(old), Some(new)) => {
                Arc::ptr_eq(&old.snapshot, &new.snapshot)
                    && old.rejected.is_empty()
                    && new.rejected.is_empty()
            }
            _ => false,
        };
        !stays || self.report.refuses_whole() != report.refuses_whole()
    }

    /// What the replica is doing about the `current` version.
    pub fn state(&self, current: Version) -> ReplicaState {
        match self.connection {
            Connection::Grace { .. } | Connection::Gone => ReplicaState::Disconnected,
            Connection::Open { .. } if self.report.refused.is_some() => ReplicaState::Rejected,
            Connection::Open { .. } if self.report.acked == Some(current) => ReplicaState::Current,
            Connection::Open { .. } => ReplicaState::Behind,
        }
    }
}

// === impl ReplicaState ===

impl ReplicaState {
    /// Every state.
    pub const ALL: [ReplicaState; 4] = [
        ReplicaState::Current,
        ReplicaState::Behind,
        ReplicaState::Rejected,
        ReplicaState::Disconnected,
    ];

    /// For labels.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaState::Current => "current",
            ReplicaState::Behind => "behind",
            ReplicaState::Rejected => "rejected",
            ReplicaState::Disconnected => "disconnected",
        }
    }
}

// === impl Group ===

impl Group {
    fn has(&self, revision: &RevisionId) -> bool {
        let snapshot = self.snapshot.as_ref();
        snapshot.is_some_and(|s| s.contains(revision.as_str()))
    }

    fn side(&mut self, connection: Connection) -> &mut BTreeSet<Name> {
        match connection {
            Connection::Open { .. } => &mut self.open,
            Connection::Grace { .. } => &mut self.grace,
            Connection::Gone => &mut self.gone,
        }
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.grace.is_empty() && self.gone.is_empty()
    }
}

/// Appends up to `limit` rows, in the order of their names. Of each set only as many names
/// are looked at as there is room for.
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

fn same_refusal(a: Option<&RefusedSnapshot>, b: Option<&RefusedSnapshot>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            a.failure == b.failure && a.snapshot.version() == b.snapshot.version()
        }
        _ => false,
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
