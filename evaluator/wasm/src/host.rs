//! Host calls: the namespaces that guests can call, and the capabilities that allow it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    log::LogText,
    policy::PolicySpec,
    sandbox::{Guest, Stop},
};

pub mod capability;
mod certificate;
mod dns;
mod unavailable;

/// One namespace of host calls, such as `oci` or `kubernetes`.
///
/// Calls are made on the thread that evaluates. `tracing/log` is not a namespace: it needs no capability and no
/// service.
pub trait HostNamespace: Send + Sync {
    /// The first segment of its operations, such as `oci`.
    fn name(&self) -> &'static str;

    /// The operations without the namespace, such as `v1/verify`.
    fn operations(&self) -> &'static [&'static str];

    /// Whether answers depend on something outside of this process. A guest that crashes after such a call failed is
    /// not to blame.
    fn is_external(&self) -> bool;

    /// Whether this call may wait, or compute for more than a millisecond. Policies that make such calls are not
    /// evaluated on threads with other work.
    fn waits(&self, operation: &str, payload: &[u8]) -> bool;

    /// The namespace as one evaluation sees it, if its answers change over time: all calls of the evaluation are
    /// answered from one state.
    fn pinned(&self) -> Option<Arc<dyn HostNamespace>> {
        None
    }

    /// Answers an operation: JSON in, JSON out. Blocks the calling thread for no longer than `within`.
    fn call(&self, operation: &str, payload: &[u8], within: Duration)
    -> Result<Vec<u8>, CallError>;
}

/// Why a host call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The guest gets this message and decides what follows.
    Refused(String),
    /// The evaluation ends: no guest may decide without the answer.
    Fatal(String),
}

/// Objects of the cluster as Rego reads them.
pub trait DataSource: Send + Sync {
    /// The present document of a form; the error ends the evaluation. An equal document comes with an equal
    /// [`Document::version`].
    fn load(&self, form: DataForm) -> Result<Document, String>;
}

/// How objects are laid out for Rego.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataForm {
    /// `data.kubernetes.<plural>.<namespace>.<name>`.
    Kubernetes,
    /// Gatekeeper's `data.inventory`.
    Inventory,
}

/// A JSON object.
#[derive(Clone, Debug)]
pub struct Document {
    /// Changes with the content.
    pub version: [u8; 32],
    /// The text.
    pub json: bytes::Bytes,
}

/// The namespaces that a policy can call, as far as its capabilities allow.
#[derive(Clone)]
pub struct HostServices {
    namespaces: Vec<Arc<dyn HostNamespace>>,
    data: Option<Arc<dyn DataSource>>,
}

/// The capabilities of a policy, and its name in log lines.
pub(crate) struct Access {
    name: String,
    /// Nothing that the guest says is logged.
    confidential: bool,
    capabilities: Vec<String>,
    /// Used until the policy is connected.
    offline: HostServices,
    connected: OnceLock<Arc<HostServices>>,
    /// Whether a call that waits was made. What capabilities allow says little: modules without a list of their own
    /// get everything that the server grants.
    waits: AtomicBool,
}

/// Namespaces whose state one evaluation has fixed.
#[derive(Default)]
pub(crate) struct Pins(Vec<Arc<dyn HostNamespace>>);

/// One call, as the guest's memory holds it.
pub(crate) struct Call<'a> {
    pub(crate) binding: &'a [u8],
    pub(crate) namespace: &'a [u8],
    pub(crate) operation: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// The fields of a log entry that the host needs.
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
    let reply = match dispatch(guest, call) {
        Ok(reply) => Ok(reply),
        Err(CallError::Refused(why)) => Err(why),
        Err(CallError::Fatal(why)) => return Err(Stop::Context(why)),
    };
    guest.meter.check_deadline()?;
    guest
        .meter
        .charge_bytes(reply.as_ref().map_or_else(String::len, Vec::len))?;
    Ok(reply)
}

fn dispatch(guest: &mut Guest, call: &Call<'_>) -> Result<Vec<u8>, CallError> {
    let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if call.binding != b"kubewarden" {
        return Err(CallError::Refused(format!(
            "unknown binding {:?}: only \"kubewarden\" exists",
            name(call.binding)
        )));
    }
    let operation = format!("{}/{}", name(call.namespace), name(call.operation));
    if operation == "tracing/log" {
        log_entry(guest, call.payload);
        return Ok(Vec::new());
    }
    if !guest.host.allows(&operation) {
        return Err(CallError::Refused(format!(
            "the host call {operation} is not among the policy's host capabilities"
        )));
    }
    let Some((namespace, name)) = guest.host.services().find(call.namespace, call.operation) else {
        return Err(CallError::Refused(format!("unknown host call {operation}")));
    };
    let namespace = guest.pins.get(&namespace);
    if namespace.waits(name, call.payload) {
        guest.host.waits.store(true, Relaxed);
        guest.meter.mark_slow();
    }
    let reply = namespace.call(name, call.payload, guest.meter.remaining());
    if namespace.is_external() {
        // A guest may crash because it got no answer.
        let failure = reply.as_ref().err().map(CallError::message);
        guest.meter.note_answer(&operation, failure);
    }
    reply
}

