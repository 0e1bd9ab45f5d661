//! Settings that come from Secrets: whether their values changed since a generation was accepted.
//!
//! A revision has the values that it was made with, and depends on no Secret afterwards. So
//! this only decides when a new generation is needed, and what is reported meanwhile.

use assent_core::{
    RevisionId,
    condition::{Condition, Reason},
    rollout::{Acceptance, PolicyId},
    status::PolicyStatus,
};
use tracing::{info, warn};

use super::Controller;
use crate::{
    action::{Action, CheckSettings, EventKind, PolicyEvent},
    backend::Backend,
    objects::PolicyObject,
};

impl<B: Backend> Controller<B> {
    /// Has the Secrets of accepted policies read again. A refused one is retried anyway.
    pub(super) fn check_all_settings(&mut self) {
        let policies = self.objects.policies().filter(|o| !o.meta.deleting);
        let checks = policies.filter_map(|object| self.settings_check(object));
        let checks: Vec<_> = checks.collect();
        self.actions.extend(checks);
    }

    fn settings_check(&self, object: &PolicyObject) -> Option<Action<B>> {
        let parsed = object.parsed.as_ref().ok()?;
        if parsed.settings_from.is_empty() {
            return None;
        }
        let id = object.id();
        let rollout = self.plane.rollout_of(&id)?;
        let accepted = *rollout.acceptance() == Acceptance::Accepted
            && rollout.has_revision_of(object.meta.generation);
        accepted.then(|| {
            Action::CheckSettings(Box::new(CheckSettings {
                id,
                generation: object.meta.generation,
                settings: parsed.settings.clone(),
                settings_from: parsed.settings_from.clone(),
            }))
        })
    }

    pub(super) fn settings_checked(
        &mut self,
        id: &PolicyId,
        generation: i64,
        result: Result<String, String>,
    ) {
        let object = self.living(id).filter(|o| o.meta.generation == generation);
        let Some(object) = object.cloned() else {
            return;
        };
        self.dirty.policies.insert(id.key.clone());
        let version = match result {
            Ok(version) => version,
            Err(why) => {
                warn!(policy = %id.key, "keeping the settings that are in force: {why}");
                self.unavailable_settings
                    .insert(id.clone(), (generation, why));
                return;
            }
        };
        self.unavailable_settings.remove(id);
        let revision = RevisionId::new(&id.key, generation, &id.uid);
        // Nothing is known of a revision that cannot be decrypted: a new one replaces it.
        let known = self.spec_of(id, &revision);
        let known = known.and_then(|spec| spec.settings_version.as_ref());
        if known == Some(&version) {
            return;
        }
        info!(policy = %id.key, generation, "a value of settingsFrom changed; making a new generation");
        let event = PolicyEvent {
            key: id.key.clone(),
            meta: object.meta.clone(),
            what: EventKind::SettingsChanged,
        };
        self.actions.push(Action::RecordEvent(Box::new(event)));
        self.actions.push(Action::TakeSettings {
            kind: object.kind(),
            meta: object.meta.clone(),
            // With the generation, because values may change back: an equal text would not
            // make a new generation.
            version: format!("{generation}.{version}"),
        });
    }

    /// Reports at `Enforced` that a Secret cannot be read. The revision stays enforced.
    pub(super) fn report_settings(&self, id: &PolicyId, status: &mut PolicyStatus) {
        let unavailable = self.unavailable_settings.get(id);
        // What was found out about an earlier generation says nothing about this one.
        let unavailable = unavailable.filter(|(g, _)| *g == status.observed_generation);
        let Some((_, why)) = unavailable else {
            return;
        };
        let conditions = status.conditions.iter_mut();
        for enforced in conditions.filter(|c| c.reason == Reason::Enforced) {
            let message = format!(
                "{}, with the settings that it was made with: {why}",
                enforced.message
            );
            let (kind, status) = (enforced.kind, enforced.status);
            *enforced = Condition::new(kind, status, Reason::SettingsUnavailable, message);
        }
    }
}
