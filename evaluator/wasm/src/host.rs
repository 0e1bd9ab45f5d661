//! Host calls: what a guest may ask of its host, and the gate in front of it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    policy::PolicySpec,
    sandbox::{Guest, Stop},
};

mod certificate;
mod dns;

/// What answers host calls that need more than this crate has: a network.
pub trait HostServices: Send + Sync {
    /// Answers an operation of the namespace `oci`, such as `v1/verify`: JSON in, JSON
    /// out. Blocks the calling thread, for no longer than `within`. The error is for the
    /// guest.
    fn oci(&self, operation: &str, payload: &[u8], within: Duration) -> Result<Vec<u8>, String>;
}

/// What a policy may do, and how it is called in log lines.
pub(crate) struct Access {
    name: String,
    capabilities: Vec<String>,
    /// None while a policy is only tried out.
    services: OnceLock<Arc<dyn HostServices>>,
}

/// One call, as the guest's memory holds it.
pub(crate) struct Call<'a> {
    pub(crate) binding: &'a [u8],
    pub(crate) namespace: &'a [u8],
    pub(crate) operation: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// Only what decides where a log line goes.
#[derive(Deserialize)]
struct LogEntry<'a> {
    #[serde(default)]
    level: String,
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
}

/// Answers a call. The inner error goes to the guest, the outer one ends the evaluation.
pub(crate) fn call(guest: &mut Guest, call: &Call<'_>) -> Result<Result<Vec<u8>, String>, Stop> {
    let names = call.binding.len() + call.namespace.len() + call.operation.len();
    guest
        .meter
        .charge_call(names.saturating_add(call.payload.len()))?;
    guest.meter.check_deadline()?;
    let reply = dispatch(guest, call);
    guest.meter.check_deadline()?;
    guest
        .meter
        .charge_bytes(reply.as_ref().map_or_else(String::len, Vec::len))?;
    Ok(reply)
}

fn dispatch(guest: &mut Guest, call: &Call<'_>) -> Result<Vec<u8>, String> {
    let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if call.binding != b"kubewarden" {
        return Err(format!(
            "unknown binding {:?}: only \"kubewarden\" exists",
            name(call.binding)
        ));
    }
    let operation = format!("{}/{}", name(call.namespace), name(call.operation));
    if operation == "tracing/log" {
        log_entry(guest, call.payload);
        return Ok(Vec::new());
    }
    if !guest.host.allows(&operation) {
        return Err(format!(
            "the host call {operation} is not among the policy's host capabilities"
        ));
    }
    match operation.as_str() {
        "kubernetes/list_resources_by_namespace"
        | "kubernetes/list_resources_all"
        | "kubernetes/get_resource"
        | "kubernetes/can_i" => {
            let reply = Err(format!(
                "the host call {operation} can't be answered: Kubernetes objects are not replicated to this evaluator"
            ));
            noted(guest, &operation, reply)
        }
        "oci/v1/verify"
        | "oci/v2/verify"
        | "oci/v1/manifest_digest"
        | "oci/v1/oci_manifest"
        | "oci/v1/oci_manifest_config" => {
            let reply = oci(guest, &operation, call.payload);
            noted(guest, &operation, reply)
        }
        "net/v1/dns_lookup_host" => {
            let reply = dns::lookup(call.payload, guest.meter.remaining());
            noted(guest, &operation, reply)
        }
        "crypto/v1/is_certificate_trusted" => certificate::is_trusted(call.payload),
        _ => Err(format!("unknown host call {operation}")),
    }
}

/// Remembers how a call to the outside ended: a guest may crash for want of an answer.
fn noted(
    guest: &mut Guest,
    operation: &str,
    reply: Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    guest.meter.note_answer(operation, reply.as_ref().err());
    reply
}

fn oci(guest: &Guest, operation: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
    let Some(services) = guest.host.services.get() else {
        return Err(format!(
            "the host call {operation} can't be answered: there is no access to registries here"
        ));
    };
    let operation = operation.strip_prefix("oci/").unwrap_or(operation);
    services.oci(operation, payload, guest.meter.remaining())
}

/// Logs a line that the guest wrote as plain text.
pub(crate) fn log_line(guest: &mut Guest, line: &str) {
    guest.meter.note(line);
    tracing::info!(target: "assent::policy", policy = %guest.host.name, "{}", line.trim_end());
}

/// Logs an entry of the SDKs' loggers: JSON with a level.
fn log_entry(guest: &mut Guest, payload: &[u8]) {
    let text = String::from_utf8_lossy(payload);
    guest.meter.note(&text);
    let entry: Option<LogEntry<'_>> = serde_json::from_slice(payload).ok();
    let level = entry
        .as_ref()
        .map_or("info", |entry| entry.level.as_str())
        .to_ascii_lowercase();
    let message = entry
        .and_then(|entry| entry.message)
        .map_or(text.as_ref(), RawValue::get);
    let (policy, fields) = (&guest.host.name, text.as_ref());
    match level.as_str() {
        "trace" => tracing::trace!(target: "assent::policy", %policy, fields, "{message}"),
        "debug" => tracing::debug!(target: "assent::policy", %policy, fields, "{message}"),
        "warn" | "warning" => {
            tracing::warn!(target: "assent::policy", %policy, fields, "{message}")
        }
        "error" => tracing::error!(target: "assent::policy", %policy, fields, "{message}"),
        _ => tracing::info!(target: "assent::policy", %policy, fields, "{message}"),
    }
}

// === impl Access ===

impl Access {
    pub(crate) fn new(spec: &PolicySpec) -> Self {
        Self {
            name: spec.name.clone(),
            capabilities: spec.host_capabilities.clone(),
            services: OnceLock::new(),
        }
    }

    pub(crate) fn connect(&self, services: Arc<dyn HostServices>) {
        // Who is connected stays so.
        let _ = self.services.set(services);
    }

    /// `*` allows all, `net/*` everything below, anything else exactly itself.
    fn allows(&self, operation: &str) -> bool {
        self.capabilities
            .iter()
            .any(|capability| match capability.strip_suffix('*') {
                Some("") => true,
                Some(prefix) => prefix.ends_with('/') && operation.starts_with(prefix),
                None => capability == operation,
            })
    }
}
