//! What namespaces may ask of a PolicyServer, and what a PolicyServer may refer to.

use std::collections::{BTreeMap, BTreeSet};

use assent_core::policy::DEFAULT_SERVER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    rules::{LabelSelector, MAX_ITEMS},
    server::PolicyServerSpec,
};

/// The label that every namespace has: its name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Namespaces whose policies may name a PolicyServer. Cluster-wide policies always may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = selected_validations()))]
pub struct AllowedNamespaces {
    /// `All`, `None`, or `Selected` by `names` and `selector`.
    pub from: NamespacesFrom,
    /// Names of namespaces; only with `from: Selected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub names: Vec<String>,
    /// Labels of namespaces, in addition to `names`; only with `from: Selected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Which namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespacesFrom {
    /// Every namespace.
    All,
    /// No namespace.
    #[default]
    None,
    /// Those that are named or match the selector.
    Selected,
}

/// Objects in the control plane's namespace that no PolicyServer may refer to, because they
/// are the control plane's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Secrets: the certificate authority's key.
    pub secrets: BTreeSet<String>,
    /// ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Service accounts.
    pub service_accounts: BTreeSet<String>,
}

/// A kind of object in the control plane's namespace that a PolicyServer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// A ServiceAccount.
    ServiceAccount,
}

/// An object in the control plane's namespace that a PolicyServer refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `spec.env[0].valueFrom.secretKeyRef`.
    pub path: String,
    /// Its kind.
    pub kind: ReferenceKind,
    /// Its name.
    pub name: String,
    /// The key in it; empty for all of it.
    pub key: String,
}

/// Whether policies of a namespace may name the PolicyServer `server`. Without
/// `allowedNamespaces`, the server `default` takes all of them and every other server none.
pub fn allows_policies(
    server: &str,
    spec: Option<&PolicyServerSpec>,
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    match spec.and_then(|spec| spec.allowed_namespaces.as_ref()) {
        Some(allowed) => allowed.contains(namespace, labels),
        None => server == DEFAULT_SERVER,
    }
}

/// Why policies of a namespace may not name the PolicyServer, and what to do.
pub fn not_allowed(server: &str, namespace: &str) -> String {
    format!(
        "spec.policyServer: the PolicyServer {server:?} does not allow policies of the namespace \
         {namespace:?}; name another PolicyServer, or have the namespace added to its \
         spec.allowedNamespaces"
    )
}

/// Why a namespace may have no further policy, and what to do.
pub fn quota_exceeded(namespace: &str, max: usize) -> String {
    format!(
        "the namespace {namespace:?} may have {max} policies, and older ones use them up; delete \
         policies, or have the control plane's --max-policies-per-namespace raised"
    )
}

fn selected_validations() -> Value {
    json!([{
        "rule": "self.from == 'Selected' || !has(self.names) && !has(self.selector)",
        "message": "names and selector are for from: Selected",
    }, {
        "rule": "self.from != 'Selected' || has(self.names) || has(self.selector)",
        "message": "from: Selected needs names or a selector",
    }])
}

// === impl AllowedNamespaces ===

impl AllowedNamespaces {
    /// Whether it contains a namespace. No selector matches one whose labels are not known:
    /// a requirement that a label is missing would let everybody in.
    pub fn contains(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        match self.from {
            NamespacesFrom::All => true,
            NamespacesFrom::None => false,
            NamespacesFrom::Selected => {
                let selector = self.selector.as_ref().zip(labels);
                self.names.iter().any(|name| name == namespace)
                    || selector.is_some_and(|(selector, labels)| selector.selects(labels))
            }
        }
    }

    /// What the API server checks by CEL in a cluster.
    pub(crate) fn error(&self) -> Option<&'static str> {
        let selects = !self.names.is_empty() || self.selector.is_some();
        match (self.from, selects) {
            (NamespacesFrom::Selected, false) => Some("from: Selected needs names or a selector"),
            (NamespacesFrom::All | NamespacesFrom::None, true) => {
                Some("names and selector are for from: Selected")
            }
            _ if self.names.len() > MAX_ITEMS => Some("names has more than 64 entries; use labels"),
            _ => None,
        }
    }
}

// === impl Reserved ===

impl Reserved {
    /// Whether an object is one of them.
    pub fn contains(&self, kind: ReferenceKind, name: &str) -> bool {
        let names = match kind {
            ReferenceKind::Secret => &self.secrets,
            ReferenceKind::ConfigMap => &self.config_maps,
            ReferenceKind::ServiceAccount => &self.service_accounts,
        };
        names.contains(name)
    }
}

// === impl ReferenceKind ===

impl ReferenceKind {
    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            ReferenceKind::Secret => "Secret",
            ReferenceKind::ConfigMap => "ConfigMap",
            ReferenceKind::ServiceAccount => "ServiceAccount",
        }
    }
}

// === impl PolicyServerSpec ===

impl PolicyServerSpec {
    /// Every object of the control plane's namespace that the spec refers to.
    pub fn references(&self) -> Vec<Reference> {
        let mut all = Vec::new();
        let mut add = |path: String, kind, name: &str, key: &str| {
            let (name, key) = (name.to_owned(), key.to_owned());
            all.push(Reference {
                path,
                kind,
                name,
                key,
            });
        };
        let (secret, config_map) = (ReferenceKind::Secret, ReferenceKind::ConfigMap);
        for (i, env) in self.env.iter().enumerate() {
            let Some(source) = &env.value_from else {
                continue;
            };
            let path = |field| format!("spec.env[{i}].valueFrom.{field}");
            if let Some(from) = &source.secret_key_ref {
                add(path("secretKeyRef"), secret, &from.name, &from.key);
            }
            if let Some(from) = &source.config_map_key_ref {
                add(path("configMapKeyRef"), config_map, &from.name, &from.key);
            }
        }
        if let Some(name) = &self.image_pull_secret {
            add("spec.imagePullSecret".into(), secret, name, "");
        }
        for (i, from) in self.image_pull_secrets.iter().enumerate() {
            let path = format!("spec.imagePullSecrets[{i}]");
            add(path, secret, &from.name, "");
        }
        if let Some(name) = &self.service_account_name {
            let path = "spec.serviceAccountName".into();
            add(path, ReferenceKind::ServiceAccount, name, "");
        }
        let secure = self.sources.iter().flat_map(|sources| &sources.secure);
        for (i, source) in secure.enumerate() {
            if let Some(from) = source.certificate_from.as_ref() {
                let from = &from.config_map_key_ref;
                let path = format!("spec.sources.secure[{i}].certificateFrom.configMapKeyRef");
                add(path, config_map, &from.name, &from.key);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
