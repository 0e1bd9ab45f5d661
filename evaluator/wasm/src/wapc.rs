//! waPC: named operations with JSON payloads.

use bytes::Bytes;

use crate::{
    answer, json,
    policy::{EvalError, PrepareError},
    review::Review,
    sandbox::{Guest, OnLong, Sandbox, Stop, Template},
    verdict::Verdict,
};

mod imports;

pub(crate) use imports::link;

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
pub(crate) struct Program {
    template: Template,
    guest_call: wasmtime::ModuleExport,
    inits: Vec<wasmtime::ModuleExport>,
    settings: Bytes,
}

/// Start functions, in the order in which hosts run those that exist.
const INITS: [&str; 3] = ["_start", "_initialize", "wapc_init"];

/// The operation that every guest knows first.
const VALIDATE_SETTINGS: &str = "validate_settings";

// === impl Program ===

impl Program {
    pub(crate) fn new(
        template: Template,
        module: &wasmtime::Module,
        settings: &Bytes,
    ) -> Result<Self, PrepareError> {
        let inits = INITS
            .iter()
            .filter(|name| module.get_export(name).is_some())
            .map(|name| crate::exports::func(module, name, 0, 0));
        let program = Self {
            template,
            guest_call: crate::exports::func(module, "__guest_call", 2, 1)?,
            inits: inits.collect::<Result<_, _>>()?,
            settings: settings.clone(),
        };
        program
            .start(VALIDATE_SETTINGS, settings.to_vec(), None)
            .map_err(|error| PrepareError::instantiate(&error))?;
        Ok(program)
    }

    pub(crate) fn validate_settings(&self) -> Result<(), PrepareError> {
        let answer = self.call(VALIDATE_SETTINGS, self.settings.to_vec(), None);
        let answer = answer.map_err(|error| PrepareError::unsettled(&error))?;
        answer::settings(&answer).map_err(PrepareError::settings)
    }

    pub(crate) fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        long: Option<OnLong>,
    ) -> Result<Verdict, EvalError> {
        let answer = self.call("validate", json::payload(review, &self.settings), long)?;
        answer::validation(&answer, review, mutating)
    }

    fn call(
        &self,
        operation: &'static str,
        payload: Vec<u8>,
        long: Option<OnLong>,
    ) -> Result<Vec<u8>, EvalError> {
        let length = i32::try_from(payload.len())
            .map_err(|_| EvalError::Internal("payload too large".to_owned()))?;
        let mut sandbox = self.start(operation, payload, long)?;
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
        long: Option<OnLong>,
    ) -> Result<Sandbox<'_>, EvalError> {
        let mut sandbox = self.template.start(long, |guest| {
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
