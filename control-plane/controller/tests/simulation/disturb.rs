//! What people, machines and networks do to the cluster.

use assent_api::{
    parse::{self, Manifest, Rollback},
    revision::Phase,
};
use assent_controller::{
    Kind, Meta, Object,
    objects::{PolicyObject, ServerObject},
};
use assent_core::{Millis, PolicyKey, RevisionId};
use serde_json::{Value, json};

use crate::{
    Verdict,
    api::{meta_mut, path_of},
    backend::{Route, Webhook, webhook_name},
    jobs::{kind_of, write_spec},
    process::KINDS,
    rng::Rng,
    statuses::POLICIES,
    world::{Content, HEALED, Happening, World},
};

/// Something that happens to the cluster, whoever does it. It has its own randomness, so that leaving another one
/// out changes as little as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) at: Millis,
    what: What,
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    CreatePolicy,
    EditPolicy,
    DeletePolicy,
    RollBack,
    DeleteServer,
    CreateServer,
    EditServer,
    CrashLeader,
    BreakApi,
    BreakRegistry,
    DelayWatch,
    Relist,
    DeleteWebhook,
    EditWebhook,
    DeleteRevision,
    DestroyRevision,
    EditPhase,
    KillEvaluator,
    DeletePod,
    CutStream,
    Partition,
}

/// Each as often as it is listed.
const USERS: [What; 16] = [
    What::CreatePolicy,
    What::CreatePolicy,
    What::CreatePolicy,
    What::EditPolicy,
    What::EditPolicy,
    What::EditPolicy,
    What::EditPolicy,
    What::EditPolicy,
    What::EditPolicy,
    What::RollBack,
    What::DeletePolicy,
    What::DeleteServer,
    What::CreateServer,
    What::CreateServer,
    What::CreateServer,
    What::EditServer,
];

const FAULTS: [What; 17] = [
    What::CrashLeader,
    What::CrashLeader,
    What::CrashLeader,
    What::BreakApi,
    What::BreakRegistry,
    What::DelayWatch,
    What::DelayWatch,
    What::Relist,
    What::DeleteWebhook,
    What::EditWebhook,
    What::DeleteRevision,
    What::DestroyRevision,
    What::EditPhase,
    What::KillEvaluator,
    What::DeletePod,
    What::CutStream,
    What::Partition,
];

/// Policies have few names, so that names come back with another uid.
const POLICY_NAMES: usize = 4;

impl Disturbance {
    pub(crate) fn plan(rng: &mut Rng) -> Vec<Self> {
        let mut plan = Vec::new();
        let first = Self {
            at: Millis(1_000),
            what: What::CreatePolicy,
            seed: rng.next(),
        };
        plan.push(first);
        for _ in 0..6 + rng.below(16) {
            plan.push(Self::at(rng, &USERS));
        }
        for _ in 0..rng.below(24) {
            plan.push(Self::at(rng, &FAULTS));
        }
        plan.sort_by_key(|d| d.at);
        plan
    }

    fn at(rng: &mut Rng, all: &[What]) -> Self {
        Self {
            // Half of them in a short time, where they meet.
            at: match rng.percent(50) {
                true => Millis(20_000 + rng.next() % 20_000),
                false => Millis(rng.next() % HEALED.0),
            },
            what: *rng.pick(all).unwrap(),
            seed: rng.next(),
        }
    }
}

