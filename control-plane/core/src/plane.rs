//! The whole control plane as one pure state machine: policies, servers and reports of
//! replicas go in; snapshots to publish, webhooks to flip and revisions to store come out.
//!
//! [`Plane::apply`] takes one event, [`Plane::settle`] returns what follows. Many events may
//! be applied before one settling. The cost of both grows with what changed, not with the
//! number of policies: rollouts are settled when an event, a deadline or the fold of their
//! candidate concerns them, and [`Plane::take_dirty`] names the statuses that may differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    fleet::{CountedReplicas, Fleet, Fold},
    policy::{PolicyKey, RevisionId},
    rollout::{self, PolicyId, Rollout, StoredRevisions, Timing},
    status::PolicyStatus,
    time::Millis,
};

mod event;
mod index;
mod server;
#[cfg(test)]
mod tests;

pub use event::{Effect, Event, StreamEvent};
pub use server::Server;

use index::{Index, Keys, Marks};
use server::Placement;

/// Everything that a control plane knows.
#[derive(Debug)]
pub struct Plane {
    grace: Duration,
    synced: bool,
    /// When replicas that served restored policies have had the time to reconnect.
    startup_ends: Option<Millis>,
    starting_up: bool,
    servers: BTreeMap<Arc<str>, Server>,
    policies: BTreeMap<PolicyId, Entry>,
    index: Index,
    marks: Marks,
}

#[derive(Debug)]
struct Entry {
    server: Arc<str>,
    rollout: Rollout,
    keys: Keys,
    /// What the server's snapshot holds of the policy.
    placement: Placement,
}

// === impl Plane ===

