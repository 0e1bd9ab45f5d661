//! Resources that namespaced policies must not change.
//!
//! Whoever may write an AdmissionPolicy could otherwise change what others write in the namespace: add a subject to an
//! administrator's RoleBinding, or put another value into a Secret.

use std::{fmt, str::FromStr};

use super::reader::Sink;
use crate::rules::{Operation, Rule};

/// Resources that mutating AdmissionPolicies must not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedResources(Vec<ProtectedResource>);

/// One resource, or one of its subresources.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProtectedResource {
    group: String,
    resource: String,
    /// `None` protects the resource and all of its subresources.
    subresource: Option<String>,
}

/// Why a list of resources is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a resource: write \"secrets\", \"roles.rbac.authorization.k8s.io\" or \"pods/exec\""
)]
pub struct NotAResource(String);

/// What decides about rights, secrets, isolation and quotas of a namespace, or about where its pods run.
const DEFAULT: &str = "secrets,serviceaccounts,serviceaccounts/token,roles.rbac.authorization.k8s.io,\
    rolebindings.rbac.authorization.k8s.io,networkpolicies.networking.k8s.io,resourcequotas,limitranges,endpoints,\
    endpointslices.discovery.k8s.io,bindings,pods/binding,pods/exec,pods/attach,pods/portforward";

// === impl ProtectedResources ===

impl ProtectedResources {
    /// Nothing is protected.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Reports the rules of a mutating namespaced policy that select what is protected.
    pub(super) fn check(&self, sink: &Sink, rules: &[Rule]) {
        for (i, rule) in rules.iter().enumerate() {
            for (j, pattern) in rule.resources.iter().enumerate() {
                let mut protected = self.0.iter();
                if let Some(found) = protected.find(|one| one.is_selected(rule, pattern)) {
                    sink.error(
                        &format!("spec.rules[{i}].resources[{j}]"),
                        format!(
                            "\"{pattern}\" includes {found}, which a mutating AdmissionPolicy must not change; name other \
                             resources, or set mutating to false"
                        ),
                    );
                }
            }
        }
    }
}

impl Default for ProtectedResources {
    fn default() -> Self {
        DEFAULT.parse().expect("the default list must be valid")
    }
}

impl FromStr for ProtectedResources {
    type Err = NotAResource;

    /// A list with commas; an empty text protects nothing.
    fn from_str(text: &str) -> Result<Self, NotAResource> {
        let items = text.split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for ProtectedResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, one) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{one}")?;
        }
        Ok(())
    }
}

// === impl ProtectedResource ===

impl ProtectedResource {
    /// Whether a resource pattern of a rule can select it in a request that changes objects. Versions do not matter:
    /// every version is a view of the same object.
    fn is_selected(&self, rule: &Rule, pattern: &str) -> bool {
        let changes = rule.operations.iter().any(|op| *op != Operation::Delete);
        let mut groups = rule.api_groups.iter();
        changes && groups.any(|g| g == "*" || *g == self.group) && self.matches(pattern)
    }

    fn matches(&self, pattern: &str) -> bool {
        let (resource, sub) = match pattern.split_once('/') {
            Some((resource, sub)) => (resource, Some(sub)),
            None => (pattern, None),
        };
        if resource != "*" && resource != self.resource {
            return false;
        }
        match (&self.subresource, sub) {
            (Some(own), Some(sub)) => sub == "*" || sub == own,
            (Some(_), None) => false,
            (None, None) => true,
            // `*/scale` selects one subresource of many resources, which this one may not even have.
            (None, Some(sub)) => resource != "*" || sub == "*",
        }
    }
}

impl FromStr for ProtectedResource {
    type Err = NotAResource;

    fn from_str(text: &str) -> Result<Self, NotAResource> {
        let (name, subresource) = match text.split_once('/') {
            Some((name, sub)) => (name, Some(sub)),
            None => (text, None),
        };
        let (resource, group) = name.split_once('.').unwrap_or((name, ""));
        let word = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        let valid = word(resource)
            && subresource.is_none_or(word)
            && (!name.contains('.') || assent_core::policy::is_dns_subdomain(group));
        if !valid {
            return Err(NotAResource(text.to_owned()));
        }
        Ok(Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.map(str::to_owned),
        })
    }
}

impl fmt::Display for ProtectedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.subresource {
            Some(sub) => write!(f, "/{sub}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
