//! Rego compiled to WebAssembly by OPA, plain and in Gatekeeper's form.

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;

use crate::{
    json,
    policy::{EvalError, PolicySpec, PrepareError},
    review::Review,
    sandbox::{OnLong, Template},
    verdict::Verdict,
};

mod builtins;
mod exports;
mod imports;
mod instance;
mod memory;
mod result;
mod value;

pub(crate) use imports::link;
pub(crate) use memory::own_memory;

use exports::Exports;
use instance::Instance;

/// What the host functions of one evaluation need.
#[derive(Default)]
pub(crate) struct Session {
    functions: Option<exports::Functions>,
    builtins: Arc<builtins::Table>,
    /// One time per evaluation: a rule that reads the clock twice sees one value.
    now: Option<SystemTime>,
}

/// A linked Rego module.
pub(crate) struct Program {
    template: Template,
    exports: Exports,
    dialect: Dialect,
    entrypoint: i32,
    builtins: Arc<builtins::Table>,
    /// The document that rules see as `data`.
    data: Bytes,
    settings: Bytes,
}

/// What the input looks like, and how the result is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Opa,
    Gatekeeper,
}

/// Until objects are replicated there are none.
const NO_INVENTORY: &[u8] = br#"{"inventory":{"cluster":{},"namespace":{}}}"#;

// === impl Program ===

impl Program {
    /// Besides linking, asks the module for its entrypoints and for the builtins it needs.
    pub(crate) fn new(
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
        dialect: Dialect,
    ) -> Result<Self, PrepareError> {
        if serde_json::from_slice::<serde_json::Map<_, _>>(&spec.settings_json).is_err() {
            return Err(PrepareError::settings("they must be an object".to_owned()));
        }
        let exports = Exports::find(module)?;
        let (entrypoint, builtins) = {
            let mut instance = Instance::start(&template, &exports, Arc::default(), None)?;
            let entrypoint = instance.entrypoint(&spec.entrypoint)?;
            (entrypoint, Arc::new(instance.builtins()?))
        };
        let data = match dialect {
            Dialect::Opa => spec.settings_json.clone(),
            Dialect::Gatekeeper => Bytes::from_static(NO_INVENTORY),
        };
        Ok(Self {
            template,
            exports,
            dialect,
            entrypoint,
            builtins,
            data,
            settings: spec.settings_json.clone(),
        })
    }

    pub(crate) fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        long: Option<OnLong>,
    ) -> Result<Verdict, EvalError> {
        let input = self.input(review);
        let builtins = self.builtins.clone();
        let mut instance = Instance::start(&self.template, &self.exports, builtins, long)
            .map_err(instance::Error::into_eval)?;
        let answer = instance.evaluate(self.entrypoint, &self.data, &input)?;
        match self.dialect {
            Dialect::Opa => result::opa(&answer, review, mutating),
            Dialect::Gatekeeper => result::gatekeeper(&answer),
        }
    }

    fn input(&self, review: &Review<'_>) -> Vec<u8> {
        let request = json::for_guest(review);
        let parts: [&[u8]; 5] = match self.dialect {
            Dialect::Opa => [b"{\"request\":", &request, b"}", b"", b""],
            Dialect::Gatekeeper => [
                b"{\"parameters\":",
                &self.settings,
                b",\"review\":",
                &request,
                b"}",
            ],
        };
        parts.concat()
    }
}

/// Reads bytes as results and as values of Rego; whether they were a result.
pub(crate) fn fuzz(bytes: &[u8], review: &Review<'_>) -> bool {
    let opa = result::opa(bytes, review, true).is_ok();
    let gatekeeper = result::gatekeeper(bytes).is_ok();
    if let Ok(parsed) = value::parse(bytes) {
        let _ = value::write(&parsed);
        for name in builtins::FUZZED {
            builtins::fuzz(name, &parsed);
        }
    }
    opa || gatekeeper
}
