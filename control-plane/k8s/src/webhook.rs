//! The webhook configuration of one policy: the desired state, a reader for existing objects,
//! and the writer.
//!
//! The active revision of a policy is the one that its webhook configuration names. Every write
//! decides what protects a cluster, so it is conditional on a resourceVersion, never an apply.

mod differ;
mod exempt;
mod read;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;

use assent_api::{Parsed, rules::Scope};
use assent_core::RevisionId;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
        ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    differ::{differs, merged},
    read::{Named, read},
    writer::{Error, Writer},
};
use crate::names;

/// The two kinds of configurations. Both may exist under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `ValidatingWebhookConfiguration`.
    Validating,
    /// `MutatingWebhookConfiguration`.
    Mutating,
}

/// Where API servers send reviews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookEndpoint {
    /// To a Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: i32,
    },
    /// To a base URL to which the path is appended, for endpoints outside the cluster.
    Url(String),
}

/// Settings that the webhooks of all policies share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookDefaults {
    /// The control plane's namespace.
    pub namespace: String,
    /// The uid of that Namespace object. It owns every configuration, so none outlives it.
    pub namespace_uid: String,
    /// Certificate authorities that sign evaluators' certificates, PEM.
    pub ca_bundle: Vec<u8>,
    /// Namespaces that policies never apply to, in addition to those that are always excluded.
    pub excluded_namespaces: Vec<String>,
    /// The control plane's own user names: `system:serviceaccount:<namespace>:<name>`.
    pub service_accounts: Vec<String>,
}

/// The inputs of a policy's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The spec of the revision that the webhook will name.
    pub policy: &'a Parsed,
    /// That revision.
    pub revision: &'a RevisionId,
    /// The policy's uid.
    pub uid: &'a str,
    /// Where its evaluators are.
    pub endpoint: &'a WebhookEndpoint,
    /// Settings that the webhooks of all policies share.
    pub defaults: &'a WebhookDefaults,
}

/// The desired configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Desired {
    /// Of a policy that only validates.
    Validating(Box<ValidatingWebhookConfiguration>),
    /// Of a policy that may mutate objects.
    Mutating(Box<MutatingWebhookConfiguration>),
}

/// One write on the way to the desired configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create it.
    Create(Kind),
    /// Replace its content if it differs from the desired one.
    Update(Kind),
    /// Remove it.
    Delete(Kind),
}

// === impl WebhookEndpoint ===

impl WebhookEndpoint {
    /// How an API server sends reviews to `path` of this endpoint.
    pub fn client_config(&self, path: &str, ca_bundle: &[u8]) -> WebhookClientConfig {
        let config = WebhookClientConfig {
            ca_bundle: Some(ByteString(ca_bundle.to_vec())),
            ..WebhookClientConfig::default()
        };
        match self {
            WebhookEndpoint::Url(base) => WebhookClientConfig {
                url: Some(format!("{}{path}", base.trim_end_matches('/'))),
                ..config
            },
            WebhookEndpoint::Service {
                namespace,
                name,
                port,
            } => WebhookClientConfig {
                service: Some(ServiceReference {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    path: Some(path.to_owned()),
                    port: Some(*port),
                }),
                ..config
            },
        }
    }
}

/// Builds the configuration of a policy. It contains the user's fields unchanged, and the
/// exemptions that keep a cluster from locking itself out.
pub fn desired(input: &Input<'_>) -> Desired {
    let metadata = metadata(input);
    let webhook = webhook(input);
    match kind(input.policy) {
        Kind::Validating => Desired::Validating(Box::new(ValidatingWebhookConfiguration {
            metadata,
            webhooks: Some(vec![validating(webhook)]),
        })),
        Kind::Mutating => Desired::Mutating(Box::new(MutatingWebhookConfiguration {
            metadata,
            webhooks: Some(vec![webhook]),
        })),
    }
}

/// The kind of configuration that a policy needs.
pub fn kind(policy: &Parsed) -> Kind {
    match policy.mutating {
        true => Kind::Mutating,
        false => Kind::Validating,
    }
}

