//! From the verdicts of a route's policies to one decision.

use std::time::{Duration, Instant};

use assent_core::Mode;
use assent_wasm::{EvalError, LogText, Review, Verdict};

use super::{LoadedPolicy, Route};

/// What a front end asks the policies of a route.
pub(crate) struct Query<'a> {
    pub(crate) review: Review<'a>,
    /// Whether monitor mode applies. An audit asks for the verdicts as they are.
    pub(crate) monitor: bool,
    /// How the patches of two policies of one route are joined.
    pub(crate) join: JoinPatches,
}

/// Joins the patch of an earlier policy with that of a later one; none if they exclude each other.
pub(crate) type JoinPatches = fn(&[u8], &[u8]) -> Option<Vec<u8>>;

/// What the policies of a route decided together.
pub(crate) struct Decision<'a> {
    pub(crate) verdict: Verdict,
    /// The policy that decided: the one that denied, else the last one.
    pub(crate) policy: &'a LoadedPolicy,
    /// Whether the policy gave no verdict. The verdict is then a denial that says why, for front ends whose
    /// protocol knows no other way to report an error.
    pub(crate) failed: bool,
    /// Whether it gave none because the evaluator has no memory left: another replica may have.
    pub(crate) overloaded: bool,
    /// The message of a denial that monitor mode let pass.
    pub(crate) monitored: Option<String>,
    /// Time that the policies took.
    pub(crate) took: Duration,
}

/// The fault is the policy's, not the request's.
const FAILURE_CODE: u16 = 500;

/// Asks each policy in order; the first denial ends it.
pub(super) fn decide<'a>(
    route: &'a Route,
    query: &Query<'_>,
    on_slow: Option<fn()>,
) -> Decision<'a> {
    let (mut all, mut total) = (None, Duration::ZERO);
    for policy in route.policies() {
        let began = Instant::now();
        let decision = ask(policy, query, on_slow);
        let took = began.elapsed();
        policy.limit().record(took);
        total += took;
        let decision = match all.take() {
            None => decision,
            Some(before) => join(before, decision, query.join),
        };
        let denied = !decision.verdict.allowed;
        all = Some(decision);
        if denied {
            break;
        }
    }
    Decision {
        took: total,
        ..all.expect("a route must have a policy")
    }
}

fn ask<'a>(policy: &'a LoadedPolicy, query: &Query<'_>, on_slow: Option<fn()>) -> Decision<'a> {
    let mut overloaded = false;
    let (verdict, failed) = match policy.evaluate(&query.review, on_slow) {
        Ok(verdict) => {
            let metrics = policy.metrics();
            let counter = match (&verdict.patch, verdict.allowed) {
                (_, false) => &metrics.denied,
                (Some(_), true) => &metrics.mutated,
                (None, true) => &metrics.allowed,
            };
            counter.inc();
            (verdict, false)
        }
        Err(error) => {
            overloaded = error == EvalError::Overloaded;
            let (name, revision) = (&policy.policy.policy, &policy.policy.revision);
            let reason = error.reason();
            let text = error.to_string();
            let error = LogText(&text);
            tracing::warn!(policy = %name, %revision, reason, %error, "evaluation failed");
            let message =
                format!("policy {name} (revision {revision}) gave no verdict ({reason}): {text}");
            (failure(message), true)
        }
    };
    if query.monitor && policy.policy.content.mode == Mode::Monitor {
        let_pass(policy, verdict, failed)
    } else {
        Decision {
            verdict,
            policy,
            failed,
            overloaded,
            monitored: None,
            took: Duration::ZERO,
        }
    }
}

/// Monitor mode: operators learn the verdict, and the request passes unchanged.
fn let_pass(policy: &LoadedPolicy, verdict: Verdict, failed: bool) -> Decision<'_> {
    let mut warnings = verdict.warnings;
    let mut monitored = None;
    if !verdict.allowed {
        let message = verdict.message.as_deref().unwrap_or("no message");
        let logged = match policy.policy.content.is_confidential() {
            true => "withheld, because some settings come from Secrets",
            false => message,
        };
        let (name, revision) = (&policy.policy.policy, &policy.policy.revision);
        tracing::info!(policy = %name, %revision, message = LogText(logged).to_string(), "denied in monitor mode; let pass");
        if failed {
            warnings.push(message.to_owned());
        }
        monitored = Some(message.to_owned());
    }
    let verdict = Verdict {
        allowed: true,
        warnings,
        audit_annotations: verdict.audit_annotations,
        ..Verdict::default()
    };
    Decision {
        verdict,
        policy,
        failed: false,
        overloaded: false,
        monitored,
        took: Duration::ZERO,
    }
}

/// Joins the decision so far with that of the next policy.
fn join<'a>(before: Decision<'a>, next: Decision<'a>, join_patches: JoinPatches) -> Decision<'a> {
    let Decision {
        mut verdict,
        policy,
        failed,
        overloaded,
        monitored,
        took,
    } = next;
    let monitored = before.monitored.or(monitored);
    let Verdict {
        patch: earlier,
        effects: earlier_effects,
        warnings,
        mut audit_annotations,
        ..
    } = before.verdict;
    audit_annotations.append(&mut verdict.audit_annotations);
    verdict.audit_annotations = audit_annotations;
    // A denied request is not changed.
    if let (true, Some(mut all)) = (verdict.allowed, earlier_effects) {
        if let Some(later) = verdict.effects.take() {
            all.merge(*later);
        }
        verdict.effects = Some(all);
    }
    verdict.warnings.splice(..0, warnings);
    if !verdict.allowed {
        // A denied request is not changed.
        verdict.patch = None;
        return Decision {
            verdict,
            policy,
            failed,
            overloaded,
            monitored,
            took,
        };
    }
    verdict.patch = match (earlier, verdict.patch) {
        (Some(first), Some(second)) => match join_patches(&first, &second) {
            Some(patch) => Some(patch),
            None => return conflict(policy),
        },
        (first, second) => second.or(first),
    };
    Decision {
        verdict,
        policy,
        failed,
        overloaded,
        monitored,
        took,
    }
}

fn conflict(policy: &LoadedPolicy) -> Decision<'_> {
    let message = format!(
        "policy {} (revision {}) changes what an earlier policy of the same route has changed",
        policy.policy.policy, policy.policy.revision
    );
    Decision {
        verdict: failure(message),
        policy,
        failed: true,
        overloaded: false,
        monitored: None,
        took: Duration::ZERO,
    }
}

fn failure(message: String) -> Verdict {
    Verdict {
        allowed: false,
        code: Some(FAILURE_CODE),
        message: Some(message),
        ..Verdict::default()
    }
}
