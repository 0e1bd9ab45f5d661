//! The whole control plane as one pure machine: policies, servers and their replicas in;
//! snapshots to publish, webhooks to flip and revisions to store out.
//!
//! [`Plane::apply`] takes in what happened, [`Plane::settle`] says what follows; many
//! events may be applied before one settling.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    coalesce::Coalescer,
    digest::Version,
    fleet::{Counting, Fleet, Fold, Name, Node},
    policy::{Policy, PolicyKey, RevisionId},
    rollout::{self, PolicyId, Refusal, Rollout, Stored, Timing},
    session::Report,
    snapshot::Snapshot,
    status::PolicyStatus,
    time::Millis,
};

#[cfg(test)]
mod tests;

/// Everything that a control plane knows.
#[derive(Debug)]
pub struct Plane {
    grace: Duration,
    synced: bool,
    /// When replicas of what was restored had the time to come back.
    settled_at: Option<Millis>,
    settling: bool,
    servers: BTreeMap<Arc<str>, Server>,
    policies: BTreeMap<PolicyId, Entry>,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// There is a PolicyServer.
    ServerAdded {
        /// Its name.
        server: Arc<str>,
        /// Whose answers count.
        counting: Counting,
    },
    /// A PolicyServer is gone.
    ServerRemoved(Arc<str>),
    /// These replicas must be there.
    Expected {
        /// The server.
        server: Arc<str>,
        /// Its replicas.
        replicas: Vec<Name>,
    },
    /// All objects were read once: absence means something from now on.
    Synced,
    /// A policy and its newest generation.
    Observed {
        /// The policy.
        id: PolicyId,
        /// Its server.
        server: Arc<str>,
        /// Its generation.
        generation: i64,
        /// What its spec says of times.
        timing: Timing,
        /// What is stored of it; looked at only where the policy is new.
        stored: Stored,
    },
    /// Something else happened to a policy.
    Policy(PolicyId, rollout::Input),
    /// Nothing points at the policy's revisions any more and nobody is to hold them; what is
    /// observed of it next starts anew.
    Forgotten(PolicyId),
    /// A stream opened.
    Opened {
        /// Who.
        node: Node,
        /// What its credential says.
        identity: String,
        /// The stream's number.
        stream: u64,
    },
    /// A stream said something.
    Reported {
        /// The server.
        server: Arc<str>,
        /// The replica.
        replica: Name,
        /// The stream's number.
        stream: u64,
        /// What.
        report: Report,
    },
    /// A stream closed.
    Closed {
        /// The server.
        server: Arc<str>,
        /// The replica.
        replica: Name,
        /// The stream's number.
        stream: u64,
    },
    /// A replica was heard of.
    Heard {
        /// The server.
        server: Arc<str>,
        /// The replica.
        replica: Name,
    },
    /// Requests came in on a retired path.
    Requests {
        /// The path, which is a revision's name.
        path: RevisionId,
    },
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Give this snapshot to a server's streams.
    Publish {
        /// The server.
        server: Arc<str>,
        /// The snapshot.
        snapshot: Arc<Snapshot>,
    },
    /// Something to be done for a policy.
    Policy(PolicyId, rollout::Output),
    /// The last replica acknowledged what was published so long ago.
    Applied {
        /// The server.
        server: Arc<str>,
        /// How long it took.
        took: Duration,
    },
}

/// One PolicyServer.
#[derive(Debug)]
pub struct Server {
    /// Its replicas.
    pub fleet: Fleet,
    coalescer: Coalescer,
    current: Arc<Snapshot>,
    published: Option<Arc<Snapshot>>,
    /// The last version that the coalescer was told of.
    noted: Option<Version>,
    /// When the version that is not applied everywhere yet went out.
    waiting_since: Option<Millis>,
    /// Revisions or routes may have changed.
    dirty: bool,
}

#[derive(Debug)]
struct Entry {
    server: Arc<str>,
    rollout: Rollout,
}

// === impl Plane ===