impl World {
    pub(crate) fn disturb(&mut self, n: usize) -> Verdict {
        let Disturbance { what, seed, .. } = self.plan[n];
        let rng = &mut Rng::new(seed);
        self.note(|| format!("[{n}] {what:?}"));
        match what {
            What::CreatePolicy => self.create_policy(rng),
            What::EditPolicy => self.edit_policy(rng),
            What::DeletePolicy => {
                if let Some(policy) = self.pick_policy(rng) {
                    self.note(|| format!("{} is deleted", policy.key));
                    let _ = self.api.delete(policy.kind(), &path_of(&policy.meta), None);
                }
            }
            What::RollBack => self.ask_rollback(rng),
            What::DeleteServer => {
                let name = server_name(rng);
                let _ = self.api.delete(Kind::Servers, name, None);
            }
            What::CreateServer => self.create_server(server_name(rng)),
            What::EditServer => {
                let name = server_name(rng);
                let _ = self
                    .api
                    .update(Kind::Servers, name, None, |o| meta_mut(o).generation += 1);
            }
            What::CrashLeader => self.crash(),
            What::BreakApi => self.faults.api = self.now + rng.millis(500, 20_000),
            What::BreakRegistry => self.faults.registry = self.now + rng.millis(500, 20_000),
            What::DelayWatch => {
                let kind = *rng.pick(&KINDS).unwrap();
                let until = self.now + rng.millis(1_000, 20_000);
                self.faults.lag.insert(kind, until);
                self.note(|| format!("watches of {kind:?} lag"));
            }
            What::Relist => {
                let (epoch, kind) = (self.epoch, *rng.pick(&KINDS).unwrap());
                self.within(1, 500, Happening::List { epoch, kind });
            }
            What::DeleteWebhook => {
                if let Some(route) = self.pick_route(rng) {
                    self.note(|| format!("somebody deletes {:?} {}", route.kind, route.meta.name));
                    let _ = self.api.delete(route.kind, &route.meta.name, None);
                    self.history.forget(&route);
                }
            }
            What::EditWebhook => self.edit_webhook(rng),
            What::DeleteRevision => {
                if let Some(path) = self.pick_revision(rng) {
                    self.note(|| format!("somebody deletes {path}"));
                    let _ = self.api.delete(Kind::Revisions, &path, None);
                }
            }
            What::DestroyRevision => self.destroy_revision(rng),
            What::EditPhase => {
                // Who calls a candidate active makes it one to return to, so only the other way.
                if let Some(path) = self
                    .pick_revision(rng)
                    .filter(|path| self.has_living_owner(path))
                {
                    self.note(|| format!("somebody edits the phase of {path}"));
                    let _ = self.api.update(Kind::Revisions, &path, None, |object| {
                        if let Object::Revision(revision) = object
                            && revision.phase == Phase::Active
                        {
                            revision.phase = Phase::History;
                        }
                    });
                }
            }
            What::KillEvaluator => {
                if let Some(name) = self.pick_pod(rng) {
                    self.note(|| format!("{name} is killed"));
                    self.kill(&name, rng.percent(70));
                }
            }
            What::DeletePod => {
                if let Some(name) = self.pick_pod(rng) {
                    self.delete_pod(&name);
                }
            }
            What::CutStream => {
                let links: Vec<u64> = self.links.keys().copied().collect();
                if let Some(link) = rng.pick(&links) {
                    self.close(*link);
                }
            }
            What::Partition => {
                if let Some(name) = self.pick_pod(rng) {
                    let until = self.now + rng.millis(1_000, 60_000);
                    self.note(|| format!("{name} is partitioned"));
                    let own = self
                        .links
                        .iter()
                        .find(|(_, l)| l.pod == name)
                        .map(|(id, _)| *id);
                    self.faults.partitioned.insert(name, until);
                    if let Some(link) = own {
                        self.within(0, 20_000, Happening::Close { link });
                    }
                }
            }
        }
        Ok(())
    }

    /// From now on everything works, and what was deleted by mistake is created again.
    pub(crate) fn heal(&mut self) -> Verdict {
        self.note(|| "everything heals".into());
        self.faults.api = Millis(0);
        self.faults.registry = Millis(0);
        self.faults.lag.clear();
        self.heal_evaluators();
        self.remove_webhooks_of_lost_revisions();
        if self.rng.percent(80) {
            for name in ["default", "other"] {
                self.create_server(name);
            }
        }
        self.lead()
    }

    /// An operator does what the event about a lost revision advises: nothing but the webhook knows the revision, and
    /// without it the policy is rolled out again.
    fn remove_webhooks_of_lost_revisions(&mut self) {
        let lost = self.history.lost.clone();
        for (kind, key) in [Kind::Validating, Kind::Mutating]
            .into_iter()
            .flat_map(|kind| lost.iter().map(move |key| (kind, key)))
        {
            let name = webhook_name(key);
            let Some(Object::Route(route)) = self.api.get(kind, &name).cloned() else {
                continue;
            };
            let exists = |revision: &RevisionId| {
                let mut stored = self.api.list(Kind::Revisions);
                stored.any(
                    |o| matches!(o, Object::Revision(r) if r.revision().as_ref() == Some(revision)),
                )
            };
            if route.revision.as_ref().is_some_and(|r| !exists(r)) {
                self.note(|| format!("an operator deletes {kind:?} {name}"));
                let _ = self.api.delete(kind, &name, None);
                self.history.forget(&route);
            }
        }
    }

    pub(crate) fn create_server(&mut self, name: &str) {
        let value = json!({
            "apiVersion": assent_api::API_VERSION, "kind": "PolicyServer",
            "metadata": { "name": name }, "spec": { "replicas": 2 },
        });
        let Ok(Manifest::Server(parsed)) = parse::manifest(&value, &parse::Options::default())
        else {
            panic!("the server must be valid");
        };
        let server = ServerObject {
            meta: Meta {
                name: name.into(),
                generation: 1,
                ..Meta::default()
            },
            parsed: Ok(Some(parsed)),
            status: None,
        };
        let _ = self
            .api
            .create(Kind::Servers, Object::Server(Box::new(server)));
    }

