//! Requests to the API server, as the executor of a cluster sends them: what they do, and what happens if they fail
//! or if their response is lost.

use std::sync::Arc;

use assent_api::{PolicyRevisionSpec, parse, revision::Phase};
use assent_controller::{
    Change, Failure, Kind, Meta, Object, Outcome,
    action::{FlipError, RollbackTarget, StatusTarget},
    objects::{PolicyObject, RevisionObject, SetObject},
    revision,
};
use assent_core::{Policy, PolicyKey, RevisionId, rollout::PolicyId};
use serde_json::Value;

use crate::{
    Verdict,
    api::{NAMESPACE, meta_mut, path_of},
    backend::{Cluster, Configuration, Route, Webhook},
    routes::Step,
    statuses::POLICIES,
    world::{Happening, World},
};

/// Something that takes one or more requests.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Store {
        id: PolicyId,
        policy: Arc<Policy>,
        spec: Arc<PolicyRevisionSpec>,
    },
    Restore {
        id: PolicyId,
        revision: RevisionId,
        spec: Arc<PolicyRevisionSpec>,
    },
    /// The oldest phase of a policy that waits.
    Phase(PolicyId, PhaseWrite),
    DeleteRevisions(PolicyId, Vec<(String, String)>),
    Check {
        id: PolicyId,
        to: Arc<Policy>,
        server: String,
    },
    /// Webhook configurations, step by step: for a flip, or for a repair.
    Write {
        id: PolicyId,
        flip: Option<RevisionId>,
        desired: Vec<Configuration>,
        existing: Vec<Route>,
        steps: Vec<Step>,
        changes: Vec<Change<Webhook>>,
    },
    Remove {
        routes: Vec<Route>,
        next: usize,
        whose: Whose,
    },
    Finalizer(Kind, Meta, bool),
    RollBack {
        key: PolicyKey,
        meta: Meta,
        target: Result<RollbackTarget, String>,
    },
    Status(StatusTarget),
    Apply(String, i32),
    DeleteServer(Meta),
    DeletePod(Meta),
}

#[derive(Clone, Debug)]
pub(crate) enum PhaseWrite {
    Set(RevisionId, Phase),
    Retire(RevisionId, bool),
}

/// Whose webhook configurations are removed.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    Policy(PolicyId),
    Server(String),
    Nobody,
}

/// What follows from a request that was performed.
pub(crate) enum Landed {
    Done(Option<Outcome<Cluster>>),
    Next(Job),
    /// The same again after a while.
    Again,
    /// A failure that is reported after a delay.
    Failed(Outcome<Cluster>),
}

// === impl World ===

impl World {
    /// A request reaches the API server, or does not; the response reaches the leader, or does not.
    pub(crate) fn land(&mut self, epoch: u64, job: Job) -> Verdict {
        let alive = self.is_epoch(epoch);
        // A Lease outlives the requests of its holder: nothing of an earlier leader arrives after the next one began.
        if !alive && (self.process.is_some() || self.rng.percent(50)) {
            return Ok(());
        }
        let (not_performed, lost) = match self.is_healed() {
            true => (0, 0),
            false if self.now < self.faults.api => (40, 20),
            false => (3, 4),
        };
        let dice = self.rng.below(100);
        if dice < not_performed {
            self.note(|| format!("    request fails: {}", job.name()));
            self.failed(epoch, alive, job);
            return Ok(());
        }
        let landed = self.do_job(epoch, &job)?;
        if dice < not_performed + lost {
            self.note(|| format!("    response is lost: {}", job.name()));
            self.history.seen.lost_responses += 1;
            self.failed(epoch, alive, job);
            return Ok(());
        }
        if !alive {
            return Ok(());
        }
        match landed {
            Landed::Done(None) => {}
            Landed::Done(Some(outcome)) => self.respond(1, 80, outcome),
            Landed::Next(next) => self.send(next),
            Landed::Again => self.again(job),
            Landed::Failed(outcome) => self.respond(2_000, 2_100, outcome),
        }
        Ok(())
    }

    fn respond(&mut self, from: u64, to: u64, outcome: Outcome<Cluster>) {
        let (epoch, outcome) = (self.epoch, Box::new(outcome));
        self.within(from, to, Happening::Outcome { epoch, outcome });
    }

