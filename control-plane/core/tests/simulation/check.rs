//! What must be true, whatever happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{
    Policy, RevisionId, Snapshot,
    fleet::{CountedReplicas, Name},
    rollout::{Output, PolicyId, Rollout},
    session::{Body, Response, StreamKind},
    status::{ConditionStatus, ConditionType, PolicyStatus},
};

use crate::{
    wire::Claim,
    world::{Control, WINDOW, World},
};

type Verdict = Result<(), String>;

impl World {
    /// The published set is what is stored, no more and no less.
    pub(crate) fn check_publish(&mut self, snapshot: &Snapshot) -> Verdict {
        let control = self.control.as_ref().expect("who publishes must be there");
        self.history.versions.insert(snapshot.version());
        let contents = snapshot
            .policies()
            .map(|p| (p.revision.clone(), p.content_digest));
        self.history.contents.extend(contents);
        // A action that the plane has not heard of is not in its set yet; a deleted policy
        // that is read again has lost its webhook, which only its route's state shows.
        let deleting = self.store.objects.values().any(|o| o.deleting);
        if !control.unheard && !deleting {
            let stored = self.store.snapshot();
            if stored.version() != snapshot.version() {
                let names = |s: &Snapshot| {
                    s.routes()
                        .map(|r| format!("{} {:?}", r.path, r.state))
                        .collect::<Vec<_>>()
                };
                return Err(format!(
                    "published {:?} but stored is {:?}",
                    names(snapshot),
                    names(&stored)
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn check_send(&mut self, id: u64, response: &Response) -> Verdict {
        let version = response.to.version();
        if !self.history.versions.contains(&version) {
            return Err(format!("R39: {version} was never published"));
        }
        let link = self.links.get_mut(&id).expect("who sends must have a link");
        // R3, R32: who comes with the current version gets nothing to load.
        let first = &link.hello.first;
        let whole = first.held.is_empty() || first.held.len() == response.to.policies().len();
        let current = first.version == version.to_string() && whole && link.sent.newest.is_none();
        let delta = self.clients[link.client].kind == StreamKind::Delta;
        if current && delta && !matches!(response.body, Body::NoChange) {
            return Err(format!("R32: resources for who has {version}"));
        }
        link.sent.note(response.nonce.to_string(), version)
    }

    /// R38, I6: a flip needs every counted replica's word for that very revision.
    pub(crate) fn check_flip(&mut self, to: &Arc<Policy>) -> Verdict {
        let control = self.control.as_ref().expect("who flips must be there");
        let counted: Vec<&Name> = counted(control).collect();
        if counted.is_empty() {
            return Err(format!("R37: flips to {} without replicas", to.revision));
        }
        if let Some(missing) = self.expected().iter().find(|n| !counted.contains(n)) {
            return Err(format!("R37: flips to {} without {missing}", to.revision));
        }
        let mut relied_on = BTreeSet::new();
        for name in counted {
            let belief = control.beliefs.get(name);
            let has = match belief.map(|(_, claim)| claim) {
                Some(Claim::Loaded(loaded)) => loaded.contains(&to.revision),
                Some(Claim::Anything) => true,
                Some(Claim::Nothing | Claim::AsBefore | Claim::TakenBack) | None => false,
            };
            if !has {
                return Err(format!(
                    "I6: flips to {}, which {name} never said it has",
                    to.revision
                ));
            }
            relied_on.extend(belief.map(|(instance, _)| (name.clone(), instance.clone())));
        }
        let control = self.control.as_mut().expect("who flips must be there");
        control.relied_on.insert(to.revision.clone(), relied_on);
        Ok(())
    }

    /// The webhook names another path: who must answer it, and for how long the old one.
    pub(crate) fn check_flipped(&mut self, from: Option<&RevisionId>, to: &Arc<Policy>) -> Verdict {
        if let Some(from) = from {
            self.history.asked.insert(from.clone(), self.now);
        }
        let control = self.control.as_ref().expect("who flipped must be there");
        let relied_on = &control.relied_on[&to.revision];
        for (who, client) in self.clients.iter().enumerate() {
            let process = (client.name.as_str().into(), client.instance.to_string());
            if !relied_on.contains(&process) {
                self.history.excused.insert((who, to.revision.clone()));
            }
        }
        self.check_paths()
    }

    /// A process that just started may lack everything until it has a set.
    pub(crate) fn excuse_all(&mut self, who: usize) {
        let paths: Vec<RevisionId> = self.asked_paths().collect();
        let excused = paths.into_iter().map(|path| (who, path));
        self.history.excused.extend(excused);
    }

    /// Paths that the API server may ask for now.
    fn asked_paths(&self) -> impl Iterator<Item = RevisionId> {
        let named = self
            .store
            .objects
            .values()
            .filter_map(|o| o.webhook.as_ref());
        let named = named.map(|p| p.revision.clone());
        let recent = self
            .history
            .asked
            .iter()
            .filter(|(_, at)| **at + WINDOW > self.now);
        named.chain(recent.map(|(path, _)| path.clone()))
    }

    /// I1, I6, I12: every path that may be asked for is answered by everyone who counts.
    pub(crate) fn check_paths(&mut self) -> Verdict {
        let paths: Vec<RevisionId> = self.asked_paths().collect();
        for (who, client) in self.clients.iter().enumerate() {
            if !client.up || !client.is_honest() {
                continue;
            }
            for path in &paths {
                let has =
                    client.set.loaded.contains(path) || client.set.rejected.contains_key(path);
                let routed = client.set.routes.contains_key(path.as_str());
                let key = (who, path.clone());
                if has && routed {
                    self.history.excused.remove(&key);
                } else if !self.history.excused.contains(&key) {
                    return Err(format!("I6: {} does not answer {path}", client.name));
                }
            }
        }
        Ok(())
    }

    /// What a client serves was published, with that very content.
    pub(crate) fn check_client(&mut self, who: usize) -> Verdict {
        let set = &self.clients[who].set;
        let version = set.version.expect("who took a set must have its version");
        if !self.history.versions.contains(&version) {
            return Err(format!(
                "R39: client {who} has {version}, which was never published"
            ));
        }
        for policy in set.announced.values() {
            let content = (policy.revision.clone(), policy.content_digest);
            if !self.history.contents.contains(&content) {
                return Err(format!(
                    "R39: client {who} has {}, never published",
                    policy.revision
                ));
            }
        }
        for route in set.routes.values() {
            if route.revisions.len() != 1 || route.revisions[0].as_str() != &*route.path {
                return Err(format!(
                    "I3: {} is answered by {:?}",
                    route.path, route.revisions
                ));
            }
        }
        self.check_paths()
    }

    /// I4: status claims no more than replicas said; counters add up, rows are bounded.
    pub(crate) fn check_status(&mut self) -> Verdict {
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        let fleet = &control
            .plane
            .server("default")
            .expect("the server must be there")
            .fleet;
        control
            .beliefs
            .retain(|name, _| fleet.replica(name).is_some());
        if fleet.replicas().count() > self.clients.len() {
            return Err("I10: more replicas than there are".into());
        }
        let (dirty, _) = control.plane.take_dirty();
        let mut statuses = BTreeMap::new();
        for (_, rollout) in control.plane.rollouts() {
            let (id, status) = check_rollout(control, rollout)?;
            if !dirty.contains(&id) && control.statuses.get(&id) != Some(&status) {
                return Err(format!("{id:?} changed and is not dirty: {status:?}"));
            }
            statuses.insert(id, status);
        }
        control.statuses = statuses;
        Ok(())
    }

    /// I5, I7, R39: after everything healed, everything is where it should be.
    pub(crate) fn check_end(&mut self) -> Verdict {
        self.settle()?;
        let control = self
            .control
            .as_ref()
            .ok_or("the control plane is not there")?;
        if !control.actions.is_empty() || control.busy {
            return Err("I7: actions are still waiting".into());
        }
        let server = control
            .plane
            .server("default")
            .ok_or("the server is not there")?;
        let published = server.published().ok_or("nothing was published")?;
        if published.version() != self.store.snapshot().version() {
            return Err("I5: what is published is not what is stored".into());
        }
        for client in self.clients.iter().filter(|c| c.is_honest()) {
            if client.set.version != Some(published.version()) {
                return Err(format!("R39: {} ends at another version", client.name));
            }
            let known = client.set.loaded.len() + client.set.rejected.len();
            if known != client.set.announced.len() {
                return Err(format!("R39: {} has what it cannot explain", client.name));
            }
        }
        self.check_policies(control)
    }

    fn check_policies(&self, control: &Control) -> Verdict {
        for (id, object) in &self.store.objects {
            if object.deleting {
                return Err(format!("I5: the delete of {id:?} was lost"));
            }
            let status = control
                .plane
                .status(id)
                .ok_or(format!("{id:?} has no status"))?;
            let named = object.webhook.as_ref().map_or(0, |p| p.generation);
            let refused: Vec<&str> = self.refusing(object.accepted, object).collect();
            if named != object.accepted && refused.is_empty() {
                return Err(format!(
                    "I7: {id:?} is at {named}, not at {}: {status:?}",
                    object.accepted
                ));
            }
            let holds = |kind| status.condition(kind).status == ConditionStatus::True;
            let newest = object.accepted == object.newest.generation;
            if newest && refused.is_empty() != holds(ConditionType::Enforced) {
                return Err(format!(
                    "I4: {refused:?} refuse {id:?}: {:?}",
                    status.conditions
                ));
            }
            let left = object.revisions.len();
            if left > 1 + usize::from(named != object.accepted) {
                return Err(format!("I7: {id:?} still has {left} revisions"));
            }
        }
        Ok(())
    }

    /// Counted clients that cannot load a generation.
    fn refusing(
        &self,
        generation: i64,
        object: &crate::store::Object,
    ) -> impl Iterator<Item = &str> {
        let revision = object
            .revisions
            .get(&generation)
            .map(|p| p.revision.clone());
        let expected = self.expected();
        let counted = move |name: &str| {
            self.counted == CountedReplicas::All || expected.iter().any(|n| **n == *name)
        };
        let refuses = move |set: &crate::client::Set| {
            revision
                .as_ref()
                .is_some_and(|r| set.rejected.contains_key(r))
        };
        let clients = self.clients.iter().filter(|c| c.is_honest());
        clients
            .filter(move |c| refuses(&c.set) && counted(&c.name))
            .map(|c| c.name.as_str())
    }
}

fn counted(control: &Control) -> impl Iterator<Item = &Name> {
    let fleet = &control
        .plane
        .server("default")
        .expect("the server must be there")
        .fleet;
    fleet
        .replicas()
        .map(|(name, _)| name)
        .filter(|name| fleet.counts(name))
}

fn check_rollout(control: &Control, rollout: &Rollout) -> Result<(PolicyId, PolicyStatus), String> {
    let id = rollout.id();
    let status = control
        .plane
        .status(id)
        .ok_or(format!("{id:?} has no status"))?;
    let fold = status.fold;
    if fold.applied + fold.rejected + fold.behind + fold.disconnected != fold.wanted {
        return Err(format!("counters do not add up: {fold:?}"));
    }
    let rows = u32::try_from(status.replicas.len()).unwrap_or(u32::MAX);
    if rows + status.replicas_omitted != fold.wanted {
        return Err(format!("rows do not add up: {status:?}"));
    }
    let programmed = status.condition(ConditionType::Programmed).status == ConditionStatus::True;
    if rollout.is_deleting() || !programmed {
        return Ok((id.clone(), status));
    }
    let generation = status.observed_generation;
    let revision = RevisionId::new(&id.key, generation, &id.uid);
    for name in counted(control) {
        let has = match control.beliefs.get(name).map(|(_, claim)| claim) {
            Some(Claim::Loaded(loaded)) => loaded.contains(&revision),
            Some(Claim::Anything) => true,
            // Who has not answered undoes nothing, but a candidate needs its word.
            Some(Claim::Nothing | Claim::AsBefore | Claim::TakenBack) | None => {
                rollout.candidate().is_none()
            }
        };
        if !has {
            return Err(format!("I4: {revision} is programmed, but not on {name}"));
        }
    }
    Ok((id.clone(), status))
}

/// One action, for the log.
pub(crate) fn show(output: &Output) -> String {
    match output {
        Output::Flip { from, to } => format!("flips from {from:?} to {}", to.revision),
        other => format!("{other:?}"),
    }
}
