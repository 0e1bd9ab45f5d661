//! PolicyServers: their objects, their pods, their end.

use std::sync::Arc;

use assent_core::{
    Millis, PolicyKey,
    fleet::{Counting, Link, Name, Replica},
    plane::Event,
    rollout::{Acceptance, Input, PolicyId, RefusalReason},
};
use assent_k8s::{
    index::{Kind, Meta, PodEntry},
    workload,
};
use tracing::{info, warn};

use super::Machine;
use crate::cluster::{deed::Deed, trust::pod_identity};

/// What was applied for a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Applied {
    /// The generation of the server that was applied last.
    pub(super) generation: i64,
    /// Under way now.
    pub(super) running: bool,
    /// Asked for again meanwhile.
    pub(super) again: bool,
    /// What went wrong last.
    pub(super) error: Option<String>,
}

impl Machine {
    /// Brings everything up to what the server's object says.
    pub(super) fn observe_server(&mut self, name: &str) {
        let Some(entry) = self.index.server(name).cloned() else {
            return self.end_server(name);
        };
        if entry.meta.deleting {
            return self.end_server(name);
        }
        if !entry.meta.is_held() {
            let deed = Deed::Hold(Kind::Servers, entry.meta.clone(), true);
            self.deeds.push(deed);
        }
        if self.drive.plane.server(name).is_none() {
            self.hub.add_server(name);
            self.drive.apply(Event::ServerAdded {
                server: name.into(),
                counting: Counting::Expected,
            });
            self.reconsider(name);
        }
        self.apply_server(name, false);
    }

    /// Whether policies can be for it.
    pub(super) fn has_server(&self, name: &str) -> bool {
        let entry = self.index.server(name);
        entry.is_some_and(|s| !s.meta.deleting) && !self.ending.contains(name)
    }

    /// Applies the server's objects where its spec changed, or where `always`.
    pub(super) fn apply_server(&mut self, name: &str, always: bool) {
        let Some(options) = &self.options.workload else {
            return;
        };
        let Some(entry) = self.index.server(name).filter(|s| !s.meta.deleting) else {
            return;
        };
        let parsed = match &entry.parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                let why = why.clone();
                self.applied.entry(name.to_owned()).or_default().error = Some(why);
                return;
            }
        };
        let objects = workload::objects(parsed, &entry.meta.uid, options);
        let generation = entry.meta.generation;
        let applied = self.applied.entry(name.to_owned()).or_default();
        if applied.running {
            applied.again |= always || applied.generation != generation;
            return;
        }
        if applied.generation == generation && !always {
            return;
        }
        applied.generation = generation;
        applied.running = true;
        let deed = Deed::ApplyServer(name.to_owned(), Box::new(objects));
        self.deeds.push(deed);
    }

    pub(super) fn server_applied(&mut self, name: &str, result: Result<(), String>) {
        let Some(applied) = self.applied.get_mut(name) else {
            return;
        };
        applied.running = false;
        if let Err(why) = &result {
            warn!(server = name, "failed to apply its objects: {why}");
            // The next resync tries again.
            applied.generation = 0;
        }
        applied.error = result.err();
        if std::mem::take(&mut applied.again) {
            self.apply_server(name, true);
        }
    }

    /// Its webhooks go first, then what was made for it; its policies stay and say so.
    fn end_server(&mut self, name: &str) {
        if self.ending.contains(name) {
            return;
        }
        let known = self.drive.plane.server(name).is_some();
        let held = self.index.server(name).is_some_and(|s| s.meta.is_held());
        if !known && !held {
            return;
        }
        info!(server = name, "the policy server ends");
        self.ending.insert(name.to_owned());
        let own = self.index.policies().filter(|p| p.server == name);
        let keys: Vec<PolicyKey> = own.map(|p| p.key.clone()).collect();
        let present = keys.iter().flat_map(|key| self.present(key)).collect();
        let deed = Deed::UnrouteServer(name.to_owned(), present);
        self.deeds.push(deed);
    }

    pub(super) fn server_unrouted(&mut self, name: &str) {
        self.ending.remove(name);
        let rollouts = self.drive.plane.rollouts();
        let own = rollouts.filter(|(server, r)| &***server == name && !r.is_ending());
        let own: Vec<PolicyId> = own.map(|(_, r)| r.id().clone()).collect();
        for id in &own {
            self.jobs.cancel(id);
            self.drive.apply(Event::Forgotten(id.clone()));
        }
        self.hub.remove_server(name);
        self.drive.apply(Event::ServerRemoved(name.into()));
        self.applied.remove(name);
        if let Some(entry) = self.index.server(name).cloned()
            && entry.meta.deleting
            && entry.meta.is_held()
        {
            self.deeds.push(Deed::EndServer(entry.meta));
        }
        for id in own {
            self.observe_policy(&id.key);
        }
        // It may have come back meanwhile.
        if self.index.server(name).is_some_and(|s| !s.meta.deleting) {
            self.observe_server(name);
        }
    }

    /// Deletes pods of our StatefulSets that have no evaluator, or not theirs: they were made
    /// while nobody injected, or somebody of another version, and would stay so for ever.
    pub(super) fn replace_misfits(&mut self) {
        let servers = self.drive.plane.servers().map(|(name, _)| name.clone());
        let servers: Vec<Arc<str>> = servers.collect();
        for server in servers {
            let pods = self.index.members(&server);
            let bare = pods.filter(|p| !p.injected && !p.meta.deleting);
            let wrong = bare.chain(self.index.misfit(&server));
            let wrong: Vec<Meta> = wrong.map(|p| p.meta.clone()).collect();
            for meta in wrong {
                if self.replaced.insert(meta.uid.clone()) {
                    self.deeds.push(Deed::DeletePod(meta));
                }
            }
        }
    }

    /// Says which replicas must serve what is new.
    pub(super) fn expect(&mut self, server: &str) {
        let Some(known) = self.drive.plane.server(server) else {
            return;
        };
        let now = self.drive.clock.now();
        let pods = self.index.members(server);
        let required = pods.filter(|pod| {
            let replica = known.fleet.replica(&pod.meta.name);
            is_required(pod, replica, now)
        });
        let required: Vec<Name> = required.map(|p| p.meta.name.as_str().into()).collect();
        self.drive.apply(Event::Expected {
            server: server.into(),
            replicas: required,
        });
    }

    pub(super) fn expect_all(&mut self) {
        let servers: Vec<Arc<str>> = self.drive.plane.servers().map(|(n, _)| n.clone()).collect();
        for server in servers {
            self.expect(&server);
        }
    }

    /// Policies of a server that was missing have a target now.
    fn reconsider(&mut self, server: &str) {
        let rollouts = self.drive.plane.rollouts();
        let own = rollouts.filter(|(name, r)| {
            let missing = matches!(r.acceptance(), Acceptance::Refused(x) if x.reason == RefusalReason::TargetNotFound);
            &***name == server && missing
        });
        let own: Vec<PolicyId> = own.map(|(_, r)| r.id().clone()).collect();
        for id in own {
            self.drive.apply(Event::Policy(id, Input::Reconsidered));
        }
    }
}

