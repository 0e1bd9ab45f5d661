//! Names of policies on the command line.

use std::str::FromStr;

use assent_core::PolicyKey;

/// A policy: `NAME`, `NAMESPACE/NAME`, or a complete key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyName(pub(crate) PolicyKey);

/// The text is not the name of a policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "not the name of a policy; use NAME or cluster/NAME for a ClusterAdmissionPolicy, NAMESPACE/NAME or namespaced/NAMESPACE/NAME for an AdmissionPolicy"
)]
pub(crate) struct Error;

// === impl PolicyName ===

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let key = match text.split('/').collect::<Vec<_>>().as_slice() {
            [name] => format!("cluster/{name}"),
            ["cluster", _] | ["namespaced", _, _] => text.to_owned(),
            [namespace, name] => format!("namespaced/{namespace}/{name}"),
            _ => return Err(Error),
        };
        PolicyKey::parse(&key).map(Self).ok_or(Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        let key = text
            .parse::<PolicyName>()
            .ok()
            .map(|name| name.0.to_string());
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
        for wrong in ["", "/", "a/", "/a", "Upper", "a/b/c", "cluster/a/b", "a b"] {
            check(wrong, None);
        }
    }
}
