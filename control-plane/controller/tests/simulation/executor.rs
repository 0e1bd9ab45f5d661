//! Begins what the controller asks for.

use assent_api::parse::Module;
use assent_controller::{
    Action, Failure, Outcome, VetJob,
    action::{EventKind, RevisionIncident},
};
use assent_core::Digest;
use serde_json::Value;

use crate::{
    Verdict,
    backend::Cluster,
    jobs::{Job, PhaseWrite, Whose},
    routes::Step,
    world::{Content, Happening, World},
};

impl World {
    pub(crate) fn perform(&mut self, action: Action<Cluster>) -> Verdict {
        self.note_action(&action);
        match action {
            Action::Vet(job) => self.vet(&job),
            Action::CancelVet(id) => {
                self.process.as_mut().unwrap().vetting.remove(&id);
            }
            Action::FetchModule(fetch) => {
                self.modules[usize::from(self.epoch.is_multiple_of(2))].insert(fetch.digest);
            }
            Action::StoreRevision(store) => self.send(Job::Store {
                id: store.id,
                policy: store.policy,
                spec: store.spec.into(),
            }),
            Action::RestoreRevision(restore) => self.send(Job::Restore {
                id: restore.id,
                revision: restore.revision,
                spec: restore.spec,
            }),
            Action::SetPhase(id, revision, phase) => {
                self.write_phase(id, PhaseWrite::Set(revision, phase))
            }
            Action::RetireRevision { id, revision, keep } => {
                self.check_retire(&revision)?;
                self.write_phase(id, PhaseWrite::Retire(revision, keep));
            }
            Action::DeleteRevisions(id, names) => {
                self.check_deleted(&id, &names)?;
                self.send(Job::DeleteRevisions(id, names));
            }
            Action::CheckReplicas { id, to, server } => self.send(Job::Check { id, to, server }),
            Action::Flip(id, revision, update) => {
                self.history.seen.flips += 1;
                self.send_routes(id, Some(revision), update.desired, update.existing);
            }
            Action::RepairRoute(id, update) => {
                self.history.seen.repairs += 1;
                self.send_routes(id, None, update.desired, update.existing);
            }
            Action::RemoveRoutes(id, routes) => self.remove_routes(routes, Whose::Policy(id)),
            Action::RemoveServerRoutes(server, routes) => {
                self.remove_routes(routes, Whose::Server(server))
            }
            Action::RemoveOrphans(routes) => {
                self.history.seen.orphans += 1;
                self.remove_routes(routes, Whose::Nobody);
            }
            Action::SetFinalizer(kind, meta, present) => {
                self.send(Job::Finalizer(kind, meta, present))
            }
            Action::RollBack { key, meta, target } => {
                self.send(Job::RollBack { key, meta, target })
            }
            Action::WriteStatus(target, update) => self.submit_status(target, update)?,
            Action::RecordEvent(event) => {
                if let EventKind::Revision(RevisionIncident::Lost, _) = event.what {
                    self.history.lost.insert(event.key.clone());
                }
            }
            Action::DeletePod(meta) => self.send(Job::DeletePod(meta)),
            Action::ApplyServer(server, replicas) => self.send(Job::Apply(server, *replicas)),
            Action::DeleteServer(meta) => self.send(Job::DeleteServer(meta)),
            Action::AddServer(server) => {
                self.process.as_mut().unwrap().servers.insert(server);
            }
            Action::RemoveServer(server) => self.end_streams(&server),
            Action::Publish(server, snapshot) => self.publish(&server, snapshot)?,
            // No policy has settings from Secrets or reads objects of the cluster.
            Action::CheckSettings(_)
            | Action::TakeSettings { .. }
            | Action::FollowKinds(_)
            | Action::FollowCollections(_)
            | Action::AssignCollections(_)
            | Action::AnswerRollback(..)
            | Action::VerifySignature(_)
            | Action::SetSynced
            | Action::Measure(_) => {}
        }
        Ok(())
    }

    /// A request is on its way.
    pub(crate) fn send(&mut self, job: Job) {
        let epoch = self.epoch;
        let slow = !self.is_healed() && self.rng.percent(5);
        let to = if slow { 6_000 } else { 150 };
        self.within(
            1,
            to,
            Happening::Land {
                epoch,
                job: Box::new(job),
            },
        );
    }

    fn send_routes(
        &mut self,
        id: assent_core::rollout::PolicyId,
        flip: Option<assent_core::RevisionId>,
        desired: Vec<crate::backend::Configuration>,
        existing: Vec<crate::backend::Route>,
    ) {
        let steps = Step::plan(&existing, &desired);
        self.send(Job::Write {
            id,
            flip,
            desired,
            existing,
            steps,
            changes: Vec::new(),
        });
    }

    fn remove_routes(&mut self, routes: Vec<crate::backend::Route>, whose: Whose) {
        self.send(Job::Remove {
            routes,
            next: 0,
            whose,
        });
    }

