//! Manifests and records as the objects that the controller decides on.

use std::{collections::BTreeMap, sync::Arc};

use assent_api::{Manifest, parse};
use assent_controller::{
    Change, Kind, Meta, Object,
    objects::{
        ObjectRef, PolicyObject, Problem, ProblemScope, RevisionObject, RouteObject, ServerObject,
    },
    revision,
};
use assent_core::{
    PolicyKey, RevisionId,
    policy::DEFAULT_SERVER,
    rollout::{PolicyId, Refusal, RefusalReason},
};
use uuid::Uuid;

use super::LocalApi;
use crate::{
    backend::ROUTES,
    decide::{self, Reason},
    state::{PolicyRecord, RevisionRecord},
};

/// The kinds of policies.
const POLICIES: [Kind; 4] = [
    Kind::ClusterPolicies,
    Kind::Policies,
    Kind::ClusterRequestPolicies,
    Kind::RequestPolicies,
];

// === impl LocalApi ===

impl LocalApi {
    /// All objects. If a policy was deleted and created again, only the new one is an object;
    /// nothing calls the old one after a restart.
    pub(super) fn list(&self) -> Vec<Change<()>> {
        let mut policies: BTreeMap<Kind, Vec<Object<()>>> =
            POLICIES.map(|k| (k, Vec::new())).into();
        let (mut revisions, mut routes) = (Vec::new(), Vec::new());
        for record in self.store.records() {
            let key = record.key();
            if record.deleting && self.store.get(&key).is_some() {
                continue;
            }
            let own = record.revisions.iter();
            revisions.extend(own.map(|r| self.revision(record, r)));
            routes.extend(route(record));
            policies
                .entry(Kind::of(&key))
                .or_default()
                .push(self.policy(record));
        }
        let servers = self.servers();
        let servers = servers.iter().filter_map(|name| self.server(name));
        let mut changes = vec![Change::Listed(Kind::Servers, servers.collect())];
        let policies = policies.into_iter();
        changes.extend(policies.map(|(kind, objects)| Change::Listed(kind, objects)));
        changes.push(Change::Listed(Kind::Revisions, revisions));
        changes.push(Change::Listed(ROUTES, routes));
        changes
    }

    /// A policy that exists or is being deleted.
    pub(super) fn policy(&self, record: &PolicyRecord) -> Object<()> {
        let key = record.key();
        let parsed = record.effective(&self.options.parse);
        let server = parsed.as_ref().map(|p| p.server.clone());
        let problem = self.problems.get(&key).map(|(p, _)| problem(p));
        let status = self.statuses.get(&record.uid).cloned();
        Object::Policy(Box::new(PolicyObject {
            meta: meta(record),
            server: server.unwrap_or_else(|_| DEFAULT_SERVER.to_owned()),
            parsed,
            rollback: self.rollbacks.get(&key).copied(),
            pinned: record.pinned_digest().and_then(|d| d.parse().ok()),
            problem: problem.filter(|_| !record.deleting),
            status: Some(status.unwrap_or_else(|| record.stored_status())),
            key,
        }))
    }

    pub(super) fn policy_change(&self, key: &PolicyKey) -> Option<Change<()>> {
        let record = self.store.get(key)?;
        Some(Change::Applied(self.policy(record)))
    }

    /// A policy whose deletion began. If its name is in use again, the new policy is the
    /// object of that name, which ends the old one too.
    pub(super) fn deletion(&self, uid: Uuid) -> Option<Change<()>> {
        let record = self.store.by_uid(uid)?;
        let replaced = self.store.get(&record.key()).is_some();
        (!replaced).then(|| Change::Applied(self.policy(record)))
    }

    /// A server as its manifest describes it now, or that it is gone.
    pub(super) fn server_change(&self, name: &str) -> Change<()> {
        match self.server(name) {
            Some(server) => Change::Applied(server),
            None => Change::Deleted(ObjectRef {
                kind: Kind::Servers,
                namespace: String::new(),
                name: name.to_owned(),
                uid: String::new(),
            }),
        }
    }

    fn server(&self, name: &str) -> Option<Object<()>> {
        let object = parse::Object::Server(name.to_owned());
        let entry = self.manifests.get(&object);
        let parsed = match entry.map(|e| &e.manifest) {
            Some(Manifest::Server(server)) => Some(server.clone()),
            _ if name == DEFAULT_SERVER => None,
            _ => return None,
        };
        Some(Object::Server(Box::new(ServerObject {
            meta: Meta {
                name: name.to_owned(),
                uid: name.to_owned(),
                generation: 1,
                has_finalizer: true,
                ..Meta::default()
            },
            parsed: Ok(parsed),
            status: None,
        })))
    }

