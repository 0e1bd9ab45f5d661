//! The calling conventions that policies are written in.

use std::{fmt, str::FromStr};

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

/// A name that is none of the ABIs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown module ABI {0:?}: expected wapc, opa, gatekeeper or wasi")]
pub struct UnknownAbi(pub String);

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

    /// Reads `executionMode` of a module's metadata.
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
