//! The collections that a standby follows.

use std::collections::BTreeMap;

use assent_api::revision::Phase;
use assent_core::{Millis, policy::DEFAULT_SERVER, rollout::PolicyId};

use super::{ContextEvent, Contexts, FollowedCollection, KindRef, LINGER, Need};
use crate::objects::RevisionObject;

/// The collections of stored revisions. A standby decides nothing: it follows what revisions
/// name that are not history, so that a process that leads finds their objects in memory.
#[derive(Debug, Default)]
pub struct WarmContexts {
    contexts: Contexts,
    needs: BTreeMap<PolicyId, Need>,
    /// Passes with every look: what nobody names is kept until the next one.
    at: Millis,
}

// === impl WarmContexts ===

impl WarmContexts {
    /// Takes in what is stored.
    pub fn set_revisions<'a>(&mut self, revisions: impl Iterator<Item = &'a RevisionObject>) {
        let mut needs: BTreeMap<PolicyId, Need> = BTreeMap::new();
        for revision in revisions.filter(|r| r.phase != Phase::History) {
            let (Some(key), Ok(policy)) = (&revision.key, &revision.policy) else {
                continue;
            };
            let declared = &policy.content.context_resources;
            if declared.is_empty() {
                continue;
            }
            let id = PolicyId {
                key: key.clone(),
                uid: revision.policy_uid.as_str().into(),
            };
            let need = needs.entry(id).or_default();
            // Who gets a collection is of no interest here.
            DEFAULT_SERVER.clone_into(&mut need.server);
            need.served.extend(declared.iter().cloned());
        }
        for id in self.needs.keys().filter(|id| !needs.contains_key(*id)) {
            self.contexts.set_need(id, None);
        }
        for (id, need) in &needs {
            self.contexts.set_need(id, Some(need.clone()));
        }
        self.needs = needs;
    }

    /// Takes in what became of a kind or a collection.
    pub fn observe(&mut self, event: ContextEvent) {
        match event {
            ContextEvent::Kind(kind, state) => drop(self.contexts.observe_kind(&kind, state)),
            ContextEvent::Collection(id, report) => {
                self.contexts.observe_collection(&id, report);
            }
        }
    }

    /// What is to be followed, as far as that changed.
    pub fn settle(&mut self) -> (Option<Vec<KindRef>>, Option<Vec<FollowedCollection>>) {
        self.at = self.at + 2 * LINGER;
        let changes = self.contexts.settle(self.at);
        (changes.kinds, changes.collections)
    }
}
