//! Rollbacks: which revision, and who waits for the result.

use std::collections::BTreeSet;

use assent_api::{Parsed, PolicyRevisionSpec, parse::Rollback, revision::Phase};
use assent_core::PolicyKey;
use tracing::{info, warn};

use super::Controller;
use crate::{
    action::{Action, EventKind, PolicyEvent, RollbackError, RollbackResult, RollbackTarget},
    backend::Backend,
    objects::{PolicyObject, RevisionObject},
    revision,
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Rolls a policy back; the request `ticket` is answered with the generation that was
    /// copied and the new one. Requests that come while a rollback runs share its answer.
    pub fn request_rollback(
        &mut self,
        now: Now,
        key: &PolicyKey,
        to: Rollback,
        ticket: Option<u64>,
    ) {
        if let Some(waiting) = self.rollbacks.get_mut(key) {
            waiting.extend(ticket);
            return;
        }
        let object = self.objects.policy(key).filter(|o| !o.meta.deleting);
        let Some(object) = object else {
            if let Some(ticket) = ticket {
                let error = RollbackError::NotFound(format!("there is no policy {key}"));
                self.actions
                    .push(Action::AnswerRollback(ticket, Err(error)));
            }
            return;
        };
        let target = self.rollback_target(object, to);
        let action = Action::RollBack {
            key: key.clone(),
            meta: object.meta.clone(),
            target,
        };
        self.rollbacks
            .insert(key.clone(), ticket.into_iter().collect());
        self.actions.push(action);
        let _ = now;
    }

    pub(super) fn rolled_back(&mut self, now: Now, key: &PolicyKey, result: RollbackResult<B>) {
        let waiting = self.rollbacks.remove(key).unwrap_or_default();
        let result = result.map(|(from, object)| {
            let generation = object.meta().generation;
            // The annotation is gone now, not when a watch reports it.
            let affected = self.objects.insert(*object);
            self.handle(now, affected);
            (from, generation)
        });
        let what = match &result {
            Ok((from, generation)) => {
                info!(policy = %key, from, generation, "rolled back");
                EventKind::RolledBack {
                    from: *from,
                    generation: *generation,
                }
            }
            Err(why) => {
                warn!(policy = %key, "not rolled back: {why}");
                EventKind::RollbackRejected(why.clone())
            }
        };
        if let Some(object) = self.objects.policy(key) {
            let event = PolicyEvent {
                key: key.clone(),
                meta: object.meta.clone(),
                what,
            };
            self.actions.push(Action::RecordEvent(Box::new(event)));
        }
        for ticket in waiting {
            let result = result.clone().map_err(RollbackError::Rejected);
            self.actions.push(Action::AnswerRollback(ticket, result));
        }
    }

    /// Whoever asked for the rollback was allowed to read the Secrets of the policy as it is, and was not asked
    /// about others.
    fn check_secrets(
        &self,
        object: &PolicyObject,
        target: &PolicyRevisionSpec,
    ) -> Result<(), String> {
        let secrets = |parsed: &Parsed| -> BTreeSet<String> {
            let sources = parsed.settings_from.iter();
            sources.map(|s| s.secret_key_ref.name.clone()).collect()
        };
        let target = revision::parsed(&object.key, target, &self.config.parse)?;
        let known = object.parsed.as_ref().map(secrets).unwrap_or_default();
        match secrets(&target).difference(&known).next() {
            None => Ok(()),
            Some(name) => Err(format!(
                "the earlier revision has settings from the Secret {name}, which the policy does not name now; \
                 apply the earlier manifest instead, so that it is checked whether you may read that Secret"
            )),
        }
    }

    /// The revision to roll back to. "Previous" is the revision that was active before the one
    /// that is active now, whatever candidate is pending. Only a revision that was active is a
    /// target: a candidate was never shown to work.
    fn rollback_target(
        &self,
        object: &PolicyObject,
        to: Rollback,
    ) -> Result<RollbackTarget, String> {
        let active = self.routed_revision(object);
        let known = self.objects.revisions(&object.key, &object.meta.uid);
        let mut known: Vec<(i64, &RevisionObject)> = known
            .filter_map(|r| Some((r.policy.as_ref().ok()?.generation, r)))
            .collect();
        known.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        let is_active = |r: &RevisionObject| {
            let own = r.policy.as_ref().ok().map(|p| &p.revision);
            own.is_some() && own == active.as_ref()
        };
        let was_active = |r: &RevisionObject| r.phase != Phase::Candidate || is_active(r);
        let current = known.iter().find(|(_, r)| is_active(r)).map(|(g, _)| *g);
        let found = known.iter().find(|(generation, r)| {
            let wanted = match to {
                Rollback::Generation(wanted) => *generation == wanted,
                Rollback::Previous => current.is_some_and(|current| *generation < current),
            };
            wanted && was_active(r)
        });
        let rejected = || match to {
            Rollback::Previous => "there is no earlier revision to roll back to".to_owned(),
            Rollback::Generation(n) => {
                let kept: Vec<String> = known
                    .iter()
                    .filter(|(_, r)| was_active(r))
                    .map(|(generation, _)| generation.to_string())
                    .collect();
                match kept.is_empty() {
                    true => format!("there is no revision of generation {n} to roll back to"),
                    false => format!(
                        "there is no revision of generation {n} to roll back to; there are: {}",
                        kept.join(", ")
                    ),
                }
            }
        };
        let (generation, found) = found.ok_or_else(rejected)?;
        let spec = found.spec.as_ref().ok_or("the revision cannot be read")?;
        self.check_secrets(object, spec)?;
        Ok(RollbackTarget {
            generation: *generation,
            spec: spec.policy.clone(),
            module_url: spec.module_url.clone(),
            module_digest: spec.module_digest.clone(),
        })
    }
}
