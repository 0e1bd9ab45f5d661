//! What namespaces may have: which PolicyServers their policies may name, and how many policies
//! there may be.
//!
//! Admission answers the same questions when a policy is written. Here they are answered again
//! and for good: a policy may be older than the rule, admission may have been unavailable, and
//! two policies that are created at once do not see each other. A permission that is withdrawn
//! ends no protection: the active revision stays, and nothing new becomes active.

use std::collections::BTreeMap;

use assent_api::tenancy::{self, NAMESPACE_NAME_LABEL};
use assent_core::rollout::{Acceptance, Refusal, RefusalReason};

use super::Controller;
use crate::{
    backend::Backend,
    objects::{Kind, PolicyObject},
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Why the policy's namespace may not have it.
    pub(super) fn permission_refusal(&self, object: &PolicyObject) -> Option<Refusal> {
        let namespace = object.key.namespace()?;
        let exceeds = self.exceeds_quota(namespace) && {
            let max = self.config.max_policies_per_namespace.unwrap_or(usize::MAX);
            let mut oldest = self.objects.policies_in(namespace).take(max);
            !oldest.any(|key| *key == object.key)
        };
        self.refusal_in(namespace, object, exceeds)
    }

    /// Validates the policies of a namespace whose permission changed: its labels did, or a
    /// policy came or went and others took over its place in the quota.
    pub(super) fn recheck_namespace(&mut self, now: Now, namespace: &str) {
        let max = self.config.max_policies_per_namespace.unwrap_or(usize::MAX);
        let policies = self.objects.policies_in(namespace).enumerate();
        let policies = policies.filter_map(|(rank, key)| {
            let object = self.objects.policy(key)?;
            let refusal = self.refusal_in(namespace, object, rank >= max);
            let outdated = self.refused_permission(object) != refusal.map(|r| r.reason);
            outdated.then(|| object.clone())
        });
        let outdated: Vec<PolicyObject> = policies.collect();
        for object in outdated {
            self.validate(now, &object.id(), &object);
        }
        match self.exceeds_quota(namespace) {
            true => self.over_quota.insert(namespace.to_owned()),
            false => self.over_quota.remove(namespace),
        };
    }

    /// The same after one of its policies changed, which matters to the others only if there
    /// are or were too many.
    pub(super) fn recheck_quota(&mut self, now: Now, namespace: &str) {
        if self.over_quota.contains(namespace) || self.exceeds_quota(namespace) {
            self.recheck_namespace(now, namespace);
        }
    }

    /// The permission that the policy was found to lack last.
    pub(super) fn refused_permission(&self, object: &PolicyObject) -> Option<RefusalReason> {
        let rollout = self.plane.rollout_of(&object.id())?;
        match rollout.acceptance() {
            Acceptance::Refused(refusal) => {
                Some(refusal.reason).filter(|reason| reason.is_permission())
            }
            _ => None,
        }
    }

    fn exceeds_quota(&self, namespace: &str) -> bool {
        let max = self.config.max_policies_per_namespace;
        max.is_some_and(|max| self.objects.count_policies_in(namespace) > max)
    }

    fn refusal_in(
        &self,
        namespace: &str,
        object: &PolicyObject,
        exceeds_quota: bool,
    ) -> Option<Refusal> {
        let refusal = |reason, message| Some(Refusal { reason, message });
        if !self.server_allows(&object.server, namespace) {
            let message = tenancy::not_allowed(&object.server, namespace);
            return refusal(RefusalReason::NotAllowed, message);
        }
        if exceeds_quota {
            let max = self.config.max_policies_per_namespace.unwrap_or_default();
            let message = tenancy::quota_exceeded(namespace, max);
            return refusal(RefusalReason::QuotaExceeded, message);
        }
        None
    }

    /// A server that is missing or invalid allows whatever it allowed before: policies report
    /// that instead.
    fn server_allows(&self, server: &str, namespace: &str) -> bool {
        let Some(Ok(parsed)) = self.objects.server(server).map(|s| &s.parsed) else {
            return true;
        };
        let spec = parsed.as_deref().map(|parsed| &parsed.spec);
        let name_only;
        let labels = match self.config.kinds.contains(&Kind::Namespaces) {
            true => self.objects.namespace_labels(namespace),
            // Without a cluster a namespace is nothing but its name.
            false => {
                let label = (NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned());
                name_only = BTreeMap::from([label]);
                Some(&name_only)
            }
        };
        tenancy::allows_policies(server, spec, namespace, labels)
    }
}
