//! The revisions that a client claims to hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    digest::Digest,
    policy::RevisionId,
    snapshot::{Delta, Snapshot},
};

/// What a client holds according to its first message.
///
/// A stream keeps it until a later response was acknowledged, which on an idle stream may
/// never happen. It is therefore stored as the difference to the first snapshot that the
/// stream was given: after a fail-over that difference is small or empty, however many
/// policies there are.
#[derive(Debug)]
pub(super) enum Claim {
    /// As the client wrote it, before there is a snapshot to compare it with.
    Map(BTreeMap<String, Digest>),
    /// The revisions of `base`, apart from the exceptions.
    Relative {
        base: Arc<Snapshot>,
        /// Revisions of `base` that the client does not hold, or holds with other content.
        missing: BTreeSet<RevisionId>,
        /// Revisions that the client holds and `base` does not have with that content.
        extra: BTreeMap<String, Digest>,
    },
}

// === impl Claim ===

impl Claim {
    /// Replaces the map by the difference to `target`.
    pub(super) fn compact(&mut self, target: &Arc<Snapshot>) {
        let Claim::Map(held) = self else { return };
        let mut extra = std::mem::take(held);
        let mut missing = BTreeSet::new();
        for policy in target.policies() {
            let name = policy.revision.as_str();
            if extra.get(name) == Some(&policy.content_digest) {
                extra.remove(name);
            } else {
                missing.insert(policy.revision.clone());
            }
        }
        // Nothing in common: the client's own map is the smaller one.
        if missing.len() == target.policies().len() {
            *self = Claim::Map(extra);
            return;
        }
        *self = Claim::Relative {
            base: target.clone(),
            missing,
            extra,
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Claim::Map(held) => held.is_empty(),
            Claim::Relative { .. } => false,
        }
    }

    /// Whether the client holds exactly the revisions of `target`.
    pub(super) fn is_exactly(&self, target: &Snapshot) -> bool {
        match self {
            Claim::Map(held) => target.holds_exactly(held),
            Claim::Relative {
                base,
                missing,
                extra,
            } if base.version() == target.version() => missing.is_empty() && extra.is_empty(),
            Claim::Relative { .. } => target.holds_exactly(&self.to_map()),
        }
    }

    /// What has to be sent for the client to hold `target`. Its routes are unknown, so that
    /// all of them are sent.
    pub(super) fn delta_to(&self, target: &Snapshot) -> Delta {
        match self {
            Claim::Map(held) => target.delta_from_claim(held),
            Claim::Relative {
                base,
                missing,
                extra,
            } if base.version() == target.version() => Delta {
                policies: missing
                    .iter()
                    .filter_map(|id| target.get(id.as_str()).cloned())
                    .collect(),
                removed_revisions: extra
                    .keys()
                    .filter(|name| !target.contains(name))
                    .map(|name| RevisionId::from_wire(name))
                    .collect(),
                routes: target.routes().cloned().collect(),
                removed_routes: Vec::new(),
            },
            Claim::Relative { .. } => target.delta_from_claim(&self.to_map()),
        }
    }

    /// The map as the client wrote it. It is needed when a client refuses the first
    /// snapshot, and another one is published.
    fn to_map(&self) -> BTreeMap<String, Digest> {
        match self {
            Claim::Map(held) => held.clone(),
            Claim::Relative {
                base,
                missing,
                extra,
            } => {
                let held = base.policies().filter(|p| !missing.contains(&p.revision));
                let held = held.map(|p| (p.revision.to_string(), p.content_digest));
                held.chain(extra.iter().map(|(name, digest)| (name.clone(), *digest)))
                    .collect()
            }
        }
    }
}

impl Default for Claim {
    fn default() -> Self {
        Claim::Map(BTreeMap::new())
    }
}
