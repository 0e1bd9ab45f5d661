//! The languages, and the interpreter of each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A language that policies can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// The language of OPA and Gatekeeper.
    Rego,
    /// Expressions in the shape of a ValidatingAdmissionPolicy, as YAML.
    Cel,
}

// === impl Language ===

impl Language {
    /// The language of a file by its name.
    pub fn of_file(name: &str) -> Option<Self> {
        if name.ends_with(".rego") {
            return Some(Self::Rego);
        }
        [".cel.yaml", ".cel.yml", ".cel.json"]
            .iter()
            .any(|end| name.ends_with(end))
            .then_some(Self::Cel)
    }

    /// Its name in metadata and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rego => "rego",
            Self::Cel => "cel",
        }
    }

    /// The interpreter, a portable module.
    pub const fn interpreter(self) -> &'static [u8] {
        match self {
            Self::Rego => include_bytes!("../../policies/interpreters/rego/interpreter.wasm"),
            Self::Cel => include_bytes!("../../policies/interpreters/cel/interpreter.wasm"),
        }
    }

    /// The library that the interpreter is made of.
    pub const fn interpreter_version(self) -> &'static str {
        match self {
            Self::Rego => "regorus 0.14.1",
            Self::Cel => "cel 0.15.0",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
