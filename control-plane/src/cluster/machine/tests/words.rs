//! Deeds as people read them.

use assent_k8s::webhook;
use kube::core::DynamicObject;

use crate::cluster::deed::Deed;

/// A deed in words.
pub(super) fn words(deed: &Deed) -> String {
    let names = |present: &[(webhook::Kind, DynamicObject)]| {
        let names = present.iter().filter_map(|(_, o)| o.metadata.name.clone());
        names.collect::<Vec<_>>().join(" ")
    };
    match deed {
        Deed::Vet(job, ..) => format!("vet {} {}", job.id.key.name(), job.generation),
        Deed::Fetch(fetch) => format!("fetch {}", fetch.url),
        Deed::Store { id, policy, .. } => {
            format!("store {} {}", id.key.name(), policy.generation)
        }
        Deed::ReadPods { id, to, .. } => format!("pods for {} {}", id.key.name(), to.generation),
        Deed::Flip(id, to, _) => format!("flip {} {}", id.key.name(), number(to.short())),
        Deed::Repair(key, _) => format!("repair {}", key.name()),
        Deed::Unroute(id, present) => format!("unroute {}: {}", id.key.name(), names(present)),
        Deed::UnrouteServer(server, present) => {
            format!("unroute server {server}: {}", names(present))
        }
        Deed::RemoveOrphans(present) => format!("remove orphans: {}", names(present)),
        Deed::Retire { id, revision, keep } => {
            let how = if *keep { "keep" } else { "drop" };
            format!(
                "retire {} {}: {how}",
                id.key.name(),
                number(revision.short())
            )
        }
        Deed::SetPhase(key, revision, phase) => {
            format!("{} {} is {phase}", key.name(), number(revision.short()))
        }
        Deed::DropRevisions(revisions) => {
            let names: Vec<&str> = revisions.iter().map(|(_, name)| name.as_str()).collect();
            format!("drop {}", names.join(" "))
        }
        Deed::Hold(_, meta, true) => format!("hold {}", meta.name),
        Deed::Hold(_, meta, false) => format!("release {}", meta.name),
        Deed::RollBack { key, target, .. } => match target {
            Ok((from, _)) => format!("roll {} back to {from}", key.name()),
            Err(why) => format!("do not roll {} back: {why}", key.name()),
        },
        Deed::DeletePod(meta) => format!("delete pod {}", meta.name),
        Deed::ApplyServer(server, _) => format!("apply server {server}"),
        Deed::EndServer(meta) => format!("end server {}", meta.name),
    }
}

/// The generation out of `<generation>-<uid8>`.
fn number(short: &str) -> &str {
    short.split('-').next().unwrap()
}
