//! Whether what a mutating policy changed is still there when the object is validated.

use std::sync::Arc;

use assent_wasm::Verdict;
use serde::Deserialize;

use crate::{
    active::PolicySet,
    evaluation::{Decision, Evaluation, Query, Route},
};

/// Changes that a message names at most.
const NAMED: usize = 5;

/// The request is at fault, not the policy.
const CODE: u16 = 403;

/// The other revisions of a policy; looked up only if they are needed.
#[derive(Default)]
pub(super) struct OtherRevisions(Option<(String, Arc<PolicySet>)>);

#[derive(Deserialize)]
struct Change {
    op: String,
    path: String,
}

// === impl OtherRevisions ===

impl OtherRevisions {
    /// Those beside the one that answers `path`.
    pub(super) fn of(path: &str, set: Arc<PolicySet>) -> Self {
        Self(Some((path.to_owned(), set)))
    }

    fn routes(&self) -> impl Iterator<Item = Arc<Route>> {
        let found = self.0.iter();
        found.flat_map(|(path, set)| set.other_revisions(path))
    }
}

/// Turns a change that the policy would still make into a denial: something changed the object after the policy.
///
/// While a webhook is being pointed at another revision, an API server may have had the object changed by one revision
/// and ask another one here. Therefore a change is no denial if any other loaded revision of the policy would make none,
/// or does not mutate.
pub(super) fn confirm<'a>(
    evaluation: &'a Evaluation,
    others: &OtherRevisions,
    query: &Query<'_>,
) -> Decision<'a> {
    let mut decision = evaluation.decide(query);
    let Some(patch) = decision.verdict.patch.take() else {
        return decision;
    };
    for route in others.routes() {
        let mut policies = route.policies().iter();
        if !policies.any(|one| one.policy.content.mutating) {
            return decision;
        }
        let other = evaluation.decide_by(&route, query);
        decision.overloaded |= other.overloaded;
        if other.overloaded || (other.verdict.allowed && other.verdict.patch.is_none()) {
            return decision;
        }
    }
    let policy = &decision.policy.policy;
    let message = format!(
        "policy {} (revision {}) would change the object once more ({}): something changed it after the policy",
        policy.policy,
        policy.revision,
        summary(&patch)
    );
    decision.verdict = Verdict {
        allowed: false,
        code: Some(CODE),
        message: Some(message),
        warnings: decision.verdict.warnings,
        audit_annotations: decision.verdict.audit_annotations,
        ..Verdict::default()
    };
    decision
}

/// The changes of a patch, without their values, which may be secret.
fn summary(patch: &[u8]) -> String {
    let changes: Vec<Change> = serde_json::from_slice(patch).unwrap_or_default();
    let named = changes.iter().take(NAMED);
    let named: Vec<_> = named
        .map(|one| format!("{} {}", one.op, one.path))
        .collect();
    match changes.len().checked_sub(NAMED) {
        None | Some(0) => named.join(", "),
        Some(more) => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_places_and_no_values() {
        let patch = br#"[{"op":"add","path":"/a","value":"secret"},{"op":"remove","path":"/b/c"}]"#;
        assert_eq!(summary(patch), "add /a, remove /b/c");
        let many: Vec<_> = (0..7)
            .map(|n| serde_json::json!({"op": "remove", "path": format!("/{n}")}))
            .collect();
        let many = serde_json::to_vec(&many).expect("a patch must be JSON");
        assert!(summary(&many).ends_with("remove /4 and 2 more"));
    }
}
