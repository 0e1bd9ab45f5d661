//! What must be true, whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use assent_api::{
    parse,
    revision::{Phase, ResolvedRevision},
};
use assent_controller::{Backend, Kind, Object, RouteSpec, objects::PolicyObject, revision};
use assent_core::{Millis, PolicyKey, RevisionId, Snapshot, fleet::feature, rollout::PolicyId};

use crate::{
    Verdict,
    api::path_of,
    backend::{Cluster, Configuration, Route, Webhook, webhook_name},
    jobs::revision_path,
    seen::Seen,
    statuses::POLICIES,
    world::{Content, END, WINDOW, World},
};

/// What must be remembered to judge what comes later.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) seen: Seen,
    /// Revisions that the control plane ever pointed a webhook at.
    pub(crate) pointed: BTreeSet<RevisionId>,
    /// Their PolicyServers.
    servers: BTreeMap<RevisionId, String>,
    /// The newest of them, by policy and uid.
    newest: BTreeMap<(PolicyKey, Box<str>), i64>,
    /// What flips rely on, by leader and revision.
    checked: BTreeMap<(u64, RevisionId), Checked>,
    /// Revisions that every required replica of a server had, by the uid of the server.
    served: BTreeSet<(String, RevisionId)>,
    /// What the control plane wrote last into each webhook configuration.
    written: BTreeMap<(Kind, String), RevisionId>,
    /// Paths that a webhook named until recently.
    asked: BTreeMap<RevisionId, Millis>,
    /// Pods that were not there when a path was decided, by uid.
    excused: BTreeSet<(String, RevisionId)>,
    /// Policies that were reported to have lost a revision for good.
    pub(crate) lost: BTreeSet<PolicyKey>,
    /// Revisions whose objects somebody removed by force.
    pub(crate) destroyed: BTreeSet<RevisionId>,
    /// When pods became ready, or stopped to be.
    pub(crate) ready_since: BTreeMap<String, Millis>,
}

/// The uid of a server, and its replicas with their processes.
type Checked = (String, BTreeSet<(String, u64)>);

// === impl History ===

impl History {
    /// Somebody else removed a webhook configuration.
    pub(crate) fn forget(&mut self, route: &Route) {
        self.written.remove(&(route.kind, route.meta.name.clone()));
    }

    /// A webhook configuration is gone; requests may be on their way.
    pub(crate) fn left(&mut self, now: Millis, route: &Route) {
        let key = (route.kind, route.meta.name.clone());
        if let Some(revision) = self.written.remove(&key) {
            self.asked.insert(revision, now);
        }
    }
}

// === impl World ===

impl World {
    /// The replicas were listed for a flip.
    pub(crate) fn note_checked(&mut self, epoch: u64, revision: &RevisionId, server: &str) {
        let uid = self.server_uid(server).unwrap_or_default();
        let counted = self.counted(server);
        self.history
            .checked
            .insert((epoch, revision.clone()), (uid, counted));
    }

    fn server_uid(&self, server: &str) -> Option<String> {
        let server = self.api.get(Kind::Servers, server)?;
        Some(server.meta().uid.clone())
    }

    /// A webhook configuration was written by a leader.
    pub(crate) fn check_written(
        &mut self,
        epoch: u64,
        wanted: &Configuration,
        before: Option<&Object<Webhook>>,
        flip: Option<&RevisionId>,
    ) -> Verdict {
        self.check_confirmable(epoch, wanted)?;
        let revision = &wanted.revision;
        let named = match before {
            Some(Object::Route(route)) => route.revision.clone(),
            _ => None,
        };
        if named.as_ref() != Some(revision) {
            self.check_moved(epoch, wanted, flip)?;
        }
        let key = (wanted.kind, webhook_name(&wanted.key));
        let last = self.history.written.insert(key, revision.clone());
        if let Some(last) = last.filter(|last| last != revision) {
            self.history.asked.insert(last, self.now);
        }
        self.history.asked.remove(revision);
        self.history.pointed.insert(revision.clone());
        self.history
            .servers
            .insert(revision.clone(), wanted.server.clone());
        Ok(())
    }

