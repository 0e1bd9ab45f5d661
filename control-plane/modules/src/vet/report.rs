//! What is asked of a vetting child, and what it finds.

use std::time::Duration;

use assent_core::digest::Digest;
use assent_wasm::Metadata;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How the module will be used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VetRequest {
    /// The ABI it must have (`wapc`, `opa`, `gatekeeper`, `wasi`); `None` takes what the
    /// module says.
    pub abi: Option<String>,
    /// The settings as JSON.
    pub settings_json: String,
    /// The entrypoint of a Rego module; empty means its first.
    pub entrypoint: String,
    /// Whether the policy may change objects.
    pub mutating: bool,
    /// Limits of one call of the guest.
    pub limits: VetLimits,
    /// Host calls that are allowed; `None` allows those that the module's metadata names.
    pub host_capabilities: Option<Vec<String>>,
    /// Whether to compile ahead of time.
    pub artefact: bool,
}

/// Limits of one call of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VetLimits {
    /// Its deadline.
    pub timeout_ms: u64,
    /// Its memory.
    pub memory_bytes: u64,
}

/// What came out.
#[derive(Clone, Debug)]
pub enum VetReport {
    /// It loads, accepts its settings and survives the self-test.
    Accepted(Box<Accepted>),
    /// It can't be used.
    Refused(Refused),
}

/// A module that can be used.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What it is.
    pub facts: Facts,
    /// Compiled ahead of time, if that was asked for.
    pub artefact: Option<Artefact>,
}

/// What a module is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// How it is called.
    pub abi: String,
    /// What its author says about it: host capabilities, kinds it reads, policy type.
    pub metadata: Option<Metadata>,
    /// Bytes of the portable module.
    pub size: u64,
    /// Names the engine that made the artefact.
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

/// Why a module can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// How far it got.
    pub stage: Stage,
    /// For the user, with the module's own words.
    pub message: String,
}

/// How far vetting got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Not a module, or of no ABI, or of another than asked for.
    Inspect,
    /// The compiler refused it.
    Compile,
    /// Imports and exports did not fit.
    Link,
    /// No instance could be made.
    Instantiate,
    /// It refused its settings, or failed on them.
    Settings,
    /// It failed on a harmless request.
    SelfTest,
    /// It took the vetting process down, or did not end.
    Crashed,
}

// === impl VetRequest ===

impl VetRequest {
    /// A request with default limits, no right to mutate, and an artefact.
    pub fn new(settings_json: impl Into<String>) -> Self {
        Self {
            abi: None,
            settings_json: settings_json.into(),
            entrypoint: String::new(),
            mutating: false,
            limits: VetLimits::default(),
            host_capabilities: None,
            artefact: true,
        }
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
            Self::Inspect => "inspect",
            Self::Compile => "compile",
            Self::Link => "link",
            Self::Instantiate => "instantiate",
            Self::Settings => "settings",
            Self::SelfTest => "self_test",
            Self::Crashed => "crashed",
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
