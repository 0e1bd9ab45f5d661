//! A directory as the controller's backend.

use std::convert::Infallible;

use assent_api::{Parsed, ParsedServer};
use assent_controller::{Backend, Kind, RouteSpec, objects::RouteObject};
use assent_core::{RevisionId, fleet::CountedReplicas};

use crate::dispatch::check_conditions;

/// The kinds that exist in standalone mode. All routes are of one kind: a policy has one
/// entry in the dispatch table, whether it may mutate objects or not.
pub const KINDS: [Kind; 7] = [
    Kind::ClusterPolicies,
    Kind::Policies,
    Kind::ClusterRequestPolicies,
    Kind::RequestPolicies,
    Kind::Servers,
    Kind::Revisions,
    ROUTES,
];

/// The kind of all routes.
pub(crate) const ROUTES: Kind = Kind::Validating;

/// Policies of a directory, called by the local dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalBackend;

// === impl LocalBackend ===

impl Backend for LocalBackend {
    /// A [`RouteObject`] describes an entry of the dispatch table completely.
    type Existing = ();
    /// The revision that the dispatch must call.
    type Desired = RevisionId;
    /// Evaluators are started by this process or by the user.
    type Workload = Infallible;

    fn counted_replicas(&self) -> CountedReplicas {
        CountedReplicas::All
    }

    fn check(&self, policy: &Parsed) -> Result<(), String> {
        check_conditions(policy).map_err(|e| e.to_string())
    }

    fn desired(&self, route: &RouteSpec<'_>) -> RevisionId {
        route.revision.clone()
    }

    fn is_current(&self, existing: &[&RouteObject<()>], desired: &RevisionId) -> bool {
        matches!(existing, [route] if route.revision.as_ref() == Some(desired))
    }

    fn selector(&self, _server: &str) -> Option<String> {
        None
    }

    fn workload(&self, _server: &ParsedServer, _uid: &str) -> Option<Infallible> {
        None
    }
}
