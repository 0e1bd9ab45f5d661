//! The version of a snapshot, computed from the first difference to a predecessor.
//!
//! The input of the hash is one sequence: the number of policies, the policies, the number of
//! routes, the routes. A hash that is kept at the end of each part continues from there, so
//! that a new version costs what follows the first part that changed. A flip changes a route
//! and no policy, and skips the first half. A new candidate changes the number of policies,
//! with which everything begins. Its number is that of an earlier snapshot, though: revisions
//! come and go one at a time.

use std::sync::Arc;

use super::{
    Route,
    chunks::{Chunk, Chunks},
};
use crate::{
    digest::{Framed, Version},
    policy::Policy,
};

/// The hash after each part of its input. With 10,000 policies that is about 40 KiB.
#[derive(Clone, Debug)]
pub(super) struct Trail(Vec<Step>);

#[derive(Clone, Debug)]
struct Step {
    part: Part,
    after: Framed,
}

/// A part of what is hashed. Chunks are compared by address: equal ones of another origin are
/// hashed again.
#[derive(Clone, Debug)]
enum Part {
    PolicyCount(usize),
    Policies(Arc<Chunk<Policy>>),
    RouteCount(usize),
    Routes(Arc<Chunk<Route>>),
}

/// A version, and what computing it cost.
pub(super) struct Computed {
    pub(super) version: Version,
    pub(super) trail: Trail,
    /// Bytes that were hashed.
    pub(super) hashed: usize,
}

// === impl Trail ===

impl Trail {
    /// Computes a version, continuing from the earlier trail that has most in common with it.
    pub(super) fn compute(
        policies: &Chunks<Policy>,
        routes: &Chunks<Route>,
        earlier: &[&Trail],
    ) -> Computed {
        let parts: Vec<Part> = std::iter::once(Part::PolicyCount(policies.len()))
            .chain(policies.chunks().cloned().map(Part::Policies))
            .chain([Part::RouteCount(routes.len())])
            .chain(routes.chunks().cloned().map(Part::Routes))
            .collect();
        let common = |trail: &Trail| {
            let pairs = trail.0.iter().zip(&parts);
            pairs.take_while(|(step, part)| step.part.is(part)).count()
        };
        let known = earlier.iter().map(|trail| (common(trail), *trail));
        let known = known.max_by_key(|(common, _)| *common);
        let mut steps: Vec<Step> = Vec::with_capacity(parts.len());
        if let Some((common, trail)) = known {
            steps.extend_from_slice(&trail.0[..common]);
        }
        let last = steps.last().map(|step| step.after.clone());
        let mut hash = last.unwrap_or_else(|| Framed::new(super::DOMAIN));
        let mut hashed = 0;
        for part in parts.into_iter().skip(steps.len()) {
            hashed += part.hash(&mut hash);
            let after = hash.clone();
            steps.push(Step { part, after });
        }
        Computed {
            version: hash.version(),
            trail: Trail(steps),
            hashed,
        }
    }

    /// Whether the two have the same number of policies, without which they share nothing.
    pub(super) fn is_comparable(&self, other: &Trail) -> bool {
        let first = self.0.first().zip(other.0.first());
        first.is_some_and(|(a, b)| a.part.is(&b.part))
    }
}

// === impl Part ===

impl Part {
    fn is(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::PolicyCount(a), Part::PolicyCount(b)) => a == b,
            (Part::Policies(a), Part::Policies(b)) => Arc::ptr_eq(a, b),
            (Part::RouteCount(a), Part::RouteCount(b)) => a == b,
            (Part::Routes(a), Part::Routes(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Feeds the hash; returns the number of bytes.
    fn hash(&self, hash: &mut Framed) -> usize {
        let bytes = match self {
            Part::PolicyCount(count) | Part::RouteCount(count) => {
                hash.count(*count);
                return size_of::<u32>();
            }
            Part::Policies(chunk) => chunk.bytes(),
            Part::Routes(chunk) => chunk.bytes(),
        };
        hash.encoded(bytes);
        bytes.len()
    }
}
