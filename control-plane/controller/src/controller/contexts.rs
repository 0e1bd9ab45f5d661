//! Objects of the cluster that policies read: who may read them, and when they are there.

use std::collections::BTreeSet;

use assent_api::{Parsed, parse::Module, server::PolicyServerSpec};
use assent_core::{
    PolicyKey,
    policy::ContextResource,
    rollout::{Acceptance, PolicyId, Refusal, Rollout},
};
use tracing::{info, warn};

use super::Controller;
use crate::{
    action::{Action, Failure},
    backend::Backend,
    contexts::{self, CollectionReport, CollectionState, ContextEvent, KindRef, KindState, Need},
    objects::PolicyObject,
    server::granted_capabilities,
    view::Now,
};

/// Whether the collections of a generation are there.
pub(super) enum ContextReadiness {
    Ready,
    Waiting,
    Refused(Failure),
}

impl<B: Backend> Controller<B> {
    /// A kind or a collection changed.
    pub fn context(&mut self, now: Now, event: ContextEvent) {
        match event {
            ContextEvent::Kind(kind, state) => {
                if self.contexts.observe_kind(&kind, state) {
                    info!(kind = %kind, state = ?self.contexts.kind(&kind), "looked up a kind");
                    let ids = self.contexts.needing_kind(&kind);
                    self.context_changed(now, ids);
                }
            }
            ContextEvent::Collection(id, report) => {
                let state = report.state;
                let detail = report.detail.clone();
                let news = self.contexts.observe_collection(&id, report);
                self.dirty.servers.extend(self.contexts.servers_with(&id));
                if news {
                    if state > CollectionState::Synced {
                        warn!(collection = %id, state = state.as_str(), "objects that policies read are not current: {detail}");
                    }
                    let ids = self.contexts.needing_collection(&id);
                    self.context_changed(now, ids);
                }
            }
        }
    }

    /// Brings everything up to date with the needs of policies that changed, and asks for what
    /// must be followed.
    pub(super) fn settle_contexts(&mut self, now: Now) {
        for key in std::mem::take(&mut self.dirty.contexts) {
            self.update_needs(&key);
        }
        let changes = self.contexts.settle(now.at);
        let kinds = changes.kinds.map(Action::FollowKinds);
        let collections = changes.collections.map(Action::FollowCollections);
        self.actions.extend(kinds.into_iter().chain(collections));
        for assignment in changes.assignments {
            self.dirty.servers.insert(assignment.server.clone());
            let action = Action::AssignCollections(Box::new(assignment));
            self.actions.push(action);
        }
    }

    /// Why the policy may not read what it declares, as far as that is known.
    pub(super) fn context_refusal(
        &self,
        object: &PolicyObject,
        parsed: &Parsed,
    ) -> Option<Refusal> {
        if parsed.context_resources.is_empty() {
            return None;
        }
        if let Some(why) = self.config.no_context {
            return Some(contexts::no_context(why));
        }
        let server = self.objects.server(&object.server).and_then(|s| s.spec());
        let default = PolicyServerSpec::default();
        let access = server.map_or(&default, |s| &s.spec).context.clone();
        let access = access.unwrap_or_default();
        let namespaced = object.key.namespace().is_some();
        let grants = || {
            let granted = granted_capabilities(server, parsed);
            granted.iter().any(|call| call.starts_with("kubernetes/"))
        };
        if namespaced && !grants() {
            return Some(contexts::not_granted(&object.server));
        }
        parsed.context_resources.iter().find_map(|resource| {
            let kind = KindRef::of(resource);
            if !access.allows(&kind.api_version, &kind.kind) {
                return Some(contexts::kind_not_allowed(&kind, &object.server));
            }
            self.kind_refusal(&kind, resource, namespaced)
        })
    }

    /// Whether the collections of a generation are complete and small enough.
    pub(super) fn context_readiness(
        &self,
        object: &PolicyObject,
        parsed: &Parsed,
    ) -> ContextReadiness {
        let declared = &parsed.context_resources;
        let mut reports = Vec::with_capacity(declared.len());
        for resource in declared {
            let kind = KindRef::of(resource);
            let Some(report) = self.contexts.report(resource) else {
                return ContextReadiness::Waiting;
            };
            match report.state {
                CollectionState::Syncing => return ContextReadiness::Waiting,
                CollectionState::Absent => return refused(contexts::kind_absent(&kind)),
                CollectionState::Forbidden => {
                    return refused(contexts::not_readable(&kind, &report.detail));
                }
                CollectionState::TooLarge => {
                    return self.too_large(object, declared, (&kind, report), true);
                }
                CollectionState::Synced | CollectionState::Stale => {}
            }
            if !self.contexts.is_assigned(&object.server, resource) {
                reports.push((kind, report));
            }
        }
        let used = self.contexts.bytes_besides(&object.server, declared);
        let held: u64 = declared
            .iter()
            .filter_map(|r| self.contexts.report(r))
            .map(|r| r.bytes)
            .sum();
        let limit = self.contexts.limits(&object.server).memory_bytes;
        // What is served already stays, however large it has become.
        let largest = reports.into_iter().max_by_key(|(_, report)| report.bytes);
        match largest {
            Some((kind, report)) if used + held > limit => {
                self.too_large(object, declared, (&kind, report), false)
            }
            _ => ContextReadiness::Ready,
        }
    }

