//! Single objects, as far as decisions depend on them.

use std::{collections::BTreeMap, sync::Arc};

use assent_api::{
    Parsed, ParsedServer, PolicyRevisionSpec, PolicyStatus,
    parse::Rollback,
    revision::{Phase, ResolvedRevision},
    server::PolicyServerStatus,
};
use assent_core::{
    Digest, Policy, PolicyKey, RevisionId,
    rollout::{PolicyId, Refusal},
};
use jiff::Timestamp;

use super::{Kind, grouped::HasMeta};

/// Metadata of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// For conditional writes.
    pub resource_version: String,
    /// Counts changes of the spec.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it carries the finalizer of the control plane.
    pub has_finalizer: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
}

/// A policy of either kind.
#[derive(Clone, Debug)]
pub struct PolicyObject {
    /// Its metadata.
    pub meta: Meta,
    /// Its key.
    pub key: PolicyKey,
    /// Its spec, or the error message of the parser.
    pub parsed: Result<Parsed, String>,
    /// The PolicyServer that it names, as far as that can be read.
    pub server: String,
    /// A rollback that an annotation asks for.
    pub rollback: Option<Rollback>,
    /// The module that a rollback pinned, whatever the URL resolves to now.
    pub pinned: Option<Digest>,
    /// What is wrong with the newest version of its source, which could not become a generation.
    pub problem: Option<Problem>,
    /// Its stored status, if it can be read.
    pub status: Option<PolicyStatus>,
}

/// What is wrong with a policy besides its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What the user is told.
    pub refusal: Refusal,
    /// When it matters.
    pub scope: ProblemScope,
}

/// When a problem rejects the newest generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemScope {
    /// Always.
    Always,
    /// Only before the generation became a revision: a missing module file, say.
    BeforeRevision,
    /// Only after it did: a second manifest must not keep the first one from being vetted.
    AfterRevision,
}

/// A PolicyServer.
#[derive(Clone, Debug)]
pub struct ServerObject {
    /// Its metadata.
    pub meta: Meta,
    /// Its spec, or the error message of the parser; `None` for built-in defaults.
    pub parsed: Result<Option<Box<ParsedServer>>, String>,
    /// Its stored status, if it can be read.
    pub status: Option<PolicyServerStatus>,
}

/// A revision.
#[derive(Clone, Debug)]
pub struct RevisionObject {
    /// Its metadata.
    pub meta: Meta,
    /// The policy that it belongs to; `None` if it belongs to none, whatever it claims.
    pub key: Option<PolicyKey>,
    /// The uid of that policy.
    pub policy_uid: String,
    /// Its spec, if it can be read.
    pub spec: Option<Arc<PolicyRevisionSpec>>,
    /// What evaluators get, or why it cannot be used.
    pub policy: Result<Arc<Policy>, String>,
    /// As stored; a revision without a phase is a candidate.
    pub phase: Phase,
}

/// A route of a policy.
#[derive(Clone, Debug)]
pub struct RouteObject<E> {
    /// Its metadata.
    pub meta: Meta,
    /// [`Kind::Validating`] or [`Kind::Mutating`].
    pub kind: Kind,
    /// The policy.
    pub key: PolicyKey,
    /// The uid of that policy; `None` if somebody removed it.
    pub uid: Option<String>,
    /// The revision that it points at; `None` if somebody pointed it elsewhere.
    pub revision: Option<RevisionId>,
    /// What the route records of the revision that it was written for.
    pub resolved: Option<Arc<ResolvedRevision>>,
    /// Whether it asks a mutating policy once more about what it changed.
    pub confirms: bool,
    /// The object itself.
    pub existing: E,
}

/// A pod that asks for an evaluator.
#[derive(Clone, Debug)]
pub struct PodObject {
    /// Its metadata.
    pub meta: Meta,
    /// The PolicyServer whose evaluator it asks for.
    pub server: String,
    /// Uid of its controller.
    pub owner: Option<String>,
    /// Whether it is an endpoint of its Service.
    pub ready: bool,
    /// Whether it has an evaluator container with an image.
    pub injected: bool,
    /// Hash of the evaluator that was injected.
    pub hash: Option<String>,
    /// The revision of the StatefulSet's template that it was made from.
    pub template: Option<String>,
    /// Its address.
    pub ip: Option<String>,
    /// The identity that its token proves.
    pub identity: String,
}

/// The StatefulSet of a PolicyServer.
#[derive(Clone, Debug)]
pub struct SetObject {
    /// Its metadata.
    pub meta: Meta,
    /// The PolicyServer.
    pub server: String,
    /// Uid of the PolicyServer object that owns it.
    pub owner: Option<String>,
    /// `status.replicas`.
    pub replicas: i32,
    /// `status.readyReplicas`.
    pub ready: i32,
    /// Hash of the evaluator that its template asks for.
    pub hash: Option<String>,
    /// The revision of that template; `None` until its controller has observed it.
    pub template: Option<String>,
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct NamespaceObject {
    /// Its metadata.
    pub meta: Meta,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

// === impl Meta ===

impl Meta {
    /// Namespace and name.
    pub fn full_name(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Whether this state is newer than `other`, a state of the same object. Versions are
    /// growing numbers on every API server that stores in etcd; if they are not, the order of
    /// arrival decides.
    pub(super) fn supersedes(&self, other: &Meta) -> bool {
        let number = |m: &Meta| m.resource_version.parse::<u64>().ok();
        self.uid == other.uid && number(self).zip(number(other)).is_some_and(|(a, b)| a > b)
    }
}

// === impl PolicyObject ===

impl PolicyObject {
    /// Its key and uid: another object of the same name has another uid.
    pub fn id(&self) -> PolicyId {
        PolicyId {
            key: self.key.clone(),
            uid: self.meta.uid.as_str().into(),
        }
    }

    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.key)
    }
}

// === impl RouteObject ===

impl<E> RouteObject<E> {
    /// Whether it is a route of the policy object with this uid. Somebody may have removed or
    /// changed the recorded uid; the revision that a route points at names its beginning.
    pub fn belongs_to(&self, uid: &str) -> bool {
        let parts = self.revision.as_ref().and_then(RevisionId::parts);
        let points_at_it = parts.is_some_and(|p| p.policy == self.key && uid.starts_with(&*p.uid8));
        self.uid.as_deref() == Some(uid) || points_at_it
    }
}

// === impl ServerObject ===

impl ServerObject {
    /// Its spec, if it has one that can be used.
    pub fn spec(&self) -> Option<&ParsedServer> {
        self.parsed.as_ref().ok()?.as_deref()
    }
}

// === impl RevisionObject ===

impl RevisionObject {
    /// The revision that it stores; `None` if it belongs to no policy.
    pub fn revision(&self) -> Option<RevisionId> {
        match &self.policy {
            Ok(policy) => Some(policy.revision.clone()),
            Err(_) => {
                let (key, spec) = (self.key.as_ref()?, self.spec.as_ref()?);
                Some(RevisionId::new(key, spec.generation, &self.policy_uid))
            }
        }
    }
}

// === impl HasMeta ===

impl HasMeta for Meta {
    fn meta(&self) -> &Meta {
        self
    }
}

impl HasMeta for PolicyObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl HasMeta for ServerObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl HasMeta for RevisionObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl HasMeta for PodObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl HasMeta for SetObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl HasMeta for NamespaceObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl<E> HasMeta for RouteObject<E> {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}
