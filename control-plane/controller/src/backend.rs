//! What differs between a cluster and a directory, as pure functions.

use std::fmt::Debug;

use assent_api::{Parsed, ParsedServer, revision::ResolvedRevision};
use assent_core::{RevisionId, fleet::CountedReplicas};

use crate::objects::RouteObject;

/// Where policies live. A backend describes; it neither reads nor writes anything.
pub trait Backend {
    /// A route as it exists: a webhook configuration, or an entry of the local dispatch table.
    type Existing: Clone + Debug;
    /// A route as it must be.
    type Desired: Clone + Debug;
    /// Everything that a PolicyServer needs in order to run evaluators.
    type Workload: Clone + Debug;

    /// Which replicas count towards a rollout.
    fn counted_replicas(&self) -> CountedReplicas;

    /// Rejects a policy for what this backend cannot route, before its module is fetched.
    fn check(&self, policy: &Parsed) -> Result<(), String>;

    /// The route that makes a policy's requests go to one of its revisions.
    fn desired(&self, route: &RouteSpec<'_>) -> Self::Desired;

    /// Whether the existing routes are exactly the desired one, so that nothing has to be written.
    fn is_current(
        &self,
        existing: &[&RouteObject<Self::Existing>],
        desired: &Self::Desired,
    ) -> bool;

    /// The label selector of a PolicyServer's replicas, which autoscalers read.
    fn selector(&self, server: &str) -> Option<String>;

    /// The objects of a PolicyServer; `None` if its evaluators are run by somebody else.
    fn workload(&self, server: &ParsedServer, uid: &str) -> Option<Self::Workload>;
}

/// What a route is made of.
#[derive(Clone, Copy, Debug)]
pub struct RouteSpec<'a> {
    /// The spec of the revision that the route points at.
    pub policy: &'a Parsed,
    /// That revision.
    pub revision: &'a RevisionId,
    /// What it consists of besides that spec.
    pub resolved: &'a ResolvedRevision,
    /// The policy's uid.
    pub uid: &'a str,
    /// Whether the evaluators can be asked about changes once more when objects are validated.
    pub confirmed: bool,
}