    fn create_policy(&mut self, rng: &mut Rng) {
        let n = rng.below(POLICY_NAMES);
        let key = match n {
            0 => PolicyKey::namespaced("tenant", "p0"),
            n => PolicyKey::cluster(&format!("p{n}")),
        };
        let server = if n == 3 { "other" } else { "default" };
        let spec = self.spec(rng, server);
        let mut policy = PolicyObject {
            meta: Meta {
                namespace: key.namespace().unwrap_or_default().into(),
                name: key.name().into(),
                generation: 0,
                ..Meta::default()
            },
            key,
            parsed: Err(String::new()),
            server: server.into(),
            rollback: None,
            pinned: None,
            problem: None,
            status: None,
        };
        write_spec(&mut policy, &spec);
        let (kind, key) = (kind_of(&policy.key), policy.key.clone());
        if self
            .api
            .create(kind, Object::Policy(Box::new(policy)))
            .is_ok()
        {
            self.note(|| format!("{key} is created: {spec}"));
        }
    }

    fn spec(&mut self, rng: &mut Rng, server: &str) -> Value {
        let content = match rng.below(10) {
            0 | 1 => Content::Invalid,
            2 | 3 => Content::Rejected,
            4 | 5 => Content::Flaky,
            _ => Content::Good,
        };
        let n = self.contents.len();
        self.contents.push(content);
        self.note(|| format!("content {n} is {content:?}"));
        json!({
            "module": "registry://example.com/policy:v1",
            "policyServer": server,
            "mutating": rng.percent(40),
            "settings": { "n": n },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }],
        })
    }

    fn edit_policy(&mut self, rng: &mut Rng) {
        let Some(policy) = self.pick_policy(rng) else {
            return;
        };
        let spec = self.spec(rng, &policy.server);
        let edited = self
            .api
            .update(policy.kind(), &path_of(&policy.meta), None, |object| {
                if let Object::Policy(policy) = object {
                    write_spec(policy, &spec);
                }
            });
        if let Ok(object) = edited {
            self.note(|| {
                format!(
                    "{} is at generation {}: {spec}",
                    policy.key,
                    object.meta().generation
                )
            });
        }
    }

    fn ask_rollback(&mut self, rng: &mut Rng) {
        if let Some(policy) = self.pick_policy(rng) {
            self.note(|| format!("{} shall be rolled back", policy.key));
            let _ = self
                .api
                .update(policy.kind(), &path_of(&policy.meta), None, |object| {
                    if let Object::Policy(policy) = object {
                        policy.rollback = Some(Rollback::Previous);
                    }
                });
        }
    }

    /// Somebody changes a webhook configuration by hand.
    fn edit_webhook(&mut self, rng: &mut Rng) {
        let Some(route) = self.pick_route(rng) else {
            return;
        };
        let how = rng.below(5);
        self.note(|| format!("somebody edits {:?} {}: {how}", route.kind, route.meta.name));
        let _ = self
            .api
            .update(route.kind, &route.meta.name, None, |object| {
                let Object::Route(route) = object else { return };
                match how {
                    0 => route.existing.content = "rules: []".into(),
                    1 => route.existing.labelled = false,
                    2 => route.uid = None,
                    3 => route.resolved = None,
                    _ => route.revision = None,
                }
            });
    }

    /// Somebody removes a revision, finalizer and all.
    fn destroy_revision(&mut self, rng: &mut Rng) {
        let Some(path) = self.pick_revision(rng) else {
            return;
        };
        self.note(|| format!("somebody destroys {path}"));
        if let Some(Object::Revision(revision)) = self.api.get(Kind::Revisions, &path) {
            self.history.destroyed.extend(revision.revision());
        }
        self.api.remove(Kind::Revisions, &path);
    }

    fn pick_policy(&self, rng: &mut Rng) -> Option<PolicyObject> {
        let all = POLICIES.into_iter().flat_map(|kind| self.api.list(kind));
        let living = all.filter_map(|object| match object {
            Object::Policy(policy) if !policy.meta.deleting => Some(policy.as_ref()),
            _ => None,
        });
        let living: Vec<&PolicyObject> = living.collect();
        rng.pick(&living).map(|policy| (*policy).clone())
    }

    fn pick_route(&self, rng: &mut Rng) -> Option<Route> {
        let all: Vec<&Route> = self.api.routes().collect();
        rng.pick(&all).map(|route| (*route).clone())
    }

    fn pick_revision(&self, rng: &mut Rng) -> Option<String> {
        let all: Vec<&Object<Webhook>> = self.api.list(Kind::Revisions).collect();
        rng.pick(&all).map(|object| path_of(object.meta()))
    }

    fn has_living_owner(&self, path: &str) -> bool {
        let Some(Object::Revision(revision)) = self.api.get(Kind::Revisions, path) else {
            return false;
        };
        let mut all = POLICIES.into_iter().flat_map(|kind| self.api.list(kind));
        all.any(|p| p.meta().uid == revision.policy_uid && !p.meta().deleting)
    }

    fn pick_pod(&self, rng: &mut Rng) -> Option<String> {
        let all: Vec<&String> = self.evaluators.keys().collect();
        rng.pick(&all).map(|name| (*name).clone())
    }
}

fn server_name(rng: &mut Rng) -> &'static str {
    if rng.percent(70) { "default" } else { "other" }
}
