//! A request at Envoy: the file of --check, or the request of a case.

use assent_api::Parsed;
use assent_evaluator::check;
use assent_wasm::{RequestEffects, Verdict};
use serde::Serialize;

/// A verdict in the form that OPA's Envoy plugin documents for results.
#[derive(Serialize)]
pub(crate) struct Decision<'a> {
    allowed: bool,
    #[serde(flatten)]
    effects: &'a RequestEffects,
}

/// The document that the policy gets, or the denial of a request that can't be shown to it.
pub(crate) fn document(
    body: &[u8],
    policy: Option<&Parsed>,
) -> anyhow::Result<Result<String, Verdict>> {
    let request = check::parse(body)?;
    let scope = policy.and_then(|policy| policy.requests.as_deref());
    let reads_body = scope.is_none_or(|scope| scope.reads_body);
    Ok(
        check::document(&request, reads_body).map_err(|bad| Verdict {
            allowed: false,
            code: Some(400),
            message: Some(bad.to_string()),
            ..Verdict::default()
        }),
    )
}

/// Refuses a policy of the other kind.
pub(crate) fn expect_kind(policy: Option<&Parsed>, check: bool) -> anyhow::Result<()> {
    match policy.map(|policy| (policy.kind().as_str(), policy.requests.is_some())) {
        Some((kind, true)) if !check => {
            anyhow::bail!("a {kind} decides about requests at Envoy: give one with --check")
        }
        Some((kind, false)) if check => {
            anyhow::bail!("a {kind} decides about admission: give a request with --request")
        }
        _ => Ok(()),
    }
}

// === impl Decision ===

impl<'a> Decision<'a> {
    pub(crate) fn new(verdict: &'a Verdict, none: &'a RequestEffects) -> Self {
        Self {
            allowed: verdict.allowed,
            effects: verdict.effects.as_deref().unwrap_or(none),
        }
    }
}