impl Plane {
    /// Nothing is known yet; `grace` is how long a replica that left still counts.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            synced: false,
            settled_at: None,
            settling: false,
            servers: BTreeMap::new(),
            policies: BTreeMap::new(),
        }
    }

    /// Takes in what happened.
    pub fn apply(&mut self, now: Millis, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::ServerAdded { server, counting } => {
                let grace = self.grace;
                self.servers
                    .entry(server)
                    .or_insert_with(|| Server::new(counting, grace));
            }
            Event::ServerRemoved(server) => {
                self.servers.remove(&server);
            }
            Event::Expected { server, replicas } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.expect(now, replicas);
                }
            }
            Event::Synced => self.synced = true,
            Event::Observed {
                id,
                server,
                generation,
                timing,
                stored,
            } => self.observed(now, id, server, generation, timing, stored, out),
            Event::Policy(id, input) => self.step(now, &id, input, out),
            Event::Forgotten(id) => {
                if let Some(entry) = self.policies.remove(&id) {
                    self.touch(&entry.server);
                }
            }
            Event::Opened {
                node,
                identity,
                stream,
            } => {
                if let Some(server) = self.servers.get_mut(node.policy_server.as_str()) {
                    server.fleet.opened(now, node, identity, stream);
                }
            }
            Event::Reported {
                server,
                replica,
                stream,
                report,
            } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.reported(now, &replica, stream, report);
                }
            }
            Event::Closed {
                server,
                replica,
                stream,
            } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.closed(now, &replica, stream);
                }
            }
            Event::Heard { server, replica } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.fleet.heard(now, &replica);
                }
            }
            Event::Requests { path } => self.requests(now, &path, out),
        }
    }

    /// Says what follows from everything applied so far and from the time.
    pub fn settle(&mut self, now: Millis, out: &mut Vec<Effect>) {
        self.decide(now, out);
        self.publish(now, out);
    }

    /// The first half of settling: what is to be done for policies. Whoever does such
    /// things at once asks again until there is nothing left, so that no snapshot goes out
    /// that is outdated already.
    pub fn decide(&mut self, now: Millis, out: &mut Vec<Effect>) {
        for server in self.servers.values_mut() {
            server.fleet.tick(now);
        }
        self.settling = self.settled_at.is_some_and(|at| now < at);
        self.settle_policies(now, out);
    }

    /// The second half: what goes out to streams.
    pub fn publish(&mut self, now: Millis, out: &mut Vec<Effect>) {
        self.rebuild();
        if self.synced {
            for (name, server) in &mut self.servers {
                server.publish(now, name, out);
            }
        }
    }

    /// When time alone changes something next.
    pub fn deadline(&self) -> Option<Millis> {
        let policies = self.policies.values().filter_map(|e| e.rollout.deadline());
        let servers = self.servers.values();
        let servers = servers.flat_map(|s| [s.fleet.deadline(), s.coalescer.deadline()]);
        let settled = self.settled_at.filter(|_| self.settling);
        policies.chain(servers.flatten()).chain(settled).min()
    }

    /// Whether all objects were read once.
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

    /// The policies, with the servers that they are for; those being deleted included.
    pub fn rollouts(&self) -> impl Iterator<Item = (&Arc<str>, &Rollout)> {
        self.policies.values().map(|e| (&e.server, &e.rollout))
    }

    /// The living policy of this name.
    pub fn rollout(&self, key: &PolicyKey) -> Option<&Rollout> {
        let first = PolicyId {
            key: key.clone(),
            uid: "".into(),
        };
        let lives = self.policies.range(first..).map(|(_, e)| &e.rollout);
        let mut lives = lives.take_while(|r| r.id().key == *key);
        lives.find(|r| !r.is_ending())
    }

    /// One life of a policy.
    pub fn rollout_of(&self, id: &PolicyId) -> Option<&Rollout> {
        self.policies.get(id).map(|e| &e.rollout)
    }

    /// The status of one life of a policy.
    pub fn status(&self, id: &PolicyId) -> Option<PolicyStatus> {
        let entry = self.policies.get(id)?;
        let nobody = Fleet::new(Counting::Expected, Duration::ZERO);
        let fleet = self.servers.get(&entry.server).map(|s| &s.fleet);
        let fleet = fleet.unwrap_or(&nobody);
        Some(PolicyStatus::of(&entry.rollout, fleet, self.settling))
    }

    #[allow(clippy::too_many_arguments)]
    fn observed(
        &mut self,
        now: Millis,
        id: PolicyId,
        server: Arc<str>,
        generation: i64,
        timing: Timing,
        stored: Stored,
        out: &mut Vec<Effect>,
    ) {
        if self.policies.contains_key(&id) {
            let input = rollout::Input::Observed { generation, timing };
            return self.step(now, &id, input, out);
        }
        if stored.active.is_some() {
            self.settling = true;
            self.settled_at.get_or_insert(now + self.grace);
        }
        let rollout = Rollout::new(id.clone(), now, generation, timing).restore(now, stored);
        self.touch(&server);
        self.policies.insert(id, Entry { server, rollout });
    }

    fn step(&mut self, now: Millis, id: &PolicyId, input: rollout::Input, out: &mut Vec<Effect>) {
        let Some(entry) = self.policies.get_mut(id) else {
            return;
        };
        let mut outputs = Vec::new();
        entry.rollout.step(now, input, &mut outputs);
        out.extend(outputs.into_iter().map(|o| Effect::Policy(id.clone(), o)));
        let server = entry.server.clone();
        self.touch(&server);
    }

    fn requests(&mut self, now: Millis, path: &RevisionId, out: &mut Vec<Effect>) {
        let owner = self.policies.values().find(|e| {
            let mut entries = e.rollout.entries();
            entries.any(|(policy, _)| policy.revision == *path)
        });
        if let Some(id) = owner.map(|e| e.rollout.id().clone()) {
            self.step(now, &id, rollout::Input::Request(path.clone()), out);
        }
    }

    fn settle_policies(&mut self, now: Millis, out: &mut Vec<Effect>) {
        let mut gone: BTreeSet<PolicyId> = BTreeSet::new();
        for (id, entry) in &mut self.policies {
            let server = self.servers.get_mut(&entry.server);
            let fleet = server.as_ref().map(|s| &s.fleet);
            let fold = |r: &RevisionId| fleet.map_or_else(Fold::default, |f| f.fold(r));
            let mut outputs = Vec::new();
            entry.rollout.settle(now, fold, &mut outputs);
            if entry.rollout.is_gone() {
                gone.insert(id.clone());
                if let Some(server) = server {
                    server.dirty = true;
                }
            }
            out.extend(outputs.into_iter().map(|o| Effect::Policy(id.clone(), o)));
        }
        self.policies.retain(|id, _| !gone.contains(id));
    }

    /// Puts snapshots together again where something may have changed.
    fn rebuild(&mut self) {
        for (name, server) in self.servers.iter_mut().filter(|(_, s)| s.dirty) {
            let own = self.policies.values().filter(|e| e.server == *name);
            let own: Vec<&Rollout> = own.map(|e| &e.rollout).collect();
            let policies = own.iter().flat_map(|r| r.entries().map(|(p, _)| p.clone()));
            let routes = own.iter().flat_map(|r| r.routes().map(Arc::new));
            let snapshot = Snapshot::new(policies, routes);
            if snapshot.version() != server.current.version() {
                server.current = Arc::new(snapshot);
            }
            server.dirty = false;
        }
    }

    fn touch(&mut self, server: &str) {
        if let Some(server) = self.servers.get_mut(server) {
            server.dirty = true;
        }
    }
}