    fn again(&mut self, job: Job) {
        let (epoch, job) = (self.epoch, Box::new(job));
        self.within(500, 5_000, Happening::Land { epoch, job });
    }

    /// The leader does not know what became of a request.
    fn failed(&mut self, epoch: u64, alive: bool, job: Job) {
        if !alive {
            return;
        }
        debug_assert_eq!(epoch, self.epoch);
        let error = || "no response".to_owned();
        let outcome = match job {
            Job::Store { id, policy, .. } => {
                Outcome::NotStored(id, policy.generation, Failure::temporary("no response"))
            }
            Job::Restore { id, revision, .. } => Outcome::Restored(id, revision, None),
            Job::DeleteRevisions(id, names) => Outcome::RevisionsDeleted(id, names),
            Job::Check { id, to, .. } => {
                Outcome::FlipFailed(id, to.revision.clone(), FlipError::Other(error()))
            }
            Job::Write {
                id, flip: Some(to), ..
            } => Outcome::FlipFailed(id, to, FlipError::Other(error())),
            Job::Write { id, flip: None, .. } => Outcome::Repaired(id, Vec::new()),
            Job::Status(target) => {
                self.process.as_mut().unwrap().statuses.remove(&target);
                Outcome::StatusWritten(target, None)
            }
            Job::Apply(server, _) if self.resyncs => Outcome::ServerApplied(server, Err(error())),
            Job::DeletePod(_) => return,
            job => return self.again(job),
        };
        self.respond(2_000, 2_100, outcome);
    }

    fn do_job(&mut self, epoch: u64, job: &Job) -> Result<Landed, String> {
        Ok(match job {
            Job::Store { id, policy, spec } => match self.store(&id.key, spec, false) {
                Some(object) => Landed::Done(Some(Outcome::Stored(
                    id.clone(),
                    policy.clone(),
                    Box::new(object),
                ))),
                None => {
                    let failure = Failure::temporary("it is stored already");
                    Landed::Done(Some(Outcome::NotStored(
                        id.clone(),
                        policy.generation,
                        failure,
                    )))
                }
            },
            Job::Restore { id, revision, spec } => {
                let object = self.store(&id.key, spec, true).map(Box::new);
                Landed::Done(Some(Outcome::Restored(
                    id.clone(),
                    revision.clone(),
                    object,
                )))
            }
            Job::Phase(id, write) => self.do_phase(id, write),
            Job::DeleteRevisions(id, names) => {
                for (namespace, name) in names {
                    self.delete_revision(&format!("{namespace}/{name}"));
                }
                Landed::Done(Some(Outcome::RevisionsDeleted(id.clone(), names.clone())))
            }
            Job::Check { id, to, server } => {
                let pods = self.api.list(Kind::Pods).filter(|o| is_of(o, server));
                let pods = pods.cloned().collect();
                self.note_checked(epoch, &to.revision, server);
                Landed::Done(Some(Outcome::ReplicasChecked(id.clone(), to.clone(), pods)))
            }
            Job::Write { .. } => return self.do_write(epoch, job),
            Job::Remove {
                routes,
                next,
                whose,
            } => self.do_remove(routes, *next, whose),
            Job::Finalizer(kind, meta, present) => {
                let path = path_of(meta);
                let known = self.api.get(*kind, &path).map(Object::meta);
                let known = known.filter(|m| m.uid == meta.uid && m.has_finalizer != *present);
                if known.is_some_and(|m| !(*present && m.deleting)) {
                    let _ = self
                        .api
                        .update(*kind, &path, None, |o| meta_mut(o).has_finalizer = *present);
                }
                Landed::Done(None)
            }
            Job::RollBack { key, meta, target } => self.do_roll_back(key, meta, target),
            Job::Status(target) if self.is_epoch(epoch) => Landed::Done(self.write_status(target)),
            Job::Status(_) => Landed::Done(None),
            Job::Apply(server, replicas) => self.do_apply(server, *replicas),
            Job::DeleteServer(meta) => self.do_delete_server(meta),
            Job::DeletePod(meta) => {
                self.delete_pod(&meta.name);
                Landed::Done(None)
            }
        })
    }

