//! What runs the evaluators of a PolicyServer: the objects, and the evaluator's container.
//!
//! The StatefulSet's template names the container with a placeholder image only; the injector
//! completes each pod with [`evaluator_container`], whose hash the template carries. Nothing
//! about policies is in it: a policy change never restarts a pod.

mod container;
mod pods;
mod services;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;

use assent_api::{API_VERSION, ParsedServer, canonical};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

pub use self::{
    container::{EvaluatorParts, Place, evaluator_container},
    writer::{Error, Outcome, apply, delete},
};
use crate::names;

/// Settings that apply to all PolicyServers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where their objects live: the control plane's namespace.
    pub namespace: String,
    /// Image of the evaluator if the server names none.
    pub image: String,
    /// When it is pulled; the default of the API server if absent.
    pub image_pull_policy: Option<String>,
    /// Where evaluators find the control plane: `https://assent.assent-system.svc:15010`.
    pub discovery: String,
    /// Whether evaluators get a NetworkPolicy.
    pub network_policy: bool,
}

/// Everything that is made for one PolicyServer.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// The pods.
    pub stateful_set: StatefulSet,
    /// Gives each of them a name.
    pub headless: Service,
    /// What webhooks point at.
    pub webhook: Service,
    /// How many may go at a time.
    pub disruption_budget: PodDisruptionBudget,
    /// Their service account; none if the server names one.
    pub service_account: Option<ServiceAccount>,
    /// Whom they speak to.
    pub network_policy: Option<NetworkPolicy>,
}

/// Builds the objects of the PolicyServer with this uid.
pub fn objects(server: &ParsedServer, uid: &str, options: &Options) -> Objects {
    let owned = Owned {
        server: &server.name,
        uid,
        namespace: &options.namespace,
    };
    Objects {
        stateful_set: pods::stateful_set(server, &owned, options),
        headless: services::headless(&owned),
        webhook: services::webhook(&owned),
        disruption_budget: services::disruption_budget(server, &owned),
        service_account: pods::service_account(server, &owned),
        network_policy: options
            .network_policy
            .then(|| services::network_policy(&owned)),
    }
}

/// Labels by which a PolicyServer's own pods are found.
pub fn pod_labels(server: &str) -> BTreeMap<String, String> {
    let label = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    [
        label((names::SERVER_LABEL, server)),
        label(names::MANAGED_BY),
        label(names::SERVER_COMPONENT),
    ]
    .into()
}

/// The same as a query: what `status.selector` says, for autoscalers.
pub fn selector(server: &str) -> String {
    let labels = pod_labels(server);
    let terms: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    terms.join(",")
}

/// What makes an object one of a server's.
struct Owned<'a> {
    server: &'a str,
    uid: &'a str,
    namespace: &'a str,
}

/// Digest of a value as an annotation.
fn hash(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("a part of an object must be JSON");
    let mut hash = hex::encode(Sha256::digest(canonical::to_vec(&value)));
    // 128 bits: no two contents share it by chance.
    hash.truncate(32);
    hash
}

// === impl Owned ===

impl Owned<'_> {
    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(pod_labels(self.server)),
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: "PolicyServer".to_owned(),
                name: self.server.to_owned(),
                uid: self.uid.to_owned(),
                controller: Some(true),
                // Blocking the owner's deletion needs a permission more, and the finalizer
                // of the PolicyServer waits already.
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        }
    }

    fn selector(&self) -> LabelSelector {
        LabelSelector {
            match_labels: Some(pod_labels(self.server)),
            match_expressions: None,
        }
    }
}
