//! Policies of a namespace by age: a quota goes to the oldest ones.

use std::collections::{BTreeMap, BTreeSet};

use assent_core::PolicyKey;
use jiff::Timestamp;

use super::Meta;

/// Policies that are not being deleted, by namespace.
#[derive(Debug, Default)]
pub(super) struct Seniority(BTreeMap<String, BTreeSet<Rank>>);

/// The oldest comes first; of equally old ones, the first by name. Every process that lists
/// the same objects comes to the same order.
type Rank = (Option<Timestamp>, PolicyKey);

// === impl Seniority ===

impl Seniority {
    /// The object of a policy changed from `old` to `new`.
    pub(super) fn replace(&mut self, key: &PolicyKey, old: Option<&Meta>, new: Option<&Meta>) {
        let Some(namespace) = key.namespace() else {
            return;
        };
        let policies = self.0.entry(namespace.to_owned()).or_default();
        if let Some(old) = old {
            policies.remove(&(old.created, key.clone()));
        }
        if let Some(new) = new.filter(|new| !new.deleting) {
            policies.insert((new.created, key.clone()));
        }
        if policies.is_empty() {
            self.0.remove(namespace);
        }
    }

    /// How many policies a namespace has.
    pub(super) fn count(&self, namespace: &str) -> usize {
        self.0.get(namespace).map_or(0, BTreeSet::len)
    }

    /// The policies of a namespace, oldest first.
    pub(super) fn of<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a PolicyKey> + 'a {
        let policies = self.0.get(namespace).into_iter().flatten();
        policies.map(|(_, key)| key)
    }
}
