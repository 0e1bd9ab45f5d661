//! Policies written as text: from a text in Rego or CEL to an ordinary policy module.
//!
//! The module is an interpreter that has read the text ([`assent_wasm::Engine::snapshot`]). Nothing of a text is
//! interpreted outside of the sandbox: this crate reads YAML, calls the interpreter and describes the result.

mod cel;
mod language;
mod metadata;
mod problem;
mod vap;

use assent_wasm::{Engine, EvalError, Limits, SnapshotError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::{
    language::Language,
    metadata::{Origin, origin},
    vap::{convert, is_validating_admission_policy},
};

/// The largest text. The texts that people write and read are a hundredth of it.
pub const MAX_TEXT_BYTES: usize = 256 << 10;

/// A policy as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Its language.
    pub language: Language,
    /// Its name in messages; directories are left out.
    pub file: String,
    /// The text.
    pub text: String,
    /// The rule that decides, for Rego; empty if the text has only one that can.
    pub entrypoint: String,
}

/// Why a text is no policy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The author has to change something: position, line and reason.
    #[error("{0}")]
    Text(String),
    /// The interpreter failed for another reason.
    #[error("failed to build {file}: {why}")]
    Interpreter {
        /// The text.
        file: String,
        /// The reason.
        why: String,
    },
}

/// The interpreter's answer to `build`.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Entrypoint(String),
    Problem(problem::Problem),
}

/// A request that most policies look into: evaluated once while a policy is built, so that what is compiled at the
/// first use, such as a regular expression, is part of the module.
const SAMPLE: &str = r#"{"request":{"uid":"assent-build","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"requestKind":{"group":"","version":"v1","kind":"Pod"},"requestResource":{"group":"","version":"v1","resource":"pods"},"name":"assent-build","namespace":"default","operation":"CREATE","userInfo":{"username":"assent","uid":"","groups":["system:authenticated"]},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"assent-build","namespace":"default","labels":{"app":"assent"},"annotations":{"example.com/owner":"assent"}},"spec":{"serviceAccountName":"default","containers":[{"name":"main","image":"registry.example.com/assent:v1.2.3","ports":[{"containerPort":8080}],"env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"100m","memory":"64Mi"}},"securityContext":{"privileged":false}}]}},"oldObject":null,"dryRun":true,"options":{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}},"settings":{}}"#;

// === impl Text ===

impl Text {
    /// A text in the language that its file's name tells; `None` if it tells none.
    pub fn from_file(name: &str, text: impl Into<String>) -> Option<Self> {
        Some(Self {
            language: Language::of_file(name)?,
            file: name.rsplit('/').next().unwrap_or(name).to_owned(),
            text: text.into(),
            entrypoint: String::new(),
        })
    }

    /// Makes a module of the text. Equal texts give equal bytes. `interpreter` is what
    /// [`Engine::precompile_interpreter`] returned for [`Language::interpreter`], if the caller has kept it.
    pub fn build(
        &self,
        engine: &Engine,
        interpreter: Option<&[u8]>,
        limits: Limits,
    ) -> Result<Vec<u8>, Error> {
        if self.text.len() > MAX_TEXT_BYTES {
            return Err(Error::Text(format!(
                "{}: the text has {} bytes, more than the {MAX_TEXT_BYTES} allowed",
                self.file,
                self.text.len()
            )));
        }
        let payload = self.payload()?.to_string().into_bytes();
        let built = engine.snapshot(self.language.interpreter(), interpreter, payload, limits);
        let built = built.map_err(|error| self.failed(error))?;
        let answer: Answer = serde_json::from_slice(&built.answer)
            .map_err(|error| self.failed(SnapshotError::Interpreter(error.to_string())))?;
        match answer {
            Answer::Entrypoint(entrypoint) => Ok(metadata::add(built.wasm, self, &entrypoint)),
            Answer::Problem(problem) => Err(Error::Text(problem.render(self))),
        }
    }

    fn payload(&self) -> Result<Value, Error> {
        let sample: Value = serde_json::from_str(SAMPLE).expect("the sample must be JSON");
        let text = match self.language {
            Language::Rego => self.text.clone(),
            Language::Cel => cel::document(&self.file, &self.text)?.to_string(),
        };
        Ok(json!({
            "file": self.file,
            "text": text,
            "entrypoint": self.entrypoint,
            "sample": sample,
        }))
    }

    fn failed(&self, error: SnapshotError) -> Error {
        match error {
            // The interpreter ran out of something: that is for the author to change.
            SnapshotError::Build(
                error @ (EvalError::Timeout(_)
                | EvalError::MemoryExceeded(_)
                | EvalError::StackExceeded
                | EvalError::Trap(_)),
            ) => Error::Text(format!("{}: while it was built, {error}", self.file)),
            error => Error::Interpreter {
                file: self.file.clone(),
                why: error.to_string(),
            },
        }
    }
}