    /// The module is there, and the objects that the policy reads are not.
    pub(super) fn await_context(&mut self, id: &PolicyId, generation: i64, module: &Module) {
        self.awaiting_context
            .insert(id.clone(), (generation, module.clone()));
        self.dirty.contexts.insert(id.key.clone());
    }

    fn too_large(
        &self,
        object: &PolicyObject,
        declared: &[ContextResource],
        (kind, report): (&KindRef, &CollectionReport),
        given_up: bool,
    ) -> ContextReadiness {
        let server = &object.server;
        let limit = self.contexts.limits(server).memory_bytes;
        let used = self.contexts.bytes_besides(server, declared);
        refused(contexts::too_large(
            kind, report, server, limit, used, given_up,
        ))
    }

    fn kind_refusal(
        &self,
        kind: &KindRef,
        resource: &ContextResource,
        namespaced_policy: bool,
    ) -> Option<Refusal> {
        match self.contexts.kind(kind)? {
            KindState::Absent => Some(contexts::kind_absent(kind)),
            KindState::Served {
                namespaced: false, ..
            } if namespaced_policy => Some(contexts::cluster_scoped(kind)),
            KindState::Served {
                namespaced: false, ..
            } if !resource.namespaces.is_empty() => {
                Some(contexts::namespaces_of_cluster_kind(kind))
            }
            KindState::Served {
                forbidden: Some(why),
                ..
            } => Some(contexts::kind_forbidden(kind, why)),
            KindState::Served { .. } => None,
        }
    }

    /// Looks again at policies whose kinds or collections changed.
    fn context_changed(&mut self, now: Now, ids: Vec<PolicyId>) {
        for id in ids {
            self.dirty.policies.insert(id.key.clone());
            let Some(object) = self.living(&id).cloned() else {
                continue;
            };
            self.validate(now, &id, &object);
            if let Some((generation, module)) = self.awaiting_context.remove(&id) {
                self.vetted(now, &id, generation, Ok(module));
            }
        }
    }

    fn update_needs(&mut self, key: &PolicyKey) {
        let mut gone = self.contexts.ids_of(key);
        let needs: Vec<(PolicyId, Need)> = self
            .plane
            .rollouts_of_key(key)
            .map(|rollout| (rollout.id().clone(), self.need(rollout)))
            .collect();
        for (id, need) in needs {
            gone.retain(|other| *other != id);
            if need.prepared.is_empty() {
                self.awaiting_context.remove(&id);
            }
            self.contexts.set_need(&id, Some(need));
        }
        for id in gone {
            self.awaiting_context.remove(&id);
            self.contexts.set_need(&id, None);
        }
    }

    fn need(&self, rollout: &Rollout) -> Need {
        let id = rollout.id();
        let served = rollout.entries();
        let served = served.flat_map(|(policy, _)| &policy.content.context_resources);
        let object = self.living(id).filter(|_| !rollout.is_deleting());
        let parsed = object.and_then(|object| object.parsed.as_ref().ok());
        let declared = parsed
            .into_iter()
            .flat_map(|parsed| &parsed.context_resources);
        let declared: BTreeSet<ContextResource> = declared.cloned().collect();
        let prepared = match self.is_prepared(rollout) {
            true => declared.clone(),
            false => BTreeSet::new(),
        };
        Need {
            server: self.server_of(id),
            served: served.cloned().collect(),
            prepared,
            declared,
        }
    }

    /// Whether the newest generation may become a revision. One that was refused is listed again
    /// when it is vetted again.
    fn is_prepared(&self, rollout: &Rollout) -> bool {
        let (id, generation) = (rollout.id(), rollout.generation());
        let vetted =
            || self.jobs.is_running(id, generation) || self.awaiting_context.contains_key(id);
        let wanted = match rollout.acceptance() {
            Acceptance::Pending => true,
            Acceptance::Accepted => false,
            Acceptance::Refused(_) => vetted(),
        };
        wanted && !rollout.has_revision_of(generation)
    }
}

/// A refusal that is tried again: objects are deleted, limits are raised.
fn refused(refusal: Refusal) -> ContextReadiness {
    ContextReadiness::Refused(Failure {
        refusal,
        retryable: true,
    })
}