impl Plane {
    /// A plane without objects. A replica that disconnects counts for `grace`.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            synced: false,
            startup_ends: None,
            starting_up: false,
            servers: BTreeMap::new(),
            policies: BTreeMap::new(),
            index: Index::default(),
            marks: Marks::default(),
        }
    }

    /// Takes in what happened.
    pub fn apply(&mut self, now: Millis, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::ServerAdded { server, counted } => self.add_server(server, counted),
            Event::ServerRemoved(server) => self.remove_server(&server),
            Event::ReplicasExpected { server, replicas } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.expect(now, replicas);
                }
            }
            Event::ServerWithheld { server, withheld } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.withheld = withheld;
                }
            }
            Event::Synced => self.synced = true,
            Event::PolicyObserved {
                id,
                server,
                generation,
                timing,
                stored,
            } => self.observed(now, id, server, generation, timing, stored, out),
            Event::Rollout(id, input) => {
                self.marks.policy(&id);
                self.step(now, &id, input, out);
            }
            Event::PolicyForgotten(id) => self.forget(&id),
            Event::Stream(event) => self.stream(now, event, out),
        }
    }

    /// Returns what follows from everything applied so far and from the time.
    pub fn settle(&mut self, now: Millis, out: &mut Vec<Effect>) {
        self.decide(now, out);
        self.publish(now, out);
    }

    /// The first half of settling: what has to be done for policies. A caller that does such
    /// things at once calls it until nothing is left, so that no outdated snapshot is
    /// published.
    pub fn decide(&mut self, now: Millis, out: &mut Vec<Effect>) {
        for server in self.servers.values_mut() {
            server.fleet.tick(now);
        }
        self.set_starting_up(self.startup_ends.is_some_and(|at| now < at));
        self.collect_fold_changes();
        for id in self.index.due(now) {
            self.marks.unsettled(id);
        }
        for id in self.marks.take_unsettled() {
            self.settle_policy(now, &id, out);
        }
    }

    /// The second half: the snapshots to publish.
    pub fn publish(&mut self, now: Millis, out: &mut Vec<Effect>) {
        if !self.synced {
            return;
        }
        for (name, server) in &mut self.servers {
            if server.publish(now, name, out) {
                self.marks.server(name);
            }
        }
    }

    /// When time alone changes something next.
    pub fn deadline(&self) -> Option<Millis> {
        let servers = self.servers.values().filter_map(Server::deadline);
        let startup = self.startup_ends.filter(|_| self.starting_up);
        servers.chain(self.index.deadline()).chain(startup).min()
    }

    /// Takes the policies and servers whose status may have changed since the last call:
    /// those that an event concerned, whose rollout moved on, or whose counters changed.
    /// Heartbeats change no status.
    ///
    /// A policy or server that no longer exists may be among them.
    pub fn take_dirty(&mut self) -> (BTreeSet<PolicyId>, BTreeSet<Arc<str>>) {
        self.collect_fold_changes();
        self.marks.take_dirty(&self.index)
    }

    /// Whether snapshots are published.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// One server.
    pub fn server(&self, name: &str) -> Option<&Server> {
        self.servers.get(name)
    }

    /// All servers.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<str>, &Server)> {
        self.servers.iter()
    }

    /// The server of a policy.
    pub fn server_of(&self, id: &PolicyId) -> Option<&Arc<str>> {
        self.policies.get(id).map(|entry| &entry.server)
    }

    /// All policies with their servers, including those that are being deleted.
    pub fn rollouts(&self) -> impl Iterator<Item = (&Arc<str>, &Rollout)> {
        self.policies.values().map(|e| (&e.server, &e.rollout))
    }

    /// The policies of one server, including those that are being deleted. The server need
    /// not exist.
    pub fn rollouts_of_server(&self, server: &str) -> impl Iterator<Item = &Rollout> {
        let ids = self.index.of_server(server);
        ids.filter_map(|id| self.rollout_of(id))
    }

    /// Policies whose newest generation is neither accepted nor refused yet.
    pub fn pending_rollouts(&self) -> impl Iterator<Item = (&Arc<str>, &Rollout)> {
        let entries = self.index.pending().filter_map(|id| self.policies.get(id));
        entries.map(|e| (&e.server, &e.rollout))
    }

    /// All policies of this name: at most one that lives, and those that are being deleted.
    pub fn rollouts_of_key<'a>(
        &'a self,
        key: &PolicyKey,
    ) -> impl Iterator<Item = &'a Rollout> + use<'a> {
        ids_of_key(&self.policies, key).map(|(_, entry)| &entry.rollout)
    }

    /// The policy of this name that is not being deleted.
    pub fn rollout(&self, key: &PolicyKey) -> Option<&Rollout> {
        self.rollouts_of_key(key).find(|r| !r.is_deleting())
    }

    /// The policy with this name and uid.
    pub fn rollout_of(&self, id: &PolicyId) -> Option<&Rollout> {
        self.policies.get(id).map(|e| &e.rollout)
    }

    /// The status of one policy.
    pub fn status(&self, id: &PolicyId) -> Option<PolicyStatus> {
        let entry = self.policies.get(id)?;
        let nobody = Fleet::new(CountedReplicas::Expected, Duration::ZERO);
        let fleet = self.servers.get(&entry.server).map(|s| &s.fleet);
        let fleet = fleet.unwrap_or(&nobody);
        Some(PolicyStatus::of(&entry.rollout, fleet, self.starting_up))
    }

    fn add_server(&mut self, name: Arc<str>, counted: CountedReplicas) {
        if self.servers.contains_key(&name) {
            return;
        }
        let mut server = Server::new(counted, self.grace);
        for id in self.index.of_server(&name) {
            if let Some(entry) = self.policies.get(id) {
                server.place(&Placement::new(), &entry.placement);
            }
        }
        self.server_changed(&name);
        self.servers.insert(name, server);
    }

    fn remove_server(&mut self, name: &Arc<str>) {
        if self.servers.remove(name).is_some() {
            self.server_changed(name);
        }
    }

    /// A server appeared or disappeared, and with it the fold of its policies.
    fn server_changed(&mut self, name: &Arc<str>) {
        self.marks.server(name);
        self.marks.whole_server(name);
        for id in self.index.candidates_of(name) {
            self.marks.unsettled(id);
        }
    }

    fn stream(&mut self, now: Millis, event: StreamEvent, out: &mut Vec<Effect>) {
        match event {
            StreamEvent::Opened {
                node,
                identity,
                stream,
            } => {
                if let Some(server) = self.servers.get_mut(node.policy_server.as_str()) {
                    server.fleet.opened(now, node, identity, stream);
                }
            }
            StreamEvent::Reported {
                server,
                replica,
                stream,
                report,
            } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.reported(now, &replica, stream, report);
                }
            }
            StreamEvent::Closed {
                server,
                replica,
                stream,
            } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.closed(now, &replica, stream);
                }
            }
            StreamEvent::Heartbeat { server, replica } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.heard(now, &replica);
                }
            }
            StreamEvent::RetiredRequests { path, requests, .. } => {
                if requests > 0 {
                    self.retired_requests(now, path, out);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn observed(
        &mut self,
        now: Millis,
        id: PolicyId,
        server: Arc<str>,
        generation: i64,
        timing: Timing,
        stored: StoredRevisions,
        out: &mut Vec<Effect>,
    ) {
        self.marks.policy(&id);
        if self.policies.contains_key(&id) {
            let input = rollout::Input::Observed { generation, timing };
            return self.step(now, &id, input, out);
        }
        if stored.active.is_some() {
            let ends = *self.startup_ends.get_or_insert(now + self.grace);
            self.set_starting_up(now < ends);
        }
        let rollout = Rollout::new(id.clone(), now, generation, timing).restore(now, stored);
        self.index.insert(&server, &id);
        let entry = Entry {
            server,
            rollout,
            keys: Keys::default(),
            placement: Placement::new(),
        };
        self.policies.insert(id.clone(), entry);
        self.moved(&id);
    }

    fn step(&mut self, now: Millis, id: &PolicyId, input: rollout::Input, out: &mut Vec<Effect>) {
        let Some(entry) = self.policies.get_mut(id) else {
            return;
        };
        let mut outputs = Vec::new();
        entry.rollout.step(now, input, &mut outputs);
        out.extend(outputs.into_iter().map(|o| Effect::Rollout(id.clone(), o)));
        self.moved(id);
    }

    /// Requests prolong a drain. They are in no status, so that nothing becomes dirty.
    fn retired_requests(&mut self, now: Millis, path: RevisionId, out: &mut Vec<Effect>) {
        let Some(key) = path.policy() else { return };
        let owner = ids_of_key(&self.policies, key)
            .find(|(_, entry)| entry.placement.contains_key(&path))
            .map(|(id, _)| id.clone());
        if let Some(id) = owner {
            self.step(now, &id, rollout::Input::Request(path), out);
        }
    }

    fn forget(&mut self, id: &PolicyId) {
        self.marks.policy(id);
        if let Some(entry) = self.policies.remove(id) {
            self.index.remove(&entry.server, id, entry.keys);
            if let Some(server) = self.servers.get_mut(&entry.server) {
                server.place(&entry.placement, &Placement::new());
            }
        }
    }

    fn settle_policy(&mut self, now: Millis, id: &PolicyId, out: &mut Vec<Effect>) {
        let Some(entry) = self.policies.get_mut(id) else {
            return;
        };
        let fleet = self.servers.get(&entry.server).map(|s| &s.fleet);
        let fold = |r: &RevisionId| fleet.map_or_else(Fold::default, |f| f.fold(r));
        let stalled = entry.rollout.is_stalled();
        let mut outputs = Vec::new();
        entry.rollout.settle(now, fold, &mut outputs);
        if !outputs.is_empty() || entry.rollout.is_stalled() != stalled {
            self.marks.policy(id);
        }
        out.extend(outputs.into_iter().map(|o| Effect::Rollout(id.clone(), o)));
        if entry.rollout.is_gone() {
            return self.forget(id);
        }
        self.reindex(id);
    }

    /// A rollout took an input: what follows is decided at the next settling.
    fn moved(&mut self, id: &PolicyId) {
        self.marks.unsettled(id);
        self.reindex(id);
    }

    /// Brings the indexes and the server's snapshot in line with the rollout.
    fn reindex(&mut self, id: &PolicyId) {
        let Some(entry) = self.policies.get_mut(id) else {
            return;
        };
        let keys = Keys::of(&entry.rollout);
        if keys != entry.keys {
            self.index.update(&entry.server, id, entry.keys, keys);
            entry.keys = keys;
        }
        let placement: Placement = entry
            .rollout
            .entries()
            .map(|(policy, state)| (policy.revision.clone(), (policy.clone(), state)))
            .collect();
        if let Some(server) = self.servers.get_mut(&entry.server) {
            server.place(&entry.placement, &placement);
        }
        entry.placement = placement;
    }

    fn set_starting_up(&mut self, starting_up: bool) {
        if self.starting_up != starting_up {
            self.starting_up = starting_up;
            for name in self.index.servers() {
                self.marks.whole_server(name);
            }
        }
    }

    /// Marks the policies whose counters changed, and settles their candidates.
    fn collect_fold_changes(&mut self) {
        for (name, server) in &mut self.servers {
            let changes = server.fleet.take_changes();
            if changes.replicas {
                self.marks.server(name);
            }
            if changes.all {
                self.marks.whole_server(name);
                for id in self.index.candidates_of(name) {
                    self.marks.unsettled(id);
                }
            }
            for key in changes.revisions.iter().filter_map(RevisionId::policy) {
                for (id, entry) in ids_of_key(&self.policies, key) {
                    self.marks.policy(id);
                    if entry.keys.has_candidate() {
                        self.marks.unsettled(id);
                    }
                }
            }
        }
    }
}

/// Policies of one name, in the order of their uids.
fn ids_of_key<'a>(
    policies: &'a BTreeMap<PolicyId, Entry>,
    key: &PolicyKey,
) -> impl Iterator<Item = (&'a PolicyId, &'a Entry)> + use<'a> {
    let key = key.clone();
    let first = PolicyId {
        key: key.clone(),
        uid: "".into(),
    };
    let from_first = policies.range(first..);
    from_first.take_while(move |(id, _)| id.key == key)
}
