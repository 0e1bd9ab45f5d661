//! Phases of revisions, written in order for each policy.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use assent_api::revision::Phase;
use assent_controller::{Kind, Outcome};
use assent_core::{RevisionId, rollout::PolicyId};

use super::{Context, revisions, until_done};
use crate::{backend::Cluster, failpoint::failpoint, revision};

/// One write.
#[derive(Debug)]
pub(super) enum PhaseWrite {
    /// Record a phase.
    Set(RevisionId, Phase),
    /// Record that it is history (true), or delete it.
    Retire(RevisionId, bool),
}

/// Writes that wait, by policy. A policy has an entry while somebody performs its writes.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseWrites(Arc<Mutex<HashMap<PolicyId, VecDeque<PhaseWrite>>>>);

// === impl PhaseWrites ===

impl PhaseWrites {
    /// Adds a write; true if nobody performs the writes of this policy yet.
    pub(super) fn push(&self, id: &PolicyId, write: PhaseWrite) -> bool {
        let mut waiting = self.lock();
        let is_first = !waiting.contains_key(id);
        waiting.entry(id.clone()).or_default().push_back(write);
        is_first
    }

    /// The next write of a policy; its entry goes with the last one.
    pub(super) fn next(&self, id: &PolicyId) -> Option<PhaseWrite> {
        let mut waiting = self.lock();
        let next = waiting.get_mut(id)?.pop_front();
        if next.is_none() {
            waiting.remove(id);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyId, VecDeque<PhaseWrite>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Performs one write. A phase that got lost would make the next leader delete a revision that
/// can be rolled back to, so it is retried.
pub(super) async fn perform(
    context: &Context,
    id: &PolicyId,
    write: PhaseWrite,
) -> Option<Outcome<Cluster>> {
    match write {
        PhaseWrite::Set(revision, phase) => {
            let (namespace, name) = revision::full_name(&id.key, &revision, &context.namespace);
            let stored = until_done(context, "store the phase of a revision", || {
                revisions::set_phase(context, &namespace, &name, phase)
            })
            .await;
            let object = stored.and_then(|o| context.converter.object(Kind::Revisions, o));
            let object = object.map(Box::new);
            Some(Outcome::PhaseSet(id.clone(), revision, object))
        }
        PhaseWrite::Retire(revision, keep) => {
            failpoint("retire.before");
            let (namespace, name) = revision::full_name(&id.key, &revision, &context.namespace);
            until_done(context, "retire a revision", || async {
                match keep {
                    true => revisions::set_phase(context, &namespace, &name, Phase::History)
                        .await
                        .map(drop),
                    false => revisions::delete(context, &namespace, &name, None).await,
                }
            })
            .await;
            failpoint("retire.after");
            Some(Outcome::Retired(id.clone(), revision))
        }
    }
}
