//! Denials by kind and namespace, within a bound.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

/// Counts denials. Clones count together.
#[derive(Clone, Default)]
pub(crate) struct Denials {
    family: Family<DenialLabels, Counter>,
    known: Arc<Mutex<HashSet<(String, String)>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DenialLabels {
    kind: String,
    namespace: String,
    verdict: &'static str,
}

/// Kinds times namespaces. Both come from requests, and whoever may create namespaces could otherwise make series
/// without end.
const MOST: usize = 500;

/// The label of everything beyond the bound.
const OTHER: &str = "other";

/// Names of Kubernetes are shorter; whoever sends longer ones is no API server.
const MAX_LABEL: usize = 256;

// === impl Denials ===

impl Denials {
    /// Counts one.
    pub(crate) fn count(&self, kind: String, namespace: &str, verdict: &'static str) {
        let (kind, namespace) = self.bounded(kind, namespace.to_owned());
        let labels = DenialLabels {
            kind,
            namespace,
            verdict,
        };
        self.family.get_or_create(&labels).inc();
    }

    /// What is registered.
    pub(super) fn family(&self) -> Family<DenialLabels, Counter> {
        self.family.clone()
    }

    fn bounded(&self, kind: String, namespace: String) -> (String, String) {
        let other = || (OTHER.to_owned(), OTHER.to_owned());
        if kind.len() > MAX_LABEL || namespace.len() > MAX_LABEL {
            return other();
        }
        let labels = (kind, namespace);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&labels) {
            return labels;
        }
        if known.len() >= MOST {
            return other();
        }
        known.insert(labels.clone());
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_bounded_and_nothing_is_lost() {
        let denials = Denials::default();
        for n in 0..MOST + 100 {
            denials.count("Pod".into(), &format!("ns-{n}"), "denied");
        }
        denials.count("x".repeat(1000), "shop", "denied");
        let count = |kind: &str, namespace: &str| {
            let labels = DenialLabels {
                kind: kind.into(),
                namespace: namespace.into(),
                verdict: "denied",
            };
            denials.family.get_or_create(&labels).get()
        };
        assert_eq!(count("Pod", "ns-0"), 1);
        assert_eq!(count(OTHER, OTHER), 101);
        assert_eq!(
            denials.known.lock().map(|known| known.len()).ok(),
            Some(MOST)
        );
    }
}
