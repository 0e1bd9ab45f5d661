//! Revisions that are no longer pointed at: retired, kept, removed; and modules that stored
//! revisions name.

use assent_api::revision::Phase;
use assent_core::{
    Digest, PolicyKey, RevisionId,
    plane::Event,
    rollout::{Input, PolicyId},
};
use assent_k8s::index::RevisionEntry;
use tracing::info;

use super::Machine;
use crate::cluster::{
    deed::{Deed, Fetch},
    sources::References,
};

impl Machine {
    /// Stores a revision as history. One that was never active is no history to go back to.
    pub(super) fn retire(&mut self, id: PolicyId, revision: RevisionId) {
        let keep = self
            .index
            .revisions(&id.key, &id.uid)
            .find(|r| r.short() == Some(revision.short()))
            .is_some_and(|r| r.phase != Phase::Candidate);
        self.deeds.push(Deed::Retire { id, revision, keep });
    }

    pub(super) fn retired(&mut self, id: PolicyId, revision: RevisionId) {
        let key = id.key.clone();
        self.drive
            .apply(Event::Policy(id, Input::Retired(revision)));
        self.trim_history(&key);
    }

    /// Removes the oldest history beyond what the policy keeps.
    pub(super) fn trim_history(&mut self, key: &PolicyKey) {
        let Some(entry) = self.index.policy(key) else {
            return;
        };
        let Ok(parsed) = &entry.parsed else { return };
        let own = self.index.revisions(key, &entry.meta.uid);
        let own = own.filter(|r| r.phase == Phase::History && !r.meta.deleting);
        let mut history: Vec<(i64, &RevisionEntry)> = own
            .map(|r| (r.policy.as_ref().map_or(0, |p| p.generation), r))
            .collect();
        history.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        let old = history.into_iter().skip(parsed.history_limit);
        let old: Vec<(String, String)> = old
            .map(|(_, r)| (r.meta.namespace.clone(), r.meta.name.clone()))
            .filter(|name| !self.dropping.contains(name))
            .collect();
        if !old.is_empty() {
            self.dropping.extend(old.iter().cloned());
            self.deeds.push(Deed::DropRevisions(old));
        }
    }

    /// A revision was stored, changed or removed: history may be too long now.
    pub(super) fn check_revisions(&mut self, key: &PolicyKey) {
        self.trim_history(key);
    }

    /// Fetches modules that active and draining revisions name and the store lacks. Evaluators
    /// that hold them go on; one that starts meanwhile waits.
    pub(super) fn restore_modules(&mut self) {
        let rollouts = self.drive.plane.rollouts();
        let entries: Vec<(String, Digest, RevisionId)> = rollouts
            .flat_map(|(server, r)| r.entries().map(|(p, _)| (server.to_string(), p.clone())))
            .map(|(server, p)| (server, p.content.module_digest, p.revision.clone()))
            .filter(|(_, digest, _)| !self.modules.contains(digest))
            .collect();
        for (server, digest, revision) in entries {
            if !self.modules.insert(digest) {
                continue;
            }
            let mut all = self.index.all_revisions();
            let found = all.find(|r| r.policy.as_ref().is_ok_and(|p| p.revision == revision));
            let url = found.and_then(|r| Some(r.object.as_ref()?.spec.module_url.clone()));
            let Some(url) = url else { continue };
            info!(%revision, %digest, "the module is not here and is fetched again");
            let server = self.index.server(&server);
            let server = server.and_then(|s| s.parsed.as_ref().ok());
            let fetch = Fetch {
                url,
                digest,
                sources: References::of(server),
                reach: self.options.reach,
            };
            self.deeds.push(Deed::Fetch(fetch));
        }
    }
}
