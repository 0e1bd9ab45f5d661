//! waPC: named operations with JSON payloads.

use bytes::Bytes;
use wasmtime::Linker;

use crate::{
    abi::{self, Adapter},
    answer,
    inspect::{self, Export, Import},
    json,
    policy::{EvalError, PolicySpec, PrepareError},
    review::Review,
    sandbox::{Guest, OnSlow, Sandbox, Stop, Template},
    verdict::Verdict,
    wasi,
};

mod imports;

/// The waPC ABI.
pub(crate) struct Wapc;

/// What the host functions of one call pass to and fro.
#[derive(Default)]
pub(crate) struct Exchange {
    operation: &'static str,
    payload: Vec<u8>,
    response: Option<Vec<u8>>,
    error: Option<String>,
    host_response: Vec<u8>,
    host_error: String,
}

/// A linked waPC module.
struct Program {
    template: Template,
    guest_call: wasmtime::ModuleExport,
    inits: Vec<wasmtime::ModuleExport>,
    settings: Bytes,
}

/// Start functions, in the order in which hosts run those that exist.
const INITS: [&str; 3] = ["_start", "_initialize", "wapc_init"];

/// The operation that every guest knows first.
const VALIDATE_SETTINGS: &str = "validate_settings";

// === impl Wapc ===

impl Adapter for Wapc {
    fn recognises(&self, imports: &[Import], exports: &[Export]) -> bool {
        let imports_wapc = imports
            .iter()
            .any(|import| import.module == imports::MODULE);
        imports_wapc && inspect::has(exports, "__guest_call")
    }

    fn accepts_protocol(&self, version: &str) -> bool {
        version == "v1"
    }

    fn required_exports(&self) -> &'static [&'static str] {
        &["memory", "__guest_call"]
    }

    fn provides(&self, import: &Import) -> bool {
        import.kind == "func" && (import.module == imports::MODULE || import.module == wasi::MODULE)
    }

    fn link(&self, linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
        imports::link(linker)?;
        wasi::link(linker)
    }

    fn prepare(
        &self,
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
    ) -> Result<Box<dyn abi::Program>, PrepareError> {
        let inits = INITS
            .iter()
            .filter(|name| module.get_export(name).is_some())
            .map(|name| crate::exports::func(module, name, 0, 0));
        let program = Program {
            template,
            guest_call: crate::exports::func(module, "__guest_call", 2, 1)?,
            inits: inits.collect::<Result<_, _>>()?,
            settings: spec.settings_json.clone(),
        };
        let first = program.start(VALIDATE_SETTINGS, spec.settings_json.to_vec(), None);
        first.map_err(|error| PrepareError::instantiate(&error))?;
        Ok(Box::new(program))
    }
}

// === impl Program ===

impl Program {
    fn call(
        &self,
        operation: &'static str,
        payload: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Vec<u8>, EvalError> {
        let length = i32::try_from(payload.len())
            .map_err(|_| EvalError::Internal("payload too large".to_owned()))?;
        let mut sandbox = self.start(operation, payload, on_slow)?;
        let operation_length =
            i32::try_from(operation.len()).expect("an operation's name must be short");
        let answered: i32 = sandbox.call(&self.guest_call, (operation_length, length))?;
        sandbox.store.data_mut().answer(answered == 1)
    }

    /// An instance whose start functions have run.
    fn start(
        &self,
        operation: &'static str,
        payload: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Sandbox<'_>, EvalError> {
        let mut sandbox = self.template.start(payload.len(), on_slow, |guest| {
            guest.wapc = Exchange {
                operation,
                payload,
                ..Exchange::default()
            };
        })?;
        for init in &self.inits {
            initialise(&mut sandbox, init)?;
        }
        Ok(sandbox)
    }
}

impl abi::Program for Program {
    fn validate_settings(&self) -> Result<(), PrepareError> {
        let answer = self.call(VALIDATE_SETTINGS, self.settings.to_vec(), None);
        let answer = answer.map_err(|error| PrepareError::settings_failed(&error))?;
        answer::settings(&answer).map_err(PrepareError::settings)
    }

    fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        on_slow: Option<OnSlow>,
    ) -> Result<Verdict, EvalError> {
        let answer = self.call("validate", json::payload(review, &self.settings), on_slow)?;
        let _memory = self.template.reserve_for(&answer, review, mutating)?;
        answer::validation(&answer, review, mutating)
    }
}

/// A start function may end the way commands do, with exit code 0.
fn initialise(sandbox: &mut Sandbox<'_>, init: &wasmtime::ModuleExport) -> Result<(), EvalError> {
    let func = sandbox.func::<(), ()>(init)?;
    match func.call(&mut sandbox.store, ()) {
        Err(error) if !matches!(error.downcast_ref(), Some(Stop::Exit(0))) => {
            Err(sandbox.explain(&error))
        }
        _ => Ok(()),
    }
}

// === impl Guest ===

impl Guest {
    /// What the guest left when its call ended.
    fn answer(&mut self, answered: bool) -> Result<Vec<u8>, EvalError> {
        if answered {
            let response = self.wapc.response.take();
            return response.ok_or_else(|| EvalError::BadAnswer("it is missing".to_owned()));
        }
        if self.meter.memory_refused {
            return Err(EvalError::MemoryExceeded(self.meter.limits.memory_bytes));
        }
        Err(EvalError::Guest(
            self.wapc
                .error
                .take()
                .unwrap_or_else(|| "it gave no reason".to_owned()),
        ))
    }
}
