//! A cluster as the controller sees it: webhook configurations reduced to what decisions depend on.

use std::sync::Arc;

use assent_api::{Parsed, ParsedServer, revision::ResolvedRevision};
use assent_controller::{Backend, Kind, RouteSpec, objects::RouteObject};
use assent_core::{Mode, PolicyKey, RevisionId, fleet::CountedReplicas};

/// The simulated cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster;

/// What a webhook configuration contains besides what its route says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    /// Rules, selectors, mode: everything that the policy's spec decides.
    pub(crate) content: String,
    /// Whether its labels are there.
    pub(crate) labelled: bool,
}

/// A webhook configuration as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) kind: Kind,
    pub(crate) key: PolicyKey,
    pub(crate) uid: String,
    pub(crate) server: String,
    pub(crate) revision: RevisionId,
    pub(crate) resolved: Arc<ResolvedRevision>,
    /// The policy is asked once more about what it changed.
    pub(crate) confirms: bool,
    pub(crate) webhook: Webhook,
}

pub(crate) type Route = RouteObject<Webhook>;

impl Backend for Cluster {
    type Existing = Webhook;
    type Desired = Vec<Configuration>;
    /// The number of replicas.
    type Workload = i32;

    fn counted_replicas(&self) -> CountedReplicas {
        CountedReplicas::Expected
    }

    fn check(&self, _policy: &Parsed) -> Result<(), String> {
        Ok(())
    }

    /// As in a cluster: a mutating cluster policy that protects has two.
    fn desired(&self, route: &RouteSpec<'_>) -> Vec<Configuration> {
        let policy = route.policy;
        let one = |kind| Configuration {
            kind,
            key: policy.key.clone(),
            uid: route.uid.to_owned(),
            server: policy.server.clone(),
            revision: route.revision.clone(),
            resolved: Arc::new(route.resolved.clone()),
            confirms: policy.mutating && kind == Kind::Validating,
            webhook: Webhook {
                content: String::from_utf8_lossy(&policy.spec_json).into_owned(),
                labelled: true,
            },
        };
        if !policy.mutating {
            return vec![one(Kind::Validating)];
        }
        let confirmed = policy.key.namespace().is_none() && policy.mode == Mode::Protect;
        let confirming = (confirmed && route.confirmed).then(|| one(Kind::Validating));
        std::iter::once(one(Kind::Mutating))
            .chain(confirming)
            .collect()
    }

    fn is_current(&self, existing: &[&Route], desired: &Vec<Configuration>) -> bool {
        let exists = |desired: &Configuration| existing.iter().any(|route| desired.is(route));
        existing.len() == desired.len() && desired.iter().all(exists)
    }

    fn selector(&self, _server: &str) -> Option<String> {
        None
    }

    fn workload(&self, server: &ParsedServer, _uid: &str) -> Option<i32> {
        Some(server.spec.replicas)
    }
}

impl Configuration {
    fn is(&self, route: &Route) -> bool {
        route.kind == self.kind
            && route.uid.as_ref() == Some(&self.uid)
            && route.revision.as_ref() == Some(&self.revision)
            && route.resolved.as_ref() == Some(&self.resolved)
            && route.confirms == self.confirms
            && route.existing == self.webhook
    }
}

/// The name of a policy's webhook configurations.
pub(crate) fn webhook_name(key: &PolicyKey) -> String {
    format!("assent.{}", key.as_str().replace('/', "."))
}
