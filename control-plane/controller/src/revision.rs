//! Between revisions as they are stored and revisions as evaluators get them.

use assent_api::{
    Parsed, PolicyRevisionSpec,
    parse::{self, Module},
    revision::{PolicyRef, ResolvedRevision},
    settings::SecretSettings,
};
use assent_core::{Policy, PolicyKey, RevisionId, policy::Limits};
use serde_json::Value;

/// Makes a revision: what evaluators get, and what is stored of it.
pub fn make(
    parsed: &Parsed,
    uid: &str,
    generation: i64,
    module: &Module,
    limits: Limits,
) -> (Policy, PolicyRevisionSpec) {
    let content = parsed.content(module, limits);
    let secret = module.secret_settings.as_ref();
    let policy = Policy::new(parsed.key.clone(), generation, uid, content, module.size);
    let spec: Value =
        assent_api::json::from_str(&String::from_utf8_lossy(&parsed.spec_json)).unwrap_or_default();
    let spec = PolicyRevisionSpec {
        policy_ref: PolicyRef {
            kind: parsed.kind().as_str().into(),
            name: parsed.key.name().into(),
            uid: uid.into(),
        },
        generation,
        module_url: module.url.clone(),
        module_digest: module.digest.to_string(),
        module_size: module.size,
        abi: module.abi.clone(),
        content_digest: policy.content_digest.to_string(),
        settings: String::from_utf8_lossy(&parsed.settings).into_owned(),
        sealed_settings: secret.map(|s| s.sealed.clone()),
        settings_version: secret.map(|s| s.version.clone()),
        host_capabilities: module.host_capabilities.clone(),
        signer: module.signer.clone(),
        timeout_ms: limits.timeout_ms,
        memory_bytes: limits.memory_bytes,
        policy: spec.as_object().cloned().unwrap_or_default(),
    };
    (policy, spec)
}

/// The key of the policy that a stored revision names, in the revision's namespace.
pub fn key(spec: &PolicyRevisionSpec, namespace: Option<&str>) -> Option<PolicyKey> {
    let kind = parse::Kind::parse(&spec.policy_ref.kind)?;
    let namespace = match kind.is_namespaced() {
        true => namespace?,
        false => "",
    };
    kind.policy_key(namespace, &spec.policy_ref.name)
}

/// What evaluators get of a stored revision; its content digest must match.
pub fn restore(
    key: &PolicyKey,
    spec: &PolicyRevisionSpec,
    options: &parse::Options,
) -> Result<Policy, String> {
    let parsed = parsed(key, spec, options)?;
    let module = Module {
        digest: spec.module_digest.parse().map_err(|e| format!("{e}"))?,
        size: spec.module_size,
        abi: spec.abi.clone(),
        host_capabilities: spec.host_capabilities.clone(),
        signer: spec.signer.clone(),
        url: spec.module_url.clone(),
        secret_settings: open_settings(key, spec, options)?,
    };
    let mut content = parsed.content(&module, spec_limits(spec));
    if module.secret_settings.is_none() {
        content.settings_json = spec.settings.as_bytes().into();
    }
    let uid = &spec.policy_ref.uid;
    let policy = Policy::new(key.clone(), spec.generation, uid, content, spec.module_size);
    match policy.content_digest.to_string() == spec.content_digest {
        true => Ok(policy),
        false => Err("its content does not match its digest".into()),
    }
}

/// The settings of a stored revision, if some come from Secrets.
fn open_settings(
    key: &PolicyKey,
    spec: &PolicyRevisionSpec,
    options: &parse::Options,
) -> Result<Option<SecretSettings>, String> {
    let Some(sealed) = &spec.sealed_settings else {
        return Ok(None);
    };
    let settings_key = options.settings_key.as_ref();
    let settings_key = settings_key.ok_or("the control plane has no key for its settings")?;
    let name = RevisionId::new(key, spec.generation, &spec.policy_ref.uid);
    let opened = settings_key.open(name.as_str(), sealed);
    opened.map(Some).map_err(|error| error.to_string())
}

/// The settings of a revision that was read, if some come from Secrets.
pub fn secret_settings(policy: &Policy, spec: &PolicyRevisionSpec) -> Option<SecretSettings> {
    Some(SecretSettings {
        json: policy.content.settings_json.clone(),
        salt: policy.content.settings_salt.clone(),
        version: spec.settings_version.clone()?,
        sealed: spec.sealed_settings.clone()?,
    })
}

/// Makes a revision again from the policy's spec and what its route records; the content digest
/// proves that the result is the same.
pub fn rebuild(
    parsed: &Parsed,
    uid: &str,
    generation: i64,
    resolved: &ResolvedRevision,
) -> Result<(Policy, PolicyRevisionSpec), String> {
    let module = Module {
        digest: resolved.module_digest.parse().map_err(|e| format!("{e}"))?,
        size: resolved.module_size,
        abi: resolved.abi.clone(),
        host_capabilities: resolved.host_capabilities.clone(),
        url: resolved.module_url.clone(),
        signer: resolved.signer.clone(),
        // A route does not record them: such a revision cannot be made again.
        secret_settings: None,
    };
    let limits = Limits {
        timeout_ms: resolved.timeout_ms,
        memory_bytes: resolved.memory_bytes,
    };
    let (policy, spec) = make(parsed, uid, generation, &module, limits);
    match spec.content_digest == resolved.content_digest {
        true => Ok((policy, spec)),
        false => Err("the policy's spec gives other content".into()),
    }
}

/// The resolved limits of a stored revision.
pub fn spec_limits(spec: &PolicyRevisionSpec) -> Limits {
    Limits {
        timeout_ms: spec.timeout_ms,
        memory_bytes: spec.memory_bytes,
    }
}

/// The policy's spec as the revision stores it.
pub fn parsed(
    key: &PolicyKey,
    spec: &PolicyRevisionSpec,
    options: &parse::Options,
) -> Result<Parsed, String> {
    let spec = Value::Object(spec.policy.clone());
    parse::spec(key, &spec, options).map_err(|e| e.to_string())
}