    /// I2, I6: a webhook names another revision only forward, and only if every required replica serves it.
    fn check_moved(
        &mut self,
        epoch: u64,
        wanted: &Configuration,
        flip: Option<&RevisionId>,
    ) -> Verdict {
        let revision = &wanted.revision;
        let parts = revision.parts().unwrap();
        let newest = self
            .history
            .newest
            .entry((parts.policy.clone(), parts.uid8.clone()))
            .or_default();
        let last = RevisionId::new(&parts.policy, *newest, &parts.uid8);
        // What was destroyed while no webhook named it cannot return.
        if *newest > parts.generation && !self.history.destroyed.contains(&last) {
            return Err(format!(
                "I2: the webhook goes back from {newest} to {revision}"
            ));
        }
        let deleting = self.api.get(Kind::Servers, &wanted.server);
        if deleting.is_none_or(|server| server.meta().deleting) {
            // Its server is on its way out, and takes the webhook along: it was never enforced.
            return Ok(());
        }
        let was_newest = std::mem::replace(newest, parts.generation) == parts.generation;
        if flip.is_none() {
            let server = self.server_uid(&wanted.server).unwrap_or_default();
            let served = self.history.served.contains(&(server, revision.clone()));
            return match served || !self.is_epoch(epoch) {
                true => Ok(()),
                false => Err(format!(
                    "I6: {revision} is routed to, and this server never served it"
                )),
            };
        }
        let checked = self.history.checked.get(&(epoch, revision.clone()));
        let (server, replicas) = checked.cloned().unwrap_or_default();
        let process = self.process.iter().filter(|_| self.epoch == epoch);
        let mut beliefs = process.flat_map(|p| p.beliefs.values());
        if replicas.is_empty() && !beliefs.any(|b| b.contains(revision)) {
            return Err(format!("R37: flips to {revision} without replicas"));
        }
        for (name, evaluator) in self.endpoints().filter(|(_, e)| e.server == wanted.server) {
            let process = (name.to_owned(), evaluator.instance);
            let serves = evaluator.set.as_ref().is_some_and(|s| s.serves(revision));
            if replicas.contains(&process) && !serves {
                return Err(format!(
                    "I6: flips to {revision}, which {name} does not serve"
                ));
            }
        }
        let others = self.evaluators.iter().filter(|(name, e)| {
            e.server == wanted.server && !replicas.contains(&((*name).clone(), e.instance))
        });
        let others: Vec<String> = others.map(|(_, e)| e.uid.clone()).collect();
        for uid in others {
            self.history.excused.insert((uid, revision.clone()));
        }
        if self.history.served.insert((server, revision.clone())) && was_newest {
            self.history.seen.returned += 1;
        }
        Ok(())
    }

    /// Webhooks that name what the control plane wrote last, and whose revision has a server.
    fn named(&self) -> impl Iterator<Item = (&RevisionId, &str)> {
        let own = self.api.routes().filter_map(|route| {
            let written = self
                .history
                .written
                .get(&(route.kind, route.meta.name.clone()))?;
            (route.revision.as_ref() == Some(written)).then_some(written)
        });
        own.filter_map(|revision| Some((revision, self.history.servers.get(revision)?.as_str())))
    }

    /// I1, I6, I12: every path that may be asked for is answered by every endpoint.
    pub(crate) fn check_paths(&mut self) -> Verdict {
        let recently = self
            .history
            .asked
            .iter()
            .filter(|(_, at)| **at + WINDOW > self.now)
            // Nobody can know what was destroyed while its policy was being deleted.
            .filter(|(r, _)| !self.history.destroyed.contains(*r));
        let recently =
            recently.filter_map(|(r, _)| Some((r, self.history.servers.get(r)?.as_str())));
        let mut answered = Vec::new();
        for (path, server) in self.named().chain(recently) {
            for (name, evaluator) in self.endpoints().filter(|(_, e)| e.server == server) {
                let answers = evaluator.set.as_ref().is_some_and(|s| s.answers(path));
                let key = (evaluator.uid.clone(), path.clone());
                match self.history.excused.contains(&key) {
                    true if answers => answered.push(key),
                    false if !answers => return Err(format!("I12: {name} does not answer {path}")),
                    _ => {}
                }
            }
        }
        for key in answered {
            self.history.excused.remove(&key);
        }
        Ok(())
    }

    /// I1: what a webhook names is in every snapshot.
    pub(crate) fn check_published(&self, server: &str, snapshot: &Snapshot) -> Verdict {
        for (revision, of) in self.named() {
            if of == server && !snapshot.contains(revision.as_str()) {
                return Err(format!(
                    "I1: publishes without {revision}, which a webhook names"
                ));
            }
        }
        Ok(())
    }