/// Logs a line that the guest wrote as plain text.
pub(crate) fn log_line(guest: &mut Guest, line: &str) {
    guest.meter.note(line);
    if guest.host.confidential {
        return;
    }
    tracing::info!(target: "assent::policy", policy = %guest.host.name, "{}", LogText(line.trim_end()));
}

/// Logs an entry of the SDKs' loggers: JSON with a level.
fn log_entry(guest: &mut Guest, payload: &[u8]) {
    let text = String::from_utf8_lossy(payload);
    guest.meter.note(&text);
    if guest.host.confidential {
        return;
    }
    let entry: Option<LogEntry<'_>> = serde_json::from_slice(payload).ok();
    let level = entry
        .as_ref()
        .map_or("info", |entry| entry.level.as_str())
        .to_ascii_lowercase();
    let message = entry
        .and_then(|entry| entry.message)
        .map_or(text.as_ref(), RawValue::get);
    let (policy, message) = (&guest.host.name, LogText(message));
    // As a string, which subscribers quote.
    let fields = || LogText(&text).to_string();
    match level.as_str() {
        "trace" => {
            tracing::trace!(target: "assent::policy", %policy, fields = fields(), "{message}")
        }
        "debug" => {
            tracing::debug!(target: "assent::policy", %policy, fields = fields(), "{message}")
        }
        "warn" | "warning" => {
            tracing::warn!(target: "assent::policy", %policy, fields = fields(), "{message}")
        }
        "error" => {
            tracing::error!(target: "assent::policy", %policy, fields = fields(), "{message}")
        }
        _ => tracing::info!(target: "assent::policy", %policy, fields = fields(), "{message}"),
    }
}

// === impl Call ===

impl<'a> Call<'a> {
    /// Reads binding, namespace, operation and payload, each by address and length.
    pub(crate) fn read<E>(
        places: [(i32, i32); 4],
        read: impl Fn((i32, i32)) -> Result<&'a [u8], E>,
    ) -> Result<Self, E> {
        let [binding, namespace, operation, payload] = places;
        Ok(Self {
            binding: read(binding)?,
            namespace: read(namespace)?,
            operation: read(operation)?,
            payload: read(payload)?,
        })
    }
}

// === impl CallError ===

impl CallError {
    /// The reason.
    pub fn message(&self) -> &String {
        match self {
            Self::Refused(why) | Self::Fatal(why) => why,
        }
    }
}

impl From<String> for CallError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<&str> for CallError {
    fn from(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

// === impl Pins ===

impl Pins {
    /// The namespace as this evaluation has seen it first.
    fn get(&mut self, namespace: &Arc<dyn HostNamespace>) -> Arc<dyn HostNamespace> {
        let name = namespace.name();
        if let Some(pinned) = self.0.iter().find(|one| one.name() == name) {
            return pinned.clone();
        }
        match namespace.pinned() {
            Some(pinned) => {
                self.0.push(pinned.clone());
                pinned
            }
            None => namespace.clone(),
        }
    }
}

// === impl HostServices ===

impl HostServices {
    /// Answers `crypto`, which needs nothing from outside. Calls of other known namespaces get an error that says
    /// why.
    pub fn offline() -> Self {
        let unavailable = unavailable::ALL.iter();
        let unavailable = unavailable.map(|one| Arc::new(*one) as Arc<dyn HostNamespace>);
        Self {
            namespaces: unavailable.collect(),
            data: None,
        }
        .with(Arc::new(certificate::Crypto))
    }

    /// Adds a namespace, in place of one of the same name.
    pub fn with(mut self, namespace: Arc<dyn HostNamespace>) -> Self {
        self.namespaces.retain(|one| one.name() != namespace.name());
        self.namespaces.push(namespace);
        self
    }

    /// Adds the objects that Rego modules find in their data.
    pub fn with_data(mut self, data: Arc<dyn DataSource>) -> Self {
        self.data = Some(data);
        self
    }

    /// Adds `net`, answered by the system's resolver.
    pub fn with_dns(self) -> Self {
        self.with(Arc::new(dns::Net))
    }

    fn find(
        &self,
        namespace: &[u8],
        operation: &[u8],
    ) -> Option<(Arc<dyn HostNamespace>, &'static str)> {
        let namespace = self
            .namespaces
            .iter()
            .find(|one| one.name().as_bytes() == namespace)?;
        let operation = namespace
            .operations()
            .iter()
            .find(|one| one.as_bytes() == operation)?;
        Some((namespace.clone(), operation))
    }
}

// === impl Access ===

impl Access {
    pub(crate) fn new(spec: &PolicySpec) -> Self {
        Self {
            name: spec.name.clone(),
            confidential: spec.confidential,
            capabilities: spec.host_capabilities.clone(),
            offline: HostServices::offline(),
            connected: OnceLock::new(),
            waits: AtomicBool::new(false),
        }
    }

    /// The first call decides; later ones have no effect.
    pub(crate) fn connect(&self, services: Arc<HostServices>) {
        let _ = self.connected.set(services);
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// The objects that Rego finds in its data.
    pub(crate) fn data(&self) -> Option<&dyn DataSource> {
        self.services().data.as_deref()
    }

    fn services(&self) -> &HostServices {
        match self.connected.get() {
            Some(services) => services,
            None => &self.offline,
        }
    }

    fn allows(&self, operation: &str) -> bool {
        let mut capabilities = self.capabilities.iter();
        capabilities.any(|capability| capability::allows(capability, operation))
    }
}
