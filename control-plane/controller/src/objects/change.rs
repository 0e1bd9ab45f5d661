//! Objects of the mirror, what happens to them, and which decisions that affects.

use assent_api::parse;
use assent_core::PolicyKey;

use super::{
    Meta, NamespaceObject, PodObject, PolicyObject, RevisionObject, RouteObject, ServerObject,
    SetObject,
};

/// Kinds of objects in the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `ClusterAdmissionPolicy`.
    ClusterPolicies,
    /// `AdmissionPolicy`.
    Policies,
    /// `ClusterRequestPolicy`.
    ClusterRequestPolicies,
    /// `RequestPolicy`.
    RequestPolicies,
    /// `PolicyServer`.
    Servers,
    /// `PolicyRevision`.
    Revisions,
    /// Routes of policies that only validate: `ValidatingWebhookConfiguration` in a cluster.
    Validating,
    /// Routes of policies that may mutate: `MutatingWebhookConfiguration` in a cluster.
    Mutating,
    /// Pods that ask for an evaluator.
    Pods,
    /// StatefulSets of PolicyServers.
    Sets,
    /// Services of PolicyServers.
    Services,
    /// Namespaces, for their labels.
    Namespaces,
}

/// One object.
#[derive(Clone, Debug)]
pub enum Object<E> {
    /// A policy of either kind.
    Policy(Box<PolicyObject>),
    /// A PolicyServer.
    Server(Box<ServerObject>),
    /// A revision.
    Revision(Box<RevisionObject>),
    /// A route.
    Route(Box<RouteObject<E>>),
    /// A pod.
    Pod(Box<PodObject>),
    /// A StatefulSet.
    Set(Box<SetObject>),
    /// A Service and its PolicyServer: only that it changed matters.
    Service(Box<Meta>, String),
    /// A namespace.
    Namespace(Box<NamespaceObject>),
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; empty if any object of that name is meant.
    pub uid: String,
}

/// What happened to objects.
#[derive(Clone, Debug)]
pub enum Change<E> {
    /// An object was created or changed.
    Applied(Object<E>),
    /// An object is gone.
    Deleted(ObjectRef),
    /// Every object of a kind was listed: what is not among them is gone.
    Listed(Kind, Vec<Object<E>>),
}

/// A decision that a change affects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affected {
    /// The policy itself.
    Policy(PolicyKey),
    /// Its routes.
    Route(PolicyKey),
    /// One of its revisions.
    Revision(PolicyKey),
    /// The PolicyServer itself.
    Server(String),
    /// Something that was made for it.
    Workload(String),
    /// Its pods.
    Pods(String),
    /// What the policies of a namespace may do.
    Namespace(String),
}

/// Namespace and name; the namespace is empty if there is none.
pub(super) type Name = (String, String);

// === impl Kind ===

impl Kind {
    /// The kind of a policy.
    pub fn of(key: &PolicyKey) -> Self {
        match parse::Kind::of(key) {
            parse::Kind::AdmissionPolicy => Kind::Policies,
            parse::Kind::RequestPolicy => Kind::RequestPolicies,
            parse::Kind::ClusterRequestPolicy => Kind::ClusterRequestPolicies,
            parse::Kind::ClusterAdmissionPolicy | parse::Kind::PolicyServer => {
                Kind::ClusterPolicies
            }
        }
    }
}

// === impl Object ===

impl<E> Object<E> {
    /// Its metadata.
    pub fn meta(&self) -> &Meta {
        match self {
            Object::Policy(object) => &object.meta,
            Object::Server(object) => &object.meta,
            Object::Revision(object) => &object.meta,
            Object::Route(object) => &object.meta,
            Object::Pod(object) => &object.meta,
            Object::Set(object) => &object.meta,
            Object::Service(meta, _) => meta,
            Object::Namespace(object) => &object.meta,
        }
    }

    pub(super) fn full_name(&self) -> Name {
        self.meta().full_name()
    }
}

/// The key of a policy object.
pub fn policy_key(kind: Kind, namespace: &str, name: &str) -> Option<PolicyKey> {
    let kind = match kind {
        Kind::ClusterPolicies => parse::Kind::ClusterAdmissionPolicy,
        Kind::Policies => parse::Kind::AdmissionPolicy,
        Kind::ClusterRequestPolicies => parse::Kind::ClusterRequestPolicy,
        Kind::RequestPolicies => parse::Kind::RequestPolicy,
        _ => return None,
    };
    kind.policy_key(namespace, name)
}