    /// Creates a revision; an existing one with the same content is the same revision.
    fn store(
        &mut self,
        key: &PolicyKey,
        spec: &PolicyRevisionSpec,
        replace: bool,
    ) -> Option<Object<Webhook>> {
        let made = mk_revision(key, spec);
        let path = path_of(made.meta());
        if let Some(Object::Revision(known)) = self.api.get(Kind::Revisions, &path) {
            let same = known
                .spec
                .as_ref()
                .is_some_and(|s| s.content_digest == spec.content_digest);
            if same {
                return Some(Object::Revision(known.clone()));
            }
            if !replace {
                return None;
            }
            self.api.remove(Kind::Revisions, &path);
        }
        let created = self.api.create(Kind::Revisions, made).ok();
        if !self.has_policy(&spec.policy_ref.uid) {
            // The garbage collector finds that its owner does not exist.
            let _ = self.api.delete(Kind::Revisions, &path, None);
        }
        created
    }

    fn has_policy(&self, uid: &str) -> bool {
        let mut all = POLICIES.into_iter().flat_map(|kind| self.api.list(kind));
        all.any(|policy| policy.meta().uid == uid)
    }

    fn do_phase(&mut self, id: &PolicyId, write: &PhaseWrite) -> Landed {
        Landed::Done(Some(match write {
            PhaseWrite::Set(revision, phase) => {
                let object = self.set_phase(&id.key, revision, *phase);
                Outcome::PhaseSet(id.clone(), revision.clone(), object.map(Box::new))
            }
            PhaseWrite::Retire(revision, true) => {
                self.set_phase(&id.key, revision, Phase::History);
                Outcome::Retired(id.clone(), revision.clone())
            }
            PhaseWrite::Retire(revision, false) => {
                self.delete_revision(&revision_path(&id.key, revision));
                Outcome::Retired(id.clone(), revision.clone())
            }
        }))
    }

    /// The oldest phase of a policy was written, and the response has arrived: the next one follows.
    pub(crate) fn phase_written(&mut self, id: &PolicyId) {
        let process = self.process.as_mut().unwrap();
        let waiting = process
            .phases
            .get_mut(id)
            .expect("who writes must have a queue");
        waiting.pop_front();
        match waiting.front().cloned() {
            None => drop(process.phases.remove(id)),
            Some(next) => self.send(Job::Phase(id.clone(), next)),
        }
    }

    fn set_phase(
        &mut self,
        key: &PolicyKey,
        revision: &RevisionId,
        phase: Phase,
    ) -> Option<Object<Webhook>> {
        let path = revision_path(key, revision);
        let edit = |object: &mut Object<Webhook>| {
            if let Object::Revision(revision) = object {
                revision.phase = phase;
            }
        };
        self.api.update(Kind::Revisions, &path, None, edit).ok()
    }

    fn delete_revision(&mut self, path: &str) {
        let _ = self.api.delete(Kind::Revisions, path, None);
        let _ = self.api.update(Kind::Revisions, path, None, |o| {
            meta_mut(o).has_finalizer = false
        });
    }

    fn do_roll_back(
        &mut self,
        key: &PolicyKey,
        meta: &Meta,
        target: &Result<RollbackTarget, String>,
    ) -> Landed {
        let (kind, path) = (kind_of(key), path_of(meta));
        let done = |result| Landed::Done(Some(Outcome::RolledBack(key.clone(), result)));
        let known = self
            .api
            .get(kind, &path)
            .map(Object::meta)
            .filter(|m| m.uid == meta.uid);
        let Some(known) = known else {
            return done(Err("there is another policy".into()));
        };
        if target.is_ok() && known.generation != meta.generation {
            return done(Err("the policy was edited meanwhile".into()));
        }
        let spec = target.as_ref().ok().map(|target| {
            let mut spec = target.spec.clone();
            spec.insert("module".into(), target.module_url.clone().into());
            Value::Object(spec)
        });
        let written = self.api.update(kind, &path, None, |object| {
            let Object::Policy(policy) = object else {
                return;
            };
            policy.rollback = None;
            if let Some(spec) = &spec {
                write_spec(policy, spec);
            }
        });
        self.history.seen.rollbacks += 1;
        match (target, written) {
            (Err(why), _) => done(Err(why.clone())),
            (Ok(target), Ok(object)) => done(Ok((target.generation, Box::new(object)))),
            (Ok(_), Err(error)) => done(Err(format!("{error:?}"))),
        }
    }