    /// I6: what a webhook names does not leave.
    pub(crate) fn check_retire(&self, revision: &RevisionId) -> Verdict {
        match self.named().any(|(named, _)| named == revision) {
            true => Err(format!("I6: retires {revision}, which a webhook names")),
            false => Ok(()),
        }
    }

    /// The same for history.
    pub(crate) fn check_deleted(&self, id: &PolicyId, names: &[(String, String)]) -> Verdict {
        let mut own = self.named().filter(|(r, _)| r.policy() == Some(&id.key));
        let path = |(namespace, name): &(String, String)| format!("{namespace}/{name}");
        let found = own.find(|(r, _)| names.iter().any(|n| path(n) == revision_path(&id.key, r)));
        match found {
            Some((revision, _)) => Err(format!("I6: deletes {revision}, which a webhook names")),
            None => Ok(()),
        }
    }

    /// I5, I7: after everything healed, everything is where it should be.
    pub(crate) fn check_end(&mut self) -> Verdict {
        let process = self.process.as_ref().ok_or("nobody leads")?;
        if !self.resyncs
            && let Some((at, what)) = &process.last_action
            && at.0 + 60_000 > END.0
        {
            return Err(format!("F21: the controller does not come to rest: {what}"));
        }
        self.check_gone()?;
        let policies: Vec<Object<Webhook>> = POLICIES
            .into_iter()
            .flat_map(|kind| self.api.list(kind).cloned())
            .collect();
        for object in &policies {
            let Object::Policy(policy) = object else {
                continue;
            };
            self.check_policy(policy)?;
            self.check_stored_status(object)?;
        }
        self.check_replicas()
    }

    /// Nothing is left of what was deleted.
    fn check_gone(&self) -> Verdict {
        let kinds = [
            Kind::ClusterPolicies,
            Kind::Policies,
            Kind::Servers,
            Kind::Revisions,
        ];
        for kind in kinds {
            if let Some(object) = self.api.list(kind).find(|o| o.meta().deleting) {
                let served = matches!(object, Object::Revision(r) if r.revision().is_some_and(|r| self.is_rolled_out(&r)));
                if !served {
                    return Err(format!(
                        "I5: the delete of {} was lost",
                        path_of(object.meta())
                    ));
                }
            }
        }
        for route in self.api.routes() {
            let policy = self.policy(&route.key);
            let server = policy.and_then(|p| self.server_uid(&p.server));
            if server.is_none() {
                return Err(format!("F30: {} is an orphan", route.meta.name));
            }
        }
        for object in self.api.list(Kind::Revisions) {
            let Object::Revision(revision) = object else {
                continue;
            };
            let policy = revision.key.as_ref().and_then(|key| self.policy(key));
            if policy.is_none_or(|p| p.meta.uid != revision.policy_uid) {
                return Err(format!("I5: {} is an orphan", revision.meta.name));
            }
        }
        Ok(())
    }

    /// Whether the leader rolls the revision out, or has it enforced.
    fn is_rolled_out(&self, revision: &RevisionId) -> bool {
        let process = self.process.iter();
        let mut rollouts = process.flat_map(|p| p.controller.plane().rollouts());
        rollouts.any(|(_, r)| r.entries().any(|(p, _)| p.revision == *revision))
    }

    fn policy(&self, key: &PolicyKey) -> Option<&PolicyObject> {
        let mut all = POLICIES.into_iter().flat_map(|kind| self.api.list(kind));
        all.find_map(|object| match object {
            Object::Policy(policy) if policy.key == *key => Some(policy.as_ref()),
            _ => None,
        })
    }

