//! The ABIs of policy modules, and what the host does for each of them.

use std::{borrow::Cow, fmt, str::FromStr};

use bytes::Bytes;
use wasmtime::Linker;

use crate::{
    answer, engine,
    inspect::{Constants, Export, Import},
    json, opa,
    policy::{EvalError, PolicySpec, PrepareError},
    review::Review,
    sandbox::{Guest, OnSlow, Template},
    verdict::Verdict,
    wapc, wasi,
};

/// How a module is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Abi {
    /// waPC: named operations with JSON payloads.
    Wapc,
    /// Rego compiled by OPA; the result is an admission response.
    Opa,
    /// Rego written for Gatekeeper; the result is a list of violations.
    Gatekeeper,
    /// A WASI command: JSON on stdin, JSON on stdout.
    Wasi,
}

/// The host's side of one ABI. A new ABI is one implementation, and one arm in [`Abi::adapter`].
pub(crate) trait Adapter: Sync {
    /// Whether a module without metadata has this ABI.
    fn recognises(&self, imports: &[Import], exports: &[Export]) -> bool;

    /// Whether `protocolVersion` of a module's metadata is valid. `kwctl annotate` asks waPC modules for their version,
    /// and writes `Unknown` for others.
    fn accepts_protocol(&self, version: &str) -> bool {
        matches!(version, "v1" | "Unknown")
    }

    /// Why the version of the ABI that the module declares is not supported.
    fn version_problem(&self, _: &Constants) -> Option<String> {
        None
    }

    /// Exports without which no module of this ABI can be called.
    fn required_exports(&self) -> &'static [&'static str];

    /// Whether the host provides an import.
    fn provides(&self, import: &Import) -> bool;

    /// Changes a module before it is compiled.
    fn rewrite<'a>(&self, wasm: &'a [u8]) -> Result<Cow<'a, [u8]>, engine::Error> {
        Ok(Cow::Borrowed(wasm))
    }

    /// Defines the host functions, once per engine: policies only look them up.
    fn link(&self, linker: &mut Linker<Guest>) -> wasmtime::Result<()>;

    /// Finds the module's exports and makes a first instance.
    fn prepare(
        &self,
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
    ) -> Result<Box<dyn Program>, PrepareError>;
}

/// A linked module with its settings, whatever its ABI.
pub(crate) trait Program: Send + Sync {
    /// Asks the module whether its settings are valid.
    fn validate_settings(&self) -> Result<(), PrepareError>;

    /// Evaluates a request in a sandbox of its own.
    fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        on_slow: Option<OnSlow>,
    ) -> Result<Verdict, EvalError>;
}

/// A program that gets and gives JSON documents: waPC and WASI differ in how they are passed only.
pub(crate) trait JsonProgram: Send + Sync {
    /// What sandboxes are made from.
    fn template(&self) -> &Template;

    /// The settings as JSON.
    fn settings(&self) -> &Bytes;

    /// Passes a document to the guest, in a sandbox of its own, and returns its answer.
    fn ask(
        &self,
        question: Question,
        document: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Vec<u8>, EvalError>;
}

/// What a guest that gets JSON documents is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether its settings are valid.
    ValidateSettings,
    /// What it makes of a request.
    Validate,
}

/// A name that is none of the ABIs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown module ABI {0:?}: expected wapc, opa, gatekeeper or wasi")]
pub struct UnknownAbi(pub String);

// === impl Program ===

impl<P: JsonProgram> Program for P {
    fn validate_settings(&self) -> Result<(), PrepareError> {
        let settings = self.settings().to_vec();
        let answer = self.ask(Question::ValidateSettings, settings, None);
        let answer = answer.map_err(|error| PrepareError::settings_failed(&error))?;
        answer::settings(&answer).map_err(PrepareError::settings)
    }

    fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        on_slow: Option<OnSlow>,
    ) -> Result<Verdict, EvalError> {
        let document = json::payload(review, self.settings());
        let answer = self.ask(Question::Validate, document, on_slow)?;
        let _memory = self.template().reserve_for(&answer, review, mutating)?;
        answer::validation(&answer, review, mutating)
    }
}

// === impl Abi ===

impl Abi {
    /// Every ABI this crate can run.
    pub const ALL: [Self; 4] = [Self::Wapc, Self::Opa, Self::Gatekeeper, Self::Wasi];

    /// The name used on the wire and in status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wapc => "wapc",
            Self::Opa => "opa",
            Self::Gatekeeper => "gatekeeper",
            Self::Wasi => "wasi",
        }
    }

    pub(crate) fn adapter(self) -> &'static dyn Adapter {
        match self {
            Self::Wapc => &wapc::Wapc,
            Self::Opa => &opa::Rego::OPA,
            Self::Gatekeeper => &opa::Rego::GATEKEEPER,
            Self::Wasi => &wasi::Wasi,
        }
    }

    /// Parses `executionMode` of a module's metadata.
    pub(crate) fn from_execution_mode(mode: &str) -> Option<Self> {
        Some(match mode {
            "kubewarden-wapc" => Self::Wapc,
            "opa" => Self::Opa,
            "gatekeeper" => Self::Gatekeeper,
            "wasi" => Self::Wasi,
            _ => return None,
        })
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Abi {
    type Err = UnknownAbi;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|abi| abi.as_str() == s)
            .ok_or_else(|| UnknownAbi(s.to_owned()))
    }
}