/// Whether a pod of the server's own StatefulSet must serve what is new: it is an endpoint of
/// the Service, has an open stream, or had one lately. What is new may have brought it down,
/// and nobody would say so if it were not waited for.
fn is_required(pod: &PodEntry, replica: Option<&Replica>, now: Millis) -> bool {
    let left_lately = |replica: &Replica| {
        // Another pod of the same name was never asked.
        let meta = &pod.meta;
        let same = replica.identity == pod_identity(&meta.namespace, &meta.name, &meta.uid);
        same && matches!(replica.link, Link::Grace { until } if until > now)
    };
    match replica.map(|r| r.link) {
        Some(Link::Open { .. }) => true,
        _ if pod.meta.deleting => false,
        _ => pod.ready || replica.is_some_and(left_lately),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_000);

    fn mk_pod(ready: bool, deleting: bool) -> PodEntry {
        PodEntry {
            meta: Meta {
                namespace: "assent-system".into(),
                name: "a".into(),
                uid: "uid-1".into(),
                deleting,
                ..Meta::default()
            },
            server: "default".into(),
            owner: None,
            ready,
            injected: true,
            hash: None,
            template: None,
            ip: None,
        }
    }

    fn mk_replica(uid: &str, link: Link) -> Replica {
        let mut replica = Replica::default();
        replica.identity = pod_identity("assent-system", "a", uid);
        replica.link = link;
        replica
    }

    #[track_caller]
    fn check(pod: &PodEntry, replica: Option<Replica>, expect: bool) {
        assert_eq!(is_required(pod, replica.as_ref(), NOW), expect);
    }

    #[test]
    fn endpoints_and_open_streams_are_waited_for() {
        let open = || Some(mk_replica("uid-1", Link::Open { stream: 1 }));
        check(&mk_pod(true, false), None, true);
        check(&mk_pod(true, false), open(), true);
        check(&mk_pod(false, false), open(), true);
        check(&mk_pod(false, true), open(), true);
        check(&mk_pod(false, false), None, false);
        check(&mk_pod(true, true), None, false);
    }

    #[test]
    fn a_pod_that_went_down_is_waited_for_until_its_grace_ends() {
        let left = |uid, until| Some(mk_replica(uid, Link::Grace { until }));
        check(&mk_pod(false, false), left("uid-1", Millis(1_001)), true);
        check(&mk_pod(false, false), left("uid-1", NOW), false);
        check(
            &mk_pod(false, false),
            Some(mk_replica("uid-1", Link::Gone)),
            false,
        );
        // It is being deleted, or another one has its name.
        check(&mk_pod(false, true), left("uid-1", Millis(1_001)), false);
        check(&mk_pod(false, false), left("uid-0", Millis(1_001)), false);
    }
}
