//! Objects of the cluster that policies read: who follows them, and who gets them.

use assent_controller::contexts::{Assignment, FollowedCollection, KindRef};
use assent_grpc::{
    Hub,
    context::{Assigned, Limits},
};

/// Follows kinds and collections, and reports them as
/// [`ContextEvent`](assent_controller::contexts::ContextEvent)s.
pub(crate) trait ContextSource: Send + Sync {
    /// Looks up these kinds and no others.
    fn follow_kinds(&self, kinds: Vec<KindRef>);

    /// Follows these collections and no others.
    fn follow_collections(&self, collections: Vec<FollowedCollection>);
}

/// A control plane that has no objects. Policies that declare some were refused.
pub(crate) struct NoContext;

/// Sends collections to the evaluators of a server.
pub(crate) fn assign(hub: &Hub, assignment: Assignment) {
    let Assignment {
        server,
        collections,
        complete,
        limits,
    } = assignment;
    let staleness = limits.max_staleness_seconds.unwrap_or_default();
    let assigned = Assigned {
        collections: collections
            .into_iter()
            .map(|spec| (spec.id(), spec))
            .collect(),
        complete,
        limits: Limits {
            memory_bytes: limits.memory_bytes,
            max_staleness_ms: u64::from(staleness) * 1_000,
        },
    };
    hub.context().assign(&server, assigned);
}

// === impl NoContext ===

impl ContextSource for NoContext {
    fn follow_kinds(&self, _: Vec<KindRef>) {}

    fn follow_collections(&self, _: Vec<FollowedCollection>) {}
}
