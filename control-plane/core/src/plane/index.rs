//! Indexes over rollouts, and the policies and servers that changed: one event must cost
//! what it changes, however many policies there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    rollout::{Acceptance, PolicyId, Rollout},
    time::Millis,
};

/// Rollouts by what they wait for.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_server: BTreeMap<Arc<str>, BTreeSet<PolicyId>>,
    /// Rollouts by PolicyServer that wait for the acknowledgement of a candidate or of the last good revision.
    candidates: BTreeMap<Arc<str>, BTreeSet<PolicyId>>,
    /// Rollouts whose newest generation is neither accepted nor refused.
    pending: BTreeSet<PolicyId>,
    deadlines: BTreeSet<(Millis, PolicyId)>,
}

/// The keys under which one rollout is indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    candidate: bool,
    pending: bool,
    deadline: Option<Millis>,
}

/// What changed, before it is asked for.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Policies whose status may have changed.
    policies: BTreeSet<PolicyId>,
    /// Servers whose own status may have changed.
    servers: BTreeSet<Arc<str>>,
    /// Servers all of whose policies are dirty: marking them is O(1), because a replica
    /// that connects changes the counters of every policy.
    whole_servers: BTreeSet<Arc<str>>,
    /// Rollouts to be settled.
    unsettled: BTreeSet<PolicyId>,
}

// === impl Index ===

impl Index {
    pub(super) fn insert(&mut self, server: &Arc<str>, id: &PolicyId) {
        let own = self.by_server.entry(server.clone()).or_default();
        own.insert(id.clone());
    }

    pub(super) fn remove(&mut self, server: &Arc<str>, id: &PolicyId, keys: Keys) {
        self.update(server, id, keys, Keys::default());
        remove_from(&mut self.by_server, server, id);
    }

    /// Moves a rollout from its old keys to its new ones.
    pub(super) fn update(&mut self, server: &Arc<str>, id: &PolicyId, old: Keys, new: Keys) {
        match (old.candidate, new.candidate) {
            (false, true) => {
                let own = self.candidates.entry(server.clone()).or_default();
                own.insert(id.clone());
            }
            (true, false) => remove_from(&mut self.candidates, server, id),
            _ => {}
        }
        match (old.pending, new.pending) {
            (false, true) => drop(self.pending.insert(id.clone())),
            (true, false) => drop(self.pending.remove(id)),
            _ => {}
        }
        if old.deadline != new.deadline {
            if let Some(at) = old.deadline {
                self.deadlines.remove(&(at, id.clone()));
            }
            if let Some(at) = new.deadline {
                self.deadlines.insert((at, id.clone()));
            }
        }
    }

    /// Servers that policies name, whether or not they exist.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_server.keys()
    }

    pub(super) fn of_server(&self, server: &str) -> impl Iterator<Item = &PolicyId> {
        self.by_server.get(server).into_iter().flatten()
    }

    pub(super) fn candidates_of(&self, server: &str) -> impl Iterator<Item = &PolicyId> {
        self.candidates.get(server).into_iter().flatten()
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = &PolicyId> {
        self.pending.iter()
    }

    pub(super) fn deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn due(&self, now: Millis) -> impl Iterator<Item = &PolicyId> {
        let due = self.deadlines.iter().take_while(move |(at, _)| *at <= now);
        due.map(|(_, id)| id)
    }
}

// === impl Keys ===

impl Keys {
    pub(super) fn of(rollout: &Rollout) -> Self {
        Self {
            candidate: (rollout.candidate().is_some() || rollout.last_good().is_some())
                && !rollout.is_deleting(),
            pending: *rollout.acceptance() == Acceptance::Pending && !rollout.is_deleting(),
            deadline: rollout.deadline(),
        }
    }

    pub(super) fn has_candidate(self) -> bool {
        self.candidate
    }
}

// === impl Marks ===

impl Marks {
    /// The policy's status may have changed.
    pub(super) fn policy(&mut self, id: &PolicyId) {
        self.policies.insert(id.clone());
    }

    /// The server's own status may have changed.
    pub(super) fn server(&mut self, server: &Arc<str>) {
        self.servers.insert(server.clone());
    }

    /// The status of every policy of the server may have changed.
    pub(super) fn whole_server(&mut self, server: &Arc<str>) {
        self.whole_servers.insert(server.clone());
    }

    /// The rollout has to be settled.
    pub(super) fn unsettled(&mut self, id: &PolicyId) {
        self.unsettled.insert(id.clone());
    }

    pub(super) fn take_unsettled(&mut self) -> BTreeSet<PolicyId> {
        std::mem::take(&mut self.unsettled)
    }

    pub(super) fn take_dirty(&mut self, index: &Index) -> (BTreeSet<PolicyId>, BTreeSet<Arc<str>>) {
        let mut policies = std::mem::take(&mut self.policies);
        for server in std::mem::take(&mut self.whole_servers) {
            policies.extend(index.of_server(&server).cloned());
        }
        (policies, std::mem::take(&mut self.servers))
    }
}

fn remove_from(map: &mut BTreeMap<Arc<str>, BTreeSet<PolicyId>>, server: &str, id: &PolicyId) {
    if let Some(own) = map.get_mut(server) {
        own.remove(id);
        if own.is_empty() {
            map.remove(server);
        }
    }
}
