//! What the controller must know about clusters.

use assent_api::{Parsed, ParsedServer};
use assent_controller::{Backend, RouteSpec, objects::RouteObject};
use assent_core::fleet::CountedReplicas;
use kube::core::DynamicObject;

use crate::{
    convert::webhook_kind,
    names,
    webhook::{self, Desired, WebhookDefaults, WebhookEndpoint},
    workload,
};

#[cfg(test)]
mod tests;

/// A cluster: routes are webhook configurations, and evaluators run in StatefulSets.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What the webhooks of all policies have in common. Its CA bundle follows rotations; the
    /// controller must check all routes after a change.
    pub defaults: WebhookDefaults,
    /// Where evaluators are, if not behind their Service.
    pub base_url: Option<String>,
    /// How evaluators are run; `None` if somebody else runs them.
    pub workload: Option<workload::Options>,
}

// === impl Cluster ===

impl Cluster {
    fn endpoint(&self, server: &str) -> WebhookEndpoint {
        match &self.base_url {
            Some(base) => WebhookEndpoint::Url(base.clone()),
            None => WebhookEndpoint::Service {
                namespace: self.defaults.namespace.clone(),
                name: names::server(server),
                port: 443,
            },
        }
    }
}

impl Backend for Cluster {
    type Existing = DynamicObject;
    /// One configuration, or two under the same name.
    type Desired = Vec<Desired>;
    type Workload = workload::Objects;

    /// The pods of a server's StatefulSet: an evaluator beside somebody else's container
    /// follows, and no rollout waits for it.
    fn counted_replicas(&self) -> CountedReplicas {
        CountedReplicas::Expected
    }

    /// The API server checks selectors and match conditions itself, before a revision is stored.
    fn check(&self, _policy: &Parsed) -> Result<(), String> {
        Ok(())
    }

    fn desired(&self, route: &RouteSpec<'_>) -> Vec<Desired> {
        webhook::desired(&webhook::Input {
            policy: route.policy,
            revision: route.revision,
            resolved: route.resolved,
            uid: route.uid,
            endpoint: &self.endpoint(&route.policy.server),
            defaults: &self.defaults,
            confirmed: route.confirmed,
        })
    }

    fn is_current(&self, existing: &[&RouteObject<DynamicObject>], desired: &Vec<Desired>) -> bool {
        let exists = |desired: &Desired| {
            existing.iter().any(|route| {
                webhook_kind(route.kind) == desired.kind()
                    && !webhook::differs(&route.existing, desired)
            })
        };
        existing.len() == desired.len() && desired.iter().all(exists)
    }

    fn selector(&self, server: &str) -> Option<String> {
        Some(workload::selector(server))
    }

    fn workload(&self, server: &ParsedServer, uid: &str) -> Option<workload::Objects> {
        let options = self.workload.as_ref()?;
        Some(workload::objects(server, uid, options))
    }
}
