//! Reads a `PolicyServer`.

use std::sync::Arc;

use assent_core::{
    policy::{DEFAULT_MEMORY_BYTES, DEFAULT_TIMEOUT_MS, Limits},
    quantity,
};
use serde_json::Value;

use super::{
    Errors, Options, metadata,
    reader::{Node, Sink},
};
use crate::{canonical, server::PolicyServerSpec, tenancy::Reserved};

/// The least memory that a sandbox can do with: a page for the stack, one for data.
const MIN_MEMORY_BYTES: u64 = 128 << 10;

/// The most memory that a 32-bit sandbox can have.
const MAX_MEMORY_BYTES: u64 = 4 << 30;

/// Bytes of objects that an evaluator may hold if its PolicyServer does not say.
const DEFAULT_CONTEXT_BYTES: u64 = 256 << 20;

/// A smaller limit holds no list worth reading.
const MIN_CONTEXT_BYTES: u64 = 1 << 20;

/// Longer than the 10 s between two marks of a collection, or every object would be too old.
const MIN_STALENESS_SECONDS: i32 = 15;

/// The longest value of a label.
const MAX_NAME: usize = 63;

/// A valid PolicyServer.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedServer {
    /// Its name.
    pub name: String,
    /// Its spec.
    pub spec: PolicyServerSpec,
    /// Limits of one evaluation, defaults filled in.
    pub limits: Limits,
    /// Limits of the objects that evaluators hold, defaults filled in.
    pub context: ContextLimits,
    /// Canonical JSON of the spec with every default filled in.
    pub spec_json: Arc<[u8]>,
}

/// Limits of the objects that the evaluators of a PolicyServer hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Bytes of objects.
    pub memory_bytes: u64,
    /// The age from which reading them is an error.
    pub max_staleness_seconds: Option<u32>,
}

pub(super) fn read(value: &Value, options: &Options) -> Result<ParsedServer, Errors> {
    let sink = Sink::default();
    let server = read_object(&sink, value, options);
    sink.result(server)
}

fn read_object(sink: &Sink, value: &Value, options: &Options) -> Option<ParsedServer> {
    let root = Node {
        sink,
        path: String::new(),
        value,
    };
    let mut fields = root.fields();
    for name in ["apiVersion", "kind", "status"] {
        fields.get(name);
    }
    let metadata = metadata::read(&mut fields);
    if metadata.namespace.is_some() {
        sink.error(
            "metadata.namespace",
            "a PolicyServer has no namespace; remove it",
        );
    }
    let spec = match fields.get("spec") {
        Some(node) => typed(&node),
        None => Some(PolicyServerSpec::default()),
    };
    fields.close();
    let (name, spec) = (metadata.name?, spec?);
    if name.contains('.') || name.len() > MAX_NAME {
        sink.error(
            "metadata.name",
            format!(
                "\"{name}\" must have no '.' and at most {MAX_NAME} characters: it is a label of pods and part of a Service's name"
            ),
        );
    }
    check(sink, &spec);
    check_references(sink, &spec, &options.reserved);
    let spec_json = serde_json::to_value(&spec).expect("a spec must be JSON");
    Some(ParsedServer {
        name,
        limits: limits(sink, &spec),
        context: context(sink, &spec),
        spec,
        spec_json: canonical::to_vec(&spec_json).into(),
    })
}

/// Reads the whole spec by its types, then looks for what they did not take.
fn typed(node: &Node<'_>) -> Option<PolicyServerSpec> {
    let spec: PolicyServerSpec = match serde_json::from_value(node.value.clone()) {
        Ok(spec) => spec,
        Err(error) => {
            node.error(error.to_string());
            return None;
        }
    };
    let taken = serde_json::to_value(&spec).expect("a spec must be JSON");
    unknown(node.sink, &node.path, node.value, &taken);
    Some(spec)
}