// === impl Event ===

impl Event {
    /// A generation that will not be distributed.
    pub fn refused(id: PolicyId, generation: i64, refusal: Refusal) -> Self {
        let input = rollout::Input::Refused {
            generation,
            refusal,
        };
        Event::Policy(id, input)
    }

    /// A generation that became a revision.
    pub fn ready(id: PolicyId, policy: Arc<Policy>) -> Self {
        Event::Policy(id, rollout::Input::Ready(policy))
    }
}

// === impl Server ===

impl Server {
    fn new(counting: Counting, grace: Duration) -> Self {
        Self {
            fleet: Fleet::new(counting, grace),
            coalescer: Coalescer::default(),
            current: Arc::new(Snapshot::empty()),
            published: None,
            noted: None,
            waiting_since: None,
            dirty: true,
        }
    }

    /// What went out last.
    pub fn published(&self) -> Option<&Arc<Snapshot>> {
        self.published.as_ref()
    }

    /// The version that went out last.
    pub fn version(&self) -> Option<Version> {
        self.published.as_ref().map(|s| s.version())
    }

    fn publish(&mut self, now: Millis, name: &Arc<str>, out: &mut Vec<Effect>) {
        let current = self.current.version();
        let due = if self.noted != Some(current) {
            self.noted = Some(current);
            self.coalescer.change(now)
        } else {
            self.coalescer.take_due(now)
        };
        if due && self.version() != Some(current) {
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
            out.push(Effect::Applied {
                server: name.clone(),
                took: now.since(since),
            });
        }
    }
}
