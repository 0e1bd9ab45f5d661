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

use assent_api::{Parsed, revision::ResolvedRevision, rules::Scope};
use assent_core::{Mode, RevisionId};
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

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Validating, Self::Mutating];
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
    /// What it consists of besides that spec.
    pub resolved: &'a ResolvedRevision,
    /// The policy's uid.
    pub uid: &'a str,
    /// Where its evaluators are.
    pub endpoint: &'a WebhookEndpoint,
    /// Settings that the webhooks of all policies share.
    pub defaults: &'a WebhookDefaults,
    /// Whether its evaluators answer `/confirm/`.
    pub confirmed: bool,
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

/// Builds the configurations of a policy, in the order in which they are written. They contain the
/// user's fields unchanged, and the exemptions that keep a cluster from locking itself out.
pub fn desired(input: &Input<'_>) -> Vec<Desired> {
    let validating = |path: &str| {
        Desired::Validating(Box::new(ValidatingWebhookConfiguration {
            metadata: metadata(input),
            webhooks: Some(vec![validating(webhook(input, path))]),
        }))
    };
    if !input.policy.mutating {
        return vec![validating(&path(input.revision))];
    }
    let mutating = Desired::Mutating(Box::new(MutatingWebhookConfiguration {
        metadata: metadata(input),
        webhooks: Some(vec![webhook(input, &path(input.revision))]),
    }));
    let confirm = format!("{CONFIRM_PREFIX}{}", input.revision);
    let confirmed = input.confirmed && is_confirmed(input.policy);
    let confirming = confirmed.then(|| validating(&confirm));
    std::iter::once(mutating).chain(confirming).collect()
}

/// Whether the changes of a policy are checked once more when the object is validated. Webhooks
/// of namespaced policies come after those of cluster policies and could undo what these changed.
fn is_confirmed(policy: &Parsed) -> bool {
    policy.key.namespace().is_none() && policy.mode == Mode::Protect
}

/// The writes, in order, after which only the kinds in `desired` exist; the kinds in `present`
/// exist now. New configurations are created before an old one is deleted: in between, a request
/// is evaluated twice, which is better than not at all.
pub fn steps(present: &[Kind], desired: &[Kind]) -> Vec<Step> {
    let wanted = desired.iter().map(|kind| match present.contains(kind) {
        true => Step::Update(*kind),
        false => Step::Create(*kind),
    });
    let others = [Kind::Validating, Kind::Mutating];
    let others = others
        .into_iter()
        .filter(|kind| !desired.contains(kind) && present.contains(kind));
    wanted.chain(others.map(Step::Delete)).collect()
}

/// The path at which evaluators answer for a revision.
pub fn path(revision: &RevisionId) -> String {
    format!("{PREFIX}{revision}")
}

/// The part of a path before the revision's name.
const PREFIX: &str = "/validate/";

/// The same in a path where a change that the policy would still make is a denial.
const CONFIRM_PREFIX: &str = "/confirm/";

fn metadata(input: &Input<'_>) -> ObjectMeta {
    let key = &input.policy.key;
    let (managed_by, us) = names::MANAGED_BY;
    let owned = |pairs: &[(&str, String)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect()
    };
    let resolved = serde_json::to_string(input.resolved).expect("strings and numbers must be JSON");
    ObjectMeta {
        name: Some(names::webhook_configuration(key)),
        labels: Some(owned(&[
            (managed_by, us.to_owned()),
            (names::POLICY_LABEL, names::policy_label(key)),
        ])),
        annotations: Some(owned(&[
            (names::POLICY_ANNOTATION, key.to_string()),
            (names::POLICY_UID_ANNOTATION, input.uid.to_owned()),
            (names::REVISION_ANNOTATION, resolved),
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
fn webhook(input: &Input<'_>, path: &str) -> MutatingWebhook {
    let Input {
        policy, defaults, ..
    } = *input;
    MutatingWebhook {
        name: names::webhook(&policy.key),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: input
            .endpoint
            .client_config(path, &input.defaults.ca_bundle),
        failure_policy: Some(same(&policy.failure_policy)),
        match_conditions: Some(exempt::conditions(policy, defaults)),
        match_policy: Some(same(&policy.match_policy)),
        namespace_selector: Some(exempt::namespaces(policy, defaults)),
        object_selector: Some(same(&policy.object_selector.clone().unwrap_or_default())),
        reinvocation_policy: Some(reinvocation(policy).to_owned()),
        rules: Some(rules(policy)),
        side_effects: same(&policy.side_effects),
        timeout_seconds: Some(i32::try_from(policy.timeout_seconds).unwrap_or(i32::MAX)),
    }
}

/// A cluster policy is asked again if a webhook after it changed the object. A namespaced one is
/// not: it would have the last word.
fn reinvocation(policy: &Parsed) -> &'static str {
    match policy.key.namespace() {
        None => "IfNeeded",
        Some(_) => "Never",
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
