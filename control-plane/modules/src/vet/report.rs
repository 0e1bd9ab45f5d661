//! Requests to a vetting child, and its reports.

use std::time::Duration;

use assent_core::digest::Digest;
use assent_wasm::Metadata;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How the module will be used.
#[derive(Clone, Serialize, Deserialize)]
pub struct VetRequest {
    /// The ABI it must have (`wapc`, `opa`, `gatekeeper`, `wasi`); `None` accepts any.
    pub abi: Option<String>,
    /// The settings as JSON.
    pub settings_json: String,
    /// The entrypoint of a Rego module; empty means its first.
    pub entrypoint: String,
    /// Whether the policy may change objects.
    pub mutating: bool,
    /// Whether the policy decides about requests at Envoy.
    #[serde(default)]
    pub check: bool,
    /// Limits of one call of the guest.
    pub limits: VetLimits,
    /// Host calls that the PolicyServer grants; the module's own list narrows them.
    pub granted_capabilities: Vec<String>,
    /// Whether values of Secrets are among the settings: what the guest says is withheld.
    #[serde(default)]
    pub confidential: bool,
    /// Whether to compile ahead of time.
    pub artefact: bool,
    /// Whether to call the guest. Otherwise the module is only compiled.
    pub try_out: bool,
}

/// Limits of one call of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VetLimits {
    /// Its deadline.
    pub timeout_ms: u64,
    /// Its memory.
    pub memory_bytes: u64,
}

/// The result of vetting.
#[derive(Clone, Debug)]
pub enum VetReport {
    /// The module loads, accepts its settings and passes the self-test.
    Accepted(Box<Compiled>),
    /// The module can't be used.
    Refused {
        /// Why.
        refused: Refused,
        /// Present if the module compiles: with other settings it may be accepted.
        compiled: Option<Box<Compiled>>,
    },
}

/// A module that compiles.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// What it is.
    pub facts: Facts,
    /// Compiled ahead of time, if that was requested.
    pub artefact: Option<Artefact>,
}

/// What a module is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Its ABI.
    pub abi: String,
    /// Its own metadata: host capabilities, kinds it reads, policy type.
    pub metadata: Option<Metadata>,
    /// Why it must see other objects of the cluster, if it must.
    pub required_context: Option<String>,
    /// Bytes of the portable module.
    pub size: u64,
    /// The fingerprint of the engine that made the artefact.
    pub engine: String,
}

/// Native code for engines with the same fingerprint.
#[derive(Clone)]
pub struct Artefact {
    /// The engine's fingerprint.
    pub engine: String,
    /// The digest of the bytes.
    pub digest: Digest,
    /// The bytes.
    pub bytes: Bytes,
}

/// Why a module can not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The stage that failed.
    pub stage: Stage,
    /// For the user, with the module's own message.
    pub message: String,
}

/// Stages of vetting that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A text that is not a policy.
    Text,
    /// It is not a module, or its ABI is unknown or not the requested one.
    Inspect,
    /// It does not compile.
    Compile,
    /// Its imports and exports do not match the ABI.
    Link,
    /// It can not be instantiated.
    Instantiate,
    /// It rejects its settings, or fails on them.
    Settings,
    /// It fails on a harmless request.
    SelfTest,
    /// It crashed the vetting process.
    Crashed,
    /// The vetting process used up its time.
    TimedOut,
}

// === impl VetRequest ===

impl VetRequest {
    /// A request with default limits, no right to mutate, no host calls, and an artefact.
    pub fn new(settings_json: impl Into<String>) -> Self {
        Self {
            abi: None,
            settings_json: settings_json.into(),
            entrypoint: String::new(),
            mutating: false,
            check: false,
            limits: VetLimits::default(),
            granted_capabilities: Vec::new(),
            confidential: false,
            artefact: true,
            try_out: true,
        }
    }

    /// A request to compile a module whose settings are known to be accepted.
    pub fn compile() -> Self {
        Self {
            try_out: false,
            ..Self::new("null")
        }
    }
}

/// Without the settings, which may be confidential.
impl std::fmt::Debug for VetRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VetRequest")
            .field("abi", &self.abi)
            .field("entrypoint", &self.entrypoint)
            .field("mutating", &self.mutating)
            .field("limits", &self.limits)
            .field("confidential", &self.confidential)
            .finish_non_exhaustive()
    }
}

// === impl VetLimits ===

impl VetLimits {
    /// The deadline of one call.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

impl Default for VetLimits {
    fn default() -> Self {
        assent_wasm::Limits::default().into()
    }
}

impl From<assent_wasm::Limits> for VetLimits {
    fn from(limits: assent_wasm::Limits) -> Self {
        Self {
            timeout_ms: u64::try_from(limits.timeout.as_millis()).unwrap_or(u64::MAX),
            memory_bytes: limits.memory_bytes,
        }
    }
}

impl From<VetLimits> for assent_wasm::Limits {
    fn from(limits: VetLimits) -> Self {
        Self {
            timeout: limits.timeout(),
            memory_bytes: limits.memory_bytes,
        }
    }
}

// === impl Stage ===

impl Stage {
    /// A low-cardinality name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Inspect => "inspect",
            Self::Compile => "compile",
            Self::Link => "link",
            Self::Instantiate => "instantiate",
            Self::Settings => "settings",
            Self::SelfTest => "self_test",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed_out",
        }
    }
}

impl From<assent_wasm::Stage> for Stage {
    fn from(stage: assent_wasm::Stage) -> Self {
        match stage {
            assent_wasm::Stage::Link => Self::Link,
            assent_wasm::Stage::Instantiate => Self::Instantiate,
            assent_wasm::Stage::Settings => Self::Settings,
            assent_wasm::Stage::SelfTest => Self::SelfTest,
        }
    }
}

// === impl Artefact ===

impl std::fmt::Debug for Artefact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artefact")
            .field("engine", &self.engine)
            .field("digest", &self.digest)
            .field("size", &self.bytes.len())
            .finish()
    }
}
