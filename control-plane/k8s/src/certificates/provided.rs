//! The authorities that cert-manager has provided. It replaces one by another without an overlap,
//! so that the previous ones are trusted until everything that they signed has ended. They are
//! recorded in a Secret: a restart, or a replacement while no control plane runs, must not end
//! that trust.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde::{Deserialize, Serialize};

use crate::names;

/// The key of the record in the Secret.
const RECORD: &str = "provided.json";

/// More authorities than this in the lifetime of a leaf are a mistake of whoever makes them, and
/// each lengthens the bundle of every webhook. Those that end last are kept.
const MAX_RETIRED: usize = 16;

/// Which certificates to trust, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Provided {
    /// Those in cert-manager's Secret.
    current: Vec<String>,
    /// Those that were there before, and until when they are trusted.
    retired: BTreeMap<String, Timestamp>,
}

// === impl Provided ===

impl Provided {
    /// Begins a record with the bundle that is published: that of another mode, or of a version
    /// that kept no record.
    pub(super) fn begin(bundle_pem: &str) -> Self {
        Self {
            current: assent_pki::split(bundle_pem).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Reads the record.
    pub(super) fn read(secret: &Secret) -> Self {
        let data = secret.data.as_ref();
        let record = data.and_then(|data| data.get(RECORD));
        let Some(record) = record else {
            return Self::default();
        };
        serde_json::from_slice(&record.0).unwrap_or_else(|error| {
            tracing::error!(%error, "failed to read {RECORD} in the Secret {}: certificates of earlier authorities are no longer trusted", names::CA_RECORD);
            Self::default()
        })
    }

    /// Writes the record into the object that it was read from, or into a new one.
    pub(super) fn write(&self, mut secret: Secret) -> Secret {
        secret.metadata.name = Some(names::CA_RECORD.to_owned());
        secret.metadata.managed_fields = None;
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.insert(
            names::MANAGED_BY.0.to_owned(),
            names::MANAGED_BY.1.to_owned(),
        );
        let record = serde_json::to_vec(self).expect("a map of texts must be JSON");
        let data = secret.data.get_or_insert_default();
        data.insert(RECORD.to_owned(), ByteString(record));
        secret
    }

    /// Takes what cert-manager provides now. What it no longer does is trusted for as long as its
    /// leaves live.
    pub(super) fn replace(&mut self, current: Vec<String>, now: SystemTime, leaf: Duration) {
        let until = timestamp(now + leaf);
        for old in std::mem::replace(&mut self.current, current) {
            self.retire(old, until);
        }
        self.tidy(now);
    }

    /// Takes over what another replica of the control plane has recorded.
    pub(super) fn merge(&mut self, other: &Self, now: SystemTime, leaf: Duration) {
        for (old, until) in &other.retired {
            self.retire(old.clone(), *until);
        }
        let until = timestamp(now + leaf);
        for old in &other.current {
            self.retired.entry(old.clone()).or_insert(until);
        }
        self.tidy(now);
    }

    /// Trusted in addition to the current ones.
    pub(super) fn retired(&self) -> Vec<String> {
        self.retired.keys().cloned().collect()
    }

    fn retire(&mut self, old: String, until: Timestamp) {
        let at = self.retired.entry(old).or_insert(until);
        *at = until.max(*at);
    }

    fn tidy(&mut self, now: SystemTime) {
        let (now, current) = (timestamp(now), &self.current);
        self.retired
            .retain(|old, until| *until > now && !current.contains(old));
        while self.retired.len() > MAX_RETIRED {
            let first = self.retired.iter().min_by_key(|(_, until)| **until);
            let Some(first) = first.map(|(old, _)| old.clone()) else {
                return;
            };
            self.retired.remove(&first);
        }
    }
}

/// Whole seconds, so that what was written and read again is equal.
fn timestamp(time: SystemTime) -> Timestamp {
    let exact = Timestamp::try_from(time).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(exact.as_second()).unwrap_or(exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: Duration = Duration::from_secs(100);

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second)
    }

    fn mk(current: &[&str]) -> Vec<String> {
        current.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn replaced_authority_is_trusted_until_its_leaves_have_ended() {
        let mut provided = Provided::default();
        provided.replace(mk(&["a"]), at(0), LEAF);
        assert!(provided.retired().is_empty());
        provided.replace(mk(&["b"]), at(10), LEAF);
        assert_eq!(provided.retired(), ["a"]);
        // Looking again does not prolong it.
        provided.replace(mk(&["b"]), at(109), LEAF);
        assert_eq!(provided.retired(), ["a"]);
        provided.replace(mk(&["b"]), at(110), LEAF);
        assert!(provided.retired().is_empty());
    }

    #[test]
    fn record_survives_a_restart() {
        let mut provided = Provided::default();
        provided.replace(mk(&["a"]), at(0), LEAF);
        provided.replace(mk(&["b"]), at(10), LEAF);
        let secret = provided.write(Secret::default());
        let mut again = Provided::read(&secret);
        assert_eq!(again, provided);
        // Replaced while nobody looked.
        again.replace(mk(&["c"]), at(50), LEAF);
        assert_eq!(again.retired(), ["a", "b"]);
        again.replace(mk(&["c"]), at(120), LEAF);
        assert_eq!(again.retired(), ["b"]);
    }

    #[test]
    fn what_another_replica_has_seen_is_kept() {
        let mut ours = Provided::default();
        ours.replace(mk(&["c"]), at(20), LEAF);
        let mut theirs = Provided::default();
        theirs.replace(mk(&["a"]), at(0), LEAF);
        theirs.replace(mk(&["b"]), at(10), LEAF);
        ours.merge(&theirs, at(20), LEAF);
        assert_eq!(ours.retired(), ["a", "b"]);
        let before = ours.clone();
        ours.merge(&theirs, at(30), LEAF);
        assert_eq!(ours, before, "merging again changes nothing");
    }

    #[test]
    fn retired_authorities_are_bounded() {
        let mut provided = Provided::default();
        for n in 0..100 {
            provided.replace(mk(&[&format!("{n:03}")]), at(n), LEAF * 100);
        }
        let retired = provided.retired();
        assert_eq!(retired.len(), MAX_RETIRED);
        assert_eq!(retired.last().map(String::as_str), Some("098"));
    }
}