/// Reports what is in `written` and not in `taken`. An empty collection may be left out.
fn unknown(sink: &Sink, path: &str, written: &Value, taken: &Value) {
    match (written, taken) {
        (Value::Object(written), Value::Object(taken)) => {
            for (name, value) in written.iter().filter(|(_, value)| !is_empty(value)) {
                let path = format!("{path}.{name}");
                match taken.get(name) {
                    Some(taken) => unknown(sink, &path, value, taken),
                    None => sink.error(&path, "unknown field; remove it"),
                }
            }
        }
        (Value::Array(written), Value::Array(taken)) => {
            for (i, (written, taken)) in written.iter().zip(taken).enumerate() {
                unknown(sink, &format!("{path}[{i}]"), written, taken);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// What the API server checks by CEL in a cluster.
fn check(sink: &Sink, spec: &PolicyServerSpec) {
    if spec.replicas < 0 {
        sink.error(
            "spec.replicas",
            format!("must be at least 0, not {}", spec.replicas),
        );
    }
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        sink.error(
            "spec.minAvailable",
            "give minAvailable or maxUnavailable, not both",
        );
    }
    for (i, secret) in spec.image_pull_secrets.iter().enumerate() {
        if secret.name.is_empty() {
            let path = format!("spec.imagePullSecrets[{i}].name");
            sink.error(&path, "must not be empty");
        }
    }
    check_capabilities(sink, "hostCapabilities", &spec.host_capabilities);
    check_capabilities(
        sink,
        "namespacedPoliciesCapabilities",
        &spec.namespaced_policies_capabilities,
    );
    let secure = spec.sources.iter().flat_map(|sources| &sources.secure);
    for (i, source) in secure.enumerate() {
        if source.certificate.is_some() == source.certificate_from.is_some() {
            let path = format!("spec.sources.secure[{i}]");
            sink.error(&path, "give certificate or certificateFrom, and not both");
        }
    }
    let allowed = spec.allowed_namespaces.as_ref();
    if let Some(why) = allowed.and_then(|allowed| allowed.error()) {
        sink.error("spec.allowedNamespaces", why);
    }
    if spec
        .verification
        .as_ref()
        .is_some_and(|v| v.public_keys.is_empty())
    {
        sink.error(
            "spec.verification.publicKeys",
            "must not be empty; no module could be signed",
        );
    }
}

/// Namespaces of host calls.
const HOST_NAMESPACES: [&str; 4] = ["crypto", "kubernetes", "net", "oci"];

/// A pattern that grants nothing would be read as one that grants something.
fn check_capabilities(sink: &Sink, field: &str, patterns: &[String]) {
    for (i, pattern) in patterns.iter().enumerate() {
        if !is_capability(pattern) {
            let message = format!(
                "\"{pattern}\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are {})",
                HOST_NAMESPACES.join(", ")
            );
            sink.error(&format!("spec.{field}[{i}]"), message);
        }
    }
}

fn is_capability(pattern: &str) -> bool {
    let Some((namespace, rest)) = pattern.split_once('/') else {
        return pattern == "*";
    };
    let call = rest.strip_suffix("/*").unwrap_or(rest);
    let segment = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    HOST_NAMESPACES.contains(&namespace) && (rest == "*" || call.split('/').all(segment))
}

/// Whoever may write PolicyServers must not get what belongs to the control plane by it: its
/// pods would hand out the key of the certificate authority as a variable.
fn check_references(sink: &Sink, spec: &PolicyServerSpec, reserved: &Reserved) {
    let references = spec.references().into_iter();
    for found in references.filter(|r| reserved.contains(r.kind, &r.name)) {
        let (kind, name) = (found.kind.as_str(), &found.name);
        let message = format!("the {kind} {name:?} is the control plane's own; name another one");
        sink.error(&found.path, message);
    }
}

fn context(sink: &Sink, spec: &PolicyServerSpec) -> ContextLimits {
    let given = spec.context.clone().unwrap_or_default();
    for (i, kind) in given.allow.iter().enumerate() {
        let empty = kind.api_version.is_empty() || kind.kind.is_empty();
        let path = format!("spec.context.allow[{i}]");
        if empty {
            sink.error(&path, "apiVersion and kind must not be empty");
        }
    }
    let memory = given.memory_limit.and_then(|memory| {
        let bytes = quantity::bytes(&memory.0).filter(|bytes| *bytes >= MIN_CONTEXT_BYTES);
        if bytes.is_none() {
            let message = format!("must be at least 1Mi, not \"{}\"", memory.0);
            sink.error("spec.context.memoryLimit", message);
        }
        bytes
    });
    let staleness = given.max_staleness_seconds;
    if staleness.is_some_and(|seconds| seconds < MIN_STALENESS_SECONDS) {
        let message = format!(
            "must be at least {MIN_STALENESS_SECONDS}: evaluators learn every 10 s that their objects are current"
        );
        sink.error("spec.context.maxStalenessSeconds", message);
    }
    ContextLimits {
        memory_bytes: memory.unwrap_or(DEFAULT_CONTEXT_BYTES),
        max_staleness_seconds: staleness.map(i32::unsigned_abs),
    }
}

fn limits(sink: &Sink, spec: &PolicyServerSpec) -> Limits {
    let given = spec.limits.clone().unwrap_or_default();
    let seconds = given.timeout_eval_seconds.and_then(|seconds| {
        let fits = (1..30).contains(&seconds);
        if !fits {
            let message = format!("must be between 1 and 29, not {seconds}");
            sink.error("spec.limits.timeoutEvalSeconds", message);
        }
        fits.then_some(seconds.unsigned_abs())
    });
    let memory = given.memory.and_then(|memory| {
        let range = MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES;
        let bytes = quantity::bytes(&memory.0).filter(|bytes| range.contains(bytes));
        if bytes.is_none() {
            let message = format!("must be between 128Ki and 4Gi, not \"{}\"", memory.0);
            sink.error("spec.limits.memory", message);
        }
        bytes
    });
    Limits {
        timeout_ms: seconds.map_or(DEFAULT_TIMEOUT_MS, |seconds| seconds * 1000),
        memory_bytes: memory.unwrap_or(DEFAULT_MEMORY_BYTES),
    }
}

// === impl ContextLimits ===

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            memory_bytes: DEFAULT_CONTEXT_BYTES,
            max_staleness_seconds: None,
        }
    }
}