    /// The webhook names the newest generation that can be loaded, and nothing else.
    fn check_policy(&mut self, policy: &PolicyObject) -> Verdict {
        let parsed = policy.parsed.as_ref().unwrap();
        let routes: Vec<&Route> = self.api.routes().filter(|r| r.key == policy.key).collect();
        let status = || {
            format!(
                "{:?}",
                policy
                    .status
                    .as_ref()
                    .map(|s| (&s.active, &s.pending, &s.conditions))
            )
        };
        if self.server_uid(&policy.server).is_none() {
            return Ok(());
        }
        let good = matches!(
            self.content_of(&parsed.settings),
            Content::Good | Content::Flaky
        );
        let first = RevisionId::new(&policy.key, 1, &policy.meta.uid);
        let uid8 = first.parts().unwrap().uid8.clone();
        let newest = self
            .history
            .newest
            .get(&(policy.key.clone(), uid8))
            .copied()
            .filter(|generation| *generation > 0);
        let expected = if good {
            Some(policy.meta.generation)
        } else {
            newest
        };
        let Some(expected) = expected else {
            return match routes.is_empty() {
                true => Ok(()),
                false => Err(format!("{} has a webhook and no good revision", policy.key)),
            };
        };
        let expected = RevisionId::new(&policy.key, expected, &policy.meta.uid);
        if !good
            && (self.history.destroyed.contains(&expected)
                || self.history.lost.contains(&policy.key))
        {
            return Ok(());
        }
        let named: BTreeSet<&RevisionId> =
            routes.iter().filter_map(|r| r.revision.as_ref()).collect();
        if named != BTreeSet::from([&expected]) {
            return Err(format!(
                "I7: the webhook of {expected} names {named:?}: {}",
                status()
            ));
        }
        self.check_route(policy, &expected, &routes)?;
        self.check_phases(policy, &expected)?;
        if !good {
            self.history.seen.last_good += 1;
        }
        Ok(())
    }

    fn check_route(
        &self,
        policy: &PolicyObject,
        expected: &RevisionId,
        routes: &[&Route],
    ) -> Verdict {
        let path = revision_path(&policy.key, expected);
        let Some(Object::Revision(stored)) = self.api.get(Kind::Revisions, &path) else {
            return Err(format!("I7: {expected} is active and is not stored"));
        };
        let spec = stored.spec.as_ref().unwrap();
        let parsed = revision::parsed(&policy.key, spec, &parse::Options::default())?;
        let desired = Cluster.desired(&RouteSpec {
            policy: &parsed,
            revision: expected,
            resolved: &ResolvedRevision::new(expected.as_str(), spec),
            uid: &policy.meta.uid,
            confirmed: self.is_confirmable(&policy.server),
        });
        match Cluster.is_current(routes, &desired) {
            true => Ok(()),
            false => Err(format!(
                "I7: the webhook of {expected} is not repaired: {routes:?}"
            )),
        }
    }

    /// Whether all evaluators of a server answer `/confirm/`.
    fn is_confirmable(&self, server: &str) -> bool {
        let mut own = self.endpoints().filter(|(_, e)| e.server == server);
        own.all(|(_, e)| e.features.iter().any(|f| f == feature::CONFIRM))
    }

    /// F22: a webhook that confirms is written only if every replica that the leader knows of can.
    fn check_confirmable(&self, epoch: u64, wanted: &Configuration) -> Verdict {
        if !wanted.confirms {
            return Ok(());
        }
        let checked = self.history.checked.get(&(epoch, wanted.revision.clone()));
        let Some((_, replicas)) = checked else {
            return Ok(());
        };
        let mut own = self.endpoints().filter(|(_, e)| e.server == wanted.server);
        let old = own.find(|(name, e)| {
            replicas.contains(&((*name).to_owned(), e.instance)) && e.features.is_empty()
        });
        match old {
            Some((name, _)) => Err(format!(
                "F22: the changes of {} are confirmed, which {name} cannot",
                wanted.revision
            )),
            None => Ok(()),
        }
    }

    fn check_phases(&self, policy: &PolicyObject, active: &RevisionId) -> Verdict {
        let own = self
            .api
            .list(Kind::Revisions)
            .filter_map(|object| match object {
                Object::Revision(r) if r.policy_uid == policy.meta.uid => Some(r),
                _ => None,
            });
        let mut history = 0;
        for revision in own {
            let id = revision.revision().unwrap();
            let expected = match () {
                _ if id == *active => Phase::Active,
                _ if self.is_rolled_out(&id) => Phase::Candidate,
                _ => Phase::History,
            };
            if revision.phase != expected {
                return Err(format!(
                    "I7: {id} is {:?}, not {expected:?}",
                    revision.phase
                ));
            }
            history += usize::from(expected == Phase::History);
        }
        match history > 5 {
            true => Err(format!("I7: {} has {history} old revisions", policy.key)),
            false => Ok(()),
        }
    }

    fn check_replicas(&self) -> Verdict {
        let process = self.process.as_ref().unwrap();
        for (name, evaluator) in &self.evaluators {
            let published = process
                .published
                .get(&evaluator.server)
                .map(|s| s.version());
            let has = evaluator.set.as_ref().map(|s| s.version());
            if !evaluator.up || published.is_none() || has != published {
                return Err(format!("I7: {name} has not got what was published"));
            }
        }
        Ok(())
    }
}
