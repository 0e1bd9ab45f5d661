//! Actions in words, so that a script reads as a list.

use assent_controller::{Action, Backend, objects::RouteObject};
use assent_core::RevisionId;

/// An action in words; `None` for what follows from others (statuses, events, metrics, streams).
pub(crate) fn describe<B: Backend>(action: &Action<B>) -> Option<String> {
    Some(match action {
        Action::Vet(job) => format!("vet {} {}", job.id.key.name(), job.generation),
        Action::CancelVet(id) => format!("cancel vetting {}", id.key.name()),
        Action::FetchModule(fetch) => format!("fetch {}", fetch.url),
        Action::VerifySignature(check) => {
            let name = check.id.key.name();
            format!("verify {name} {}", generation(&check.revision))
        }
        Action::CheckSettings(check) => {
            let (name, generation) = (check.id.key.name(), check.generation);
            format!("check settings of {name} {generation}")
        }
        Action::TakeSettings { meta, .. } => format!("take settings of {}", meta.name),
        Action::StoreRevision(store) => {
            let (name, generation) = (store.id.key.name(), store.policy.generation);
            format!("store {name} {generation}")
        }
        Action::RestoreRevision(restore) => {
            let name = restore.id.key.name();
            format!("restore {name} {}", generation(&restore.revision))
        }
        Action::SetPhase(id, revision, phase) => {
            format!("{} {} is {phase:?}", id.key.name(), generation(revision))
        }
        Action::RetireRevision { id, revision, keep } => {
            let how = if *keep { "keep" } else { "delete" };
            format!("retire {} {}: {how}", id.key.name(), generation(revision))
        }
        Action::DeleteRevisions(id, names) => {
            format!("delete {} revisions of {}", names.len(), id.key.name())
        }
        Action::CheckReplicas { id, to, .. } => {
            format!("check replicas for {} {}", id.key.name(), to.generation)
        }
        Action::Flip(id, to, _) => format!("flip {} {}", id.key.name(), generation(to)),
        Action::RepairRoute(id, _) => format!("repair {}", id.key.name()),
        Action::RemoveRoutes(id, routes) => {
            format!("remove routes of {}: {}", id.key.name(), keys(routes))
        }
        Action::RemoveServerRoutes(server, routes) => {
            format!("remove routes of server {server}: {}", keys(routes))
        }
        Action::RemoveOrphans(routes) => format!("remove orphans: {}", keys(routes)),
        Action::SetFinalizer(_, meta, true) => format!("add finalizer to {}", meta.name),
        Action::SetFinalizer(_, meta, false) => format!("remove finalizer of {}", meta.name),
        Action::RollBack { key, target, .. } => match target {
            Ok(target) => format!("roll {} back to {}", key.name(), target.generation),
            Err(why) => format!("do not roll {} back: {why}", key.name()),
        },
        Action::DeletePod(meta) => format!("delete pod {}", meta.name),
        Action::ApplyServer(server, _) => format!("apply server {server}"),
        Action::DeleteServer(meta) => format!("delete server {}", meta.name),
        Action::AnswerRollback(..)
        | Action::WriteStatus(..)
        | Action::RecordEvent(_)
        | Action::AddServer(_)
        | Action::RemoveServer(_)
        | Action::Publish(..)
        | Action::SetSynced
        | Action::FollowKinds(_)
        | Action::FollowCollections(_)
        | Action::AssignCollections(_)
        | Action::Measure(_) => return None,
    })
}

fn keys<E>(routes: &[RouteObject<E>]) -> String {
    let names: Vec<&str> = routes.iter().map(|route| route.key.name()).collect();
    names.join(" ")
}

/// The generation out of `<generation>-<uid8>`.
fn generation(revision: &RevisionId) -> &str {
    revision.short().split('-').next().unwrap()
}