    fn do_apply(&mut self, server: &str, replicas: i32) -> Landed {
        let done = |result| Landed::Done(Some(Outcome::ServerApplied(server.to_owned(), result)));
        let Some(uid) = self
            .api
            .get(Kind::Servers, server)
            .map(|s| s.meta().uid.clone())
        else {
            return done(Err("there is no PolicyServer".into()));
        };
        let path = format!("{NAMESPACE}/assent-{server}");
        if self.api.get(Kind::Sets, &path).is_none() {
            let set = SetObject {
                meta: Meta {
                    namespace: NAMESPACE.into(),
                    name: format!("assent-{server}"),
                    ..Meta::default()
                },
                server: server.to_owned(),
                owner: Some(uid),
                replicas,
                ready: 0,
                hash: None,
                template: None,
            };
            let _ = self.api.create(Kind::Sets, Object::Set(Box::new(set)));
        }
        let server = server.to_owned();
        self.within(
            10,
            500,
            Happening::Reconcile {
                server: server.clone(),
            },
        );
        Landed::Done(Some(Outcome::ServerApplied(server, Ok(()))))
    }

    /// Everything of a server goes first, then its finalizer.
    fn do_delete_server(&mut self, meta: &Meta) -> Landed {
        let known = self.api.get(Kind::Servers, &meta.name).map(Object::meta);
        if known.is_none_or(|m| m.uid != meta.uid) {
            return Landed::Done(None);
        }
        self.api
            .remove(Kind::Sets, &format!("{NAMESPACE}/assent-{}", meta.name));
        let pods = self.api.list(Kind::Pods).filter(|o| is_of(o, &meta.name));
        let pods: Vec<String> = pods.map(|o| o.meta().name.clone()).collect();
        for pod in &pods {
            self.delete_pod(pod);
        }
        if !pods.is_empty() {
            return Landed::Again;
        }
        let known = self.api.get(Kind::Servers, &meta.name).map(Object::meta);
        if known.is_some_and(|m| m.uid == meta.uid && m.deleting) {
            let _ = self.api.update(Kind::Servers, &meta.name, None, |o| {
                meta_mut(o).has_finalizer = false
            });
        }
        Landed::Done(None)
    }
}

// === impl Job ===

impl Job {
    fn name(&self) -> String {
        let text = format!("{self:?}");
        text.chars().take(60).collect()
    }
}

fn mk_revision(key: &PolicyKey, spec: &PolicyRevisionSpec) -> Object<Webhook> {
    let policy = revision::restore(key, spec, &parse::Options::default());
    let id = RevisionId::new(key, spec.generation, &spec.policy_ref.uid);
    let path = revision_path(key, &id);
    let (namespace, name) = path.split_once('/').unwrap();
    Object::Revision(Box::new(RevisionObject {
        meta: Meta {
            namespace: namespace.into(),
            name: name.into(),
            generation: 1,
            has_finalizer: true,
            ..Meta::default()
        },
        key: Some(key.clone()),
        policy_uid: spec.policy_ref.uid.clone(),
        spec: Some(Arc::new(spec.clone())),
        policy: policy.map(Arc::new),
        phase: Phase::Candidate,
    }))
}

/// Where a revision is stored.
pub(crate) fn revision_path(key: &PolicyKey, revision: &RevisionId) -> String {
    let namespace = key.namespace().unwrap_or(NAMESPACE);
    format!(
        "{namespace}/{}.{}",
        key.as_str().replace('/', "."),
        revision.short()
    )
}

/// Gives a policy another spec, which is another generation.
pub(crate) fn write_spec(policy: &mut PolicyObject, spec: &Value) {
    policy.meta.generation += 1;
    policy.parsed =
        parse::spec(&policy.key, spec, &parse::Options::default()).map_err(|e| e.to_string());
}

pub(crate) fn kind_of(key: &PolicyKey) -> Kind {
    match key.namespace() {
        Some(_) => Kind::Policies,
        None => Kind::ClusterPolicies,
    }
}

pub(crate) fn is_of(object: &Object<Webhook>, server: &str) -> bool {
    matches!(object, Object::Pod(pod) if pod.server == server)
}
