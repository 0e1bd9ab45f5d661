//! waPC: named operations with JSON payloads.

use bytes::Bytes;
use wasmtime::Linker;

use crate::{
    abi::{self, Adapter, JsonProgram, Question},
    inspect::{self, Export, Import},
    policy::{EvalError, PolicySpec, PrepareError},
    sandbox::{Guest, OnSlow, Sandbox, Stop, Template},
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
        let operation = operation(Question::ValidateSettings);
        let first = program.start(operation, spec.settings_json.to_vec(), None);
        first.map_err(|error| PrepareError::instantiate(&error))?;
        Ok(Box::new(program))
    }
}

// === impl Exchange ===

impl Exchange {
    pub(crate) fn new(operation: &'static str, payload: Vec<u8>) -> Self {
        Self {
            operation,
            payload,
            ..Self::default()
        }
    }

    /// What a guest is told: the lengths of the operation's name and of the payload.
    fn lengths(&self) -> Result<(i32, i32), EvalError> {
        let length = |bytes: usize| {
            i32::try_from(bytes).map_err(|_| EvalError::Internal("payload too large".to_owned()))
        };
        Ok((length(self.operation.len())?, length(self.payload.len())?))
    }
}

/// Calls a guest whose export was not looked up before.
pub(crate) fn call_export(sandbox: &mut Sandbox<'_>) -> Result<Vec<u8>, EvalError> {
    let missing = |_| EvalError::Internal("__guest_call is missing".to_owned());
    let (operation, payload) = sandbox.store.data().wapc.lengths()?;
    let func = sandbox
        .instance
        .get_typed_func::<(i32, i32), i32>(&mut sandbox.store, "__guest_call")
        .map_err(missing)?;
    let answered = func.call(&mut sandbox.store, (operation, payload));
    let answered = answered.map_err(|error| sandbox.explain(&error))?;
    sandbox.store.data_mut().answer(answered == 1)
}

// === impl Program ===

impl Program {
    /// An instance whose start functions have run.
    fn start(
        &self,
        operation: &'static str,
        payload: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Sandbox<'_>, EvalError> {
        let mut sandbox = self.template.start(payload.len(), on_slow, |guest| {
            guest.wapc = Exchange::new(operation, payload);
        })?;
        for init in &self.inits {
            initialise(&mut sandbox, init)?;
        }
        Ok(sandbox)
    }
}

impl JsonProgram for Program {
    fn template(&self) -> &Template {
        &self.template
    }

    fn settings(&self) -> &Bytes {
        &self.settings
    }

    fn ask(
        &self,
        question: Question,
        document: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Vec<u8>, EvalError> {
        let mut sandbox = self.start(operation(question), document, on_slow)?;
        let lengths = sandbox.store.data().wapc.lengths()?;
        let answered: i32 = sandbox.call(&self.guest_call, lengths)?;
        sandbox.store.data_mut().answer(answered == 1)
    }
}

fn operation(question: Question) -> &'static str {
    match question {
        Question::ValidateSettings => "validate_settings",
        Question::Validate => "validate",
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