    pub(super) fn revision(&self, record: &PolicyRecord, revision: &RevisionRecord) -> Object<()> {
        let key = record.key();
        let spec = revision.spec(record);
        let policy = match &spec {
            Some(spec) => revision::restore(&key, spec, &self.options.parse).map(Arc::new),
            None => Err("its spec cannot be read".to_owned()),
        };
        Object::Revision(Box::new(RevisionObject {
            meta: Meta {
                name: revision_id(record, &revision.name).to_string(),
                uid: format!("{}/{}", record.uid, revision.name),
                generation: 1,
                // Nobody else deletes records.
                has_finalizer: true,
                created: Some(revision.created_at),
                ..Meta::default()
            },
            key: Some(key),
            policy_uid: record.uid.to_string(),
            spec: spec.map(Arc::new),
            policy,
            phase: revision.phase,
        }))
    }

    /// One revision of a policy, by its short name.
    pub(super) fn revision_change(&self, uid: Uuid, name: &str) -> Option<Change<()>> {
        let record = self.store.by_uid(uid)?;
        let revision = record.revision(name)?;
        Some(Change::Applied(self.revision(record, revision)))
    }
}

/// The entry of the dispatch table.
pub(super) fn route(record: &PolicyRecord) -> Option<Object<()>> {
    let revision = record.active_revision()?;
    Some(Object::Route(Box::new(RouteObject {
        meta: Meta {
            // Two policies of one name can have a route while one of them is being deleted.
            name: record.uid.to_string(),
            uid: record.uid.to_string(),
            ..Meta::default()
        },
        kind: ROUTES,
        key: record.key(),
        uid: Some(record.uid.to_string()),
        revision: Some(revision_id(record, &revision.name)),
        // Route and revisions are written together.
        resolved: None,
        // The dispatch asks the policy once more by itself.
        confirms: false,
        existing: (),
    })))
}

pub(super) fn route_ref(uid: &str) -> ObjectRef {
    ObjectRef {
        kind: ROUTES,
        namespace: String::new(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
    }
}

pub(super) fn revision_ref(record: &PolicyRecord, name: &str) -> ObjectRef {
    ObjectRef {
        kind: Kind::Revisions,
        namespace: String::new(),
        name: revision_id(record, name).to_string(),
        uid: String::new(),
    }
}

pub(super) fn policy_ref(record: &PolicyRecord) -> ObjectRef {
    let key = record.key();
    ObjectRef {
        kind: Kind::of(&key),
        namespace: key.namespace().unwrap_or_default().to_owned(),
        name: key.name().to_owned(),
        uid: record.uid.to_string(),
    }
}

/// The policy object that a record stores.
pub(super) fn policy_id(record: &PolicyRecord) -> PolicyId {
    PolicyId {
        key: record.key(),
        uid: record.uid.to_string().into(),
    }
}

fn revision_id(record: &PolicyRecord, name: &str) -> RevisionId {
    RevisionId::from_wire(&format!("{}/{name}", record.policy))
}

fn meta(record: &PolicyRecord) -> Meta {
    let key = record.key();
    Meta {
        namespace: key.namespace().unwrap_or_default().to_owned(),
        name: key.name().to_owned(),
        uid: record.uid.to_string(),
        // Writes are not conditional: this process is the only one that writes.
        resource_version: String::new(),
        generation: record.generation,
        deleting: record.deleting,
        // A record stays until its policy has drained.
        has_finalizer: true,
        created: Some(record.created_at),
    }
}

/// When a problem with a manifest rejects the newest generation. A module's file that is gone
/// matters only before it was read, and a second manifest must not keep the first one from
/// being vetted.
fn problem(problem: &decide::Problem) -> Problem {
    let (reason, scope) = match problem.reason {
        Reason::Unreadable | Reason::Invalid => (RefusalReason::Invalid, ProblemScope::Always),
        Reason::Duplicate => (RefusalReason::Conflicted, ProblemScope::AfterRevision),
        Reason::PullError => (RefusalReason::PullError, ProblemScope::BeforeRevision),
    };
    Problem {
        refusal: Refusal {
            reason,
            message: problem.message.clone(),
        },
        scope,
    }
}