/// The writes, in order, after which only the kind `desired` exists; the kinds in `present`
/// exist now. The new configuration is created before the old one is deleted: in between, a
/// request is evaluated twice, which is better than not at all.
pub fn steps(present: &[Kind], desired: Kind) -> Vec<Step> {
    let first = match present.contains(&desired) {
        true => Step::Update(desired),
        false => Step::Create(desired),
    };
    let others = [Kind::Validating, Kind::Mutating];
    let others = others
        .into_iter()
        .filter(|kind| *kind != desired && present.contains(kind));
    std::iter::once(first)
        .chain(others.map(Step::Delete))
        .collect()
}

/// The path at which evaluators answer for a revision.
pub fn path(revision: &RevisionId) -> String {
    format!("{PREFIX}{revision}")
}

/// The part of a path before the revision's name.
const PREFIX: &str = "/validate/";

fn metadata(input: &Input<'_>) -> ObjectMeta {
    let key = &input.policy.key;
    let (managed_by, us) = names::MANAGED_BY;
    let owned = |pairs: [(&str, String); 2]| -> BTreeMap<String, String> {
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    };
    ObjectMeta {
        name: Some(names::webhook_configuration(key)),
        labels: Some(owned([
            (managed_by, us.to_owned()),
            (names::POLICY_LABEL, names::policy_label(key)),
        ])),
        annotations: Some(owned([
            (names::POLICY_ANNOTATION, key.to_string()),
            (names::POLICY_UID_ANNOTATION, input.uid.to_owned()),
        ])),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            name: input.defaults.namespace.clone(),
            uid: input.defaults.namespace_uid.clone(),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    }
}

/// The only webhook of the configuration. It sets every field, so that nothing depends on the
/// defaults of an API server's version.
fn webhook(input: &Input<'_>) -> MutatingWebhook {
    let Input {
        policy, defaults, ..
    } = *input;
    MutatingWebhook {
        name: names::webhook(&policy.key),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: input
            .endpoint
            .client_config(&path(input.revision), &input.defaults.ca_bundle),
        failure_policy: Some(same(&policy.failure_policy)),
        match_conditions: Some(exempt::conditions(policy, defaults)),
        match_policy: Some(same(&policy.match_policy)),
        namespace_selector: Some(exempt::namespaces(policy, defaults)),
        object_selector: Some(same(&policy.object_selector.clone().unwrap_or_default())),
        // A policy need not give the same answer to what it has changed already.
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(rules(policy)),
        side_effects: same(&policy.side_effects),
        timeout_seconds: Some(i32::try_from(policy.timeout_seconds).unwrap_or(i32::MAX)),
    }
}

fn rules(policy: &Parsed) -> Vec<RuleWithOperations> {
    let mut rules = policy.rules.clone();
    if policy.key.namespace().is_some() {
        // A namespace selector never excludes cluster-scoped objects, so the scope must.
        rules
            .iter_mut()
            .for_each(|rule| rule.scope = Scope::Namespaced);
    }
    same(&rules)
}

fn validating(webhook: MutatingWebhook) -> ValidatingWebhook {
    ValidatingWebhook {
        admission_review_versions: webhook.admission_review_versions,
        client_config: webhook.client_config,
        failure_policy: webhook.failure_policy,
        match_conditions: webhook.match_conditions,
        match_policy: webhook.match_policy,
        name: webhook.name,
        namespace_selector: webhook.namespace_selector,
        object_selector: webhook.object_selector,
        rules: webhook.rules,
        side_effects: webhook.side_effects,
        timeout_seconds: webhook.timeout_seconds,
    }
}

/// Converts a value to the API server's type, which has the same field names.
fn same<T: DeserializeOwned>(value: &impl Serialize) -> T {
    serde_json::to_value(value)
        .and_then(serde_json::from_value)
        .expect("a part of a policy must be a part of a webhook")
}

// === impl Desired ===

impl Desired {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Desired::Validating(_) => Kind::Validating,
            Desired::Mutating(_) => Kind::Mutating,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Desired::Validating(object) => &object.metadata,
            Desired::Mutating(object) => &object.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Desired::Validating(object) => &mut object.metadata,
            Desired::Mutating(object) => &mut object.metadata,
        }
    }
}