    fn write_phase(&mut self, id: assent_core::rollout::PolicyId, write: PhaseWrite) {
        let phases = &mut self.process.as_mut().unwrap().phases;
        let waiting = phases.entry(id.clone()).or_default();
        waiting.push_back(write.clone());
        if waiting.len() == 1 {
            self.send(Job::Phase(id, write));
        }
    }

    /// Fetches and vets a module; the tag may name another module each time.
    fn vet(&mut self, job: &VetJob) {
        let vetting = &mut self.process.as_mut().unwrap().vetting;
        vetting.insert(job.id.clone(), job.generation);
        let content = self.content_of(&job.settings);
        let result = match content {
            _ if self.now < self.faults.registry => {
                Err(Failure::temporary("the registry does not answer"))
            }
            Content::Invalid => Err(Failure::invalid("does not compile")),
            _ => Ok(self.module(job)),
        };
        let outcome = Box::new(Outcome::Vetted {
            id: job.id.clone(),
            generation: job.generation,
            result,
        });
        let epoch = self.epoch;
        self.within(10, 3_000, Happening::Outcome { epoch, outcome });
    }

    fn module(&mut self, job: &VetJob) -> Module {
        let moved = self.rng.below(3);
        let bytes = format!("{} {moved}", job.url);
        Module {
            digest: job.pinned.unwrap_or_else(|| Digest::of(bytes.as_bytes())),
            size: 7,
            abi: "wapc".into(),
            host_capabilities: Vec::new(),
            signer: None,
            secret_settings: None,
            url: job.url.clone(),
        }
    }

    /// What becomes of a policy with these settings.
    pub(crate) fn content_of(&self, settings: &[u8]) -> Content {
        let settings: Value = serde_json::from_slice(settings).unwrap();
        let n = settings["n"].as_u64().unwrap();
        self.contents[usize::try_from(n).unwrap()]
    }

    fn note_action(&mut self, action: &Action<Cluster>) {
        let Some(text) = describe(action) else {
            return;
        };
        self.note(|| format!("  > {text}"));
        self.process.as_mut().unwrap().last_action = Some((self.now, text));
    }
}

/// An action in words; `None` for what follows from others.
fn describe(action: &Action<Cluster>) -> Option<String> {
    Some(match action {
        Action::Vet(job) => format!("vet {} {}", job.id.key, job.generation),
        Action::CancelVet(id) => format!("cancel vetting {}", id.key),
        Action::FetchModule(fetch) => format!("fetch {}", fetch.url),
        Action::StoreRevision(store) => format!("store {}", store.policy.revision),
        Action::RestoreRevision(restore) => format!("restore {}", restore.revision),
        Action::SetPhase(_, revision, phase) => format!("{revision} becomes {phase:?}"),
        Action::RetireRevision { revision, keep, .. } => format!("retire {revision}, keep {keep}"),
        Action::DeleteRevisions(_, names) => format!("delete history {names:?}"),
        Action::CheckReplicas { to, .. } => format!("check replicas for {}", to.revision),
        Action::Flip(_, revision, _) => format!("flip to {revision}"),
        Action::RepairRoute(id, update) => {
            format!("repair {}: {} exist", id.key, update.existing.len())
        }
        Action::RemoveRoutes(id, routes) => format!("remove {} routes of {}", routes.len(), id.key),
        Action::RemoveServerRoutes(server, routes) => {
            format!("remove {} routes of server {server}", routes.len())
        }
        Action::RemoveOrphans(routes) => format!("remove {} orphans", routes.len()),
        Action::SetFinalizer(kind, meta, true) => {
            format!("add finalizer to {kind:?} {}", meta.name)
        }
        Action::SetFinalizer(kind, meta, false) => {
            format!("remove finalizer of {kind:?} {}", meta.name)
        }
        Action::RollBack { key, target, .. } => {
            format!(
                "roll back {key} to {:?}",
                target.as_ref().map(|t| t.generation)
            )
        }
        Action::RecordEvent(event) => match &event.what {
            EventKind::Condition(_) => return None,
            what => format!("event {what:?}"),
        },
        Action::DeletePod(meta) => format!("delete pod {}", meta.name),
        Action::ApplyServer(server, _) => format!("apply {server}"),
        Action::DeleteServer(meta) => format!("delete server {}", meta.name),
        Action::AddServer(server) => format!("accept streams for {server}"),
        Action::RemoveServer(server) => format!("end streams of {server}"),
        Action::Publish(server, snapshot) => {
            let routes = snapshot
                .routes()
                .map(|r| format!("{} {:?}", r.path, r.state));
            format!("publish to {server}: {:?}", routes.collect::<Vec<_>>())
        }
        Action::VerifySignature(_)
        | Action::CheckSettings(_)
        | Action::TakeSettings { .. }
        | Action::FollowKinds(_)
        | Action::FollowCollections(_)
        | Action::AssignCollections(_)
        | Action::AnswerRollback(..)
        | Action::WriteStatus(..)
        | Action::SetSynced
        | Action::Measure(_) => return None,
    })
}
