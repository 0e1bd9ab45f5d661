//! What a policy gets from its PolicyServer.

use assent_api::{Parsed, ParsedServer};
use assent_core::{
    policy::Limits,
    rollout::{Refusal, RefusalReason},
};
use assent_modules::pull::Sources;

pub(crate) fn target_not_found(server: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::TargetNotFound,
        message: format!(
            "spec.policyServer: there is no PolicyServer {server:?}; add its manifest, or name another"
        ),
    }
}

pub(crate) fn limits(server: Option<&ParsedServer>, parsed: &Parsed) -> Limits {
    parsed.limits(server.map_or_else(Limits::default, |s| s.limits))
}

pub(crate) fn allowed_capabilities(
    server: Option<&ParsedServer>,
    parsed: &Parsed,
) -> Option<Vec<String>> {
    parsed.key.namespace()?;
    let allowed = server.map(|s| s.spec.namespaced_policies_capabilities.clone());
    Some(allowed.unwrap_or_default())
}

pub(crate) fn sources(server: Option<&ParsedServer>) -> Sources {
    let declared = server.and_then(|s| s.spec.sources.as_ref());
    let Some(declared) = declared else {
        return Sources::default();
    };
    let secure = declared.secure.iter();
    let certificates =
        secure.filter_map(|s| Some((s.name.clone(), s.certificate.clone()?.into_bytes())));
    Sources {
        insecure: declared.insecure.clone(),
        certificates: certificates.collect(),
        ..Sources::default()
    }
}

pub(crate) fn verification(server: Option<&ParsedServer>) -> Vec<String> {
    let asked = server.and_then(|s| s.spec.verification.as_ref());
    asked.map(|v| v.public_keys.clone()).unwrap_or_default()
}
