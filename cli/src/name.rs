//! Names of policies on the command line.

use std::str::FromStr;

use assent_core::PolicyKey;

/// A policy: `NAME`, `NAMESPACE/NAME`, or a complete key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyName {
    key: PolicyKey,
    /// Only a name was given, which `--namespace` makes that of an AdmissionPolicy.
    bare: bool,
}

/// The flag `-n`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NamespaceArgs {
    /// Only policies of this namespace; NAME is an AdmissionPolicy in it
    #[arg(short, long, value_name = "NS", value_parser = namespace)]
    namespace: Option<String>,
}

/// The text is not the name of a policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "not the name of a policy; use NAME or cluster/NAME for a ClusterAdmissionPolicy, NAMESPACE/NAME or namespaced/NAMESPACE/NAME for an AdmissionPolicy, cluster-requests/NAME for a ClusterRequestPolicy, requests/NAMESPACE/NAME for a RequestPolicy"
)]
pub(crate) struct Error;

// === impl PolicyName ===

impl PolicyName {
    /// The policy that is meant.
    pub(crate) fn within(self, NamespaceArgs { namespace }: &NamespaceArgs) -> PolicyKey {
        match namespace {
            Some(namespace) if self.bare => PolicyKey::namespaced(namespace, self.key.name()),
            _ => self.key,
        }
    }
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = text.split('/').collect();
        let bare = parts.len() == 1;
        let key = match parts.as_slice() {
            [name] => format!("cluster/{name}"),
            ["cluster" | "cluster-requests", _] | ["namespaced" | "requests", _, _] => {
                text.to_owned()
            }
            [namespace, name] => format!("namespaced/{namespace}/{name}"),
            _ => return Err(Error),
        };
        let key = PolicyKey::parse(&key).ok_or(Error)?;
        Ok(Self { key, bare })
    }
}

// === impl NamespaceArgs ===

impl NamespaceArgs {
    /// Whether a policy, by its key, is to be shown.
    pub(crate) fn contains(&self, policy: &str) -> bool {
        let Some(namespace) = &self.namespace else {
            return true;
        };
        let key = PolicyKey::parse(policy);
        key.is_some_and(|key| key.namespace() == Some(namespace))
    }
}

/// Checks the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    let valid = PolicyKey::parse(&format!("namespaced/{text}/x")).is_some();
    let wrong = || format!("{text:?} is not the name of a namespace");
    valid.then(|| text.to_owned()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        let key = text
            .parse::<PolicyName>()
            .ok()
            .map(|name| name.within(&NamespaceArgs::default()).to_string());
        assert_eq!(key.as_deref(), expect, "{text}");
    }

    #[test]
    fn names_parse_in_every_form() {
        check("no-privileged", Some("cluster/no-privileged"));
        check("cluster/no-privileged", Some("cluster/no-privileged"));
        check("shop/limits", Some("namespaced/shop/limits"));
        check("namespaced/shop/limits", Some("namespaced/shop/limits"));
        check(
            "namespaced/cluster/limits",
            Some("namespaced/cluster/limits"),
        );
        check("cluster-requests/jwt", Some("cluster-requests/jwt"));
        check("requests/shop/jwt", Some("requests/shop/jwt"));
        for wrong in ["", "/", "a/", "/a", "Upper", "a/b/c", "cluster/a/b", "a b"] {
            check(wrong, None);
        }
    }

    #[test]
    fn namespace_makes_a_bare_name_namespaced() {
        let shop = NamespaceArgs {
            namespace: Some("shop".into()),
        };
        let within = |text: &str| {
            let name: PolicyName = text.parse().expect("it must be a name");
            name.within(&shop).to_string()
        };
        assert_eq!(within("limits"), "namespaced/shop/limits");
        assert_eq!(within("cluster/limits"), "cluster/limits");
        assert_eq!(within("other/limits"), "namespaced/other/limits");
        assert!(shop.contains("namespaced/shop/limits") && shop.contains("requests/shop/jwt"));
        assert!(!shop.contains("cluster/limits") && !shop.contains("namespaced/shop2/limits"));
        assert!(NamespaceArgs::default().contains("cluster/limits"));
        assert!(namespace("shop").is_ok() && namespace("Shop/x").is_err());
    }
}
