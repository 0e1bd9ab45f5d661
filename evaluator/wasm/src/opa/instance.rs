//! One running Rego module.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use super::{
    Session,
    builtins::Table,
    exports::{Call, Exports},
};
use crate::{
    limits::OUTPUT_BYTES,
    policy::{EvalError, PrepareError},
    sandbox::{OnSlow, Sandbox, Template},
};

/// A sandbox with a Rego module in it.
pub(super) struct Instance<'a> {
    sandbox: Sandbox<'a>,
    exports: &'a Exports,
}

/// Why a module can't be asked.
#[derive(Debug)]
pub(super) struct Error(EvalError);

/// The dialect of one-shot results: JSON rather than Rego's own text.
const JSON: i32 = 0;

// === impl Instance ===

impl<'a> Instance<'a> {
    pub(super) fn start(
        template: &'a Template,
        exports: &'a Exports,
        builtins: Arc<Table>,
        input_bytes: usize,
        on_slow: Option<OnSlow>,
    ) -> Result<Self, Error> {
        let mut sandbox = template.start(input_bytes, on_slow, |guest| {
            guest.opa = Session {
                functions: None,
                builtins,
                now: Some(SystemTime::now()),
            };
        })?;
        let functions = exports.functions(&mut sandbox)?;
        sandbox.store.data_mut().opa.functions = Some(functions);
        Ok(Self { sandbox, exports })
    }

    /// The number of the entrypoint with this name; 0 is the first, whatever its name.
    pub(super) fn entrypoint(&mut self, name: &str) -> Result<i32, PrepareError> {
        if name.is_empty() {
            return Ok(0);
        }
        let known = self.table(self.exports_entrypoints())?;
        let wanted = name.strip_prefix("data.").unwrap_or(name).replace('.', "/");
        known
            .get(name)
            .or_else(|| known.get(&wanted))
            .copied()
            .ok_or_else(|| {
                let names: Vec<_> = known.keys().map(String::as_str).collect();
                PrepareError::link(format!(
                    "the module has no entrypoint {name:?}; it has: {}",
                    names.join(", ")
                ))
            })
    }

    /// The builtins that the module leaves to its host.
    pub(super) fn builtins(&mut self) -> Result<Table, PrepareError> {
        let names = self.table(self.exports_builtins())?;
        Table::new(names).map_err(|number| {
            PrepareError::link(format!(
                "the module's builtins are not numbered sensibly: {number}"
            ))
        })
    }

    /// Evaluates to the JSON text of the result set.
    pub(super) fn evaluate(
        &mut self,
        entrypoint: i32,
        data: &[u8],
        input: &[u8],
    ) -> Result<Vec<u8>, EvalError> {
        let exports = self.exports;
        let data = self.parse(data)?;
        let text = match &exports.call {
            Call::OneShot { eval, heap_ptr_get } => {
                let (at, length) = self.write(input)?;
                let heap: i32 = self.sandbox.call(heap_ptr_get, ())?;
                self.sandbox
                    .call(eval, (0, entrypoint, data, at, length, heap, JSON))?
            }
            Call::Context {
                new,
                set_input,
                set_data,
                set_entrypoint,
                eval,
                get_result,
            } => {
                let input = self.parse(input)?;
                let context: i32 = self.sandbox.call(new, ())?;
                self.sandbox.call::<_, ()>(set_input, (context, input))?;
                self.sandbox.call::<_, ()>(set_data, (context, data))?;
                if let Some(set_entrypoint) = set_entrypoint {
                    self.sandbox
                        .call::<_, ()>(set_entrypoint, (context, entrypoint))?;
                }
                let _: i32 = self.sandbox.call(eval, context)?;
                let result: i32 = self.sandbox.call(get_result, context)?;
                self.sandbox.call(&exports.json_dump, result)?
            }
        };
        self.read(text)
    }

    fn exports_entrypoints(&self) -> &'a wasmtime::ModuleExport {
        &self.exports.entrypoints
    }

    fn exports_builtins(&self) -> &'a wasmtime::ModuleExport {
        &self.exports.builtins
    }

    /// Reads a map of names to numbers that a function returns.
    fn table(
        &mut self,
        function: &wasmtime::ModuleExport,
    ) -> Result<BTreeMap<String, i32>, PrepareError> {
        let text = self
            .dump(function)
            .map_err(|error| PrepareError::instantiate(&error))?;
        serde_json::from_slice(&text).map_err(|error| {
            PrepareError::instantiate(&EvalError::BadAnswer(format!(
                "names and numbers expected: {error}"
            )))
        })
    }

    fn dump(&mut self, function: &wasmtime::ModuleExport) -> Result<Vec<u8>, EvalError> {
        let value: i32 = self.sandbox.call(function, ())?;
        let text: i32 = self.sandbox.call(&self.exports.json_dump, value)?;
        self.read(text)
    }

    /// Copies JSON into the guest and has it parsed there.
    fn parse(&mut self, json: &[u8]) -> Result<i32, EvalError> {
        let place = self.write(json)?;
        match self.sandbox.call(&self.exports.json_parse, place)? {
            0 => Err(EvalError::Rego("it can't parse its input".to_owned())),
            value => Ok(value),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(i32, i32), EvalError> {
        let length = i32::try_from(bytes.len())
            .map_err(|_| EvalError::Internal("input too large".to_owned()))?;
        let at: i32 = self.sandbox.call(&self.exports.malloc, length)?;
        let place = self.memory().and_then(|memory| {
            let start = at.cast_unsigned() as usize;
            memory.get_mut(start..start + bytes.len())
        });
        place
            .ok_or(EvalError::BadAddress("opa_malloc"))?
            .copy_from_slice(bytes);
        Ok((at, length))
    }

    /// The text that ends with a zero byte.
    fn read(&mut self, at: i32) -> Result<Vec<u8>, EvalError> {
        let memory = self.memory().unwrap_or_default();
        let rest = memory
            .get(at.cast_unsigned() as usize..)
            .ok_or(EvalError::BadAddress("opa_json_dump"))?;
        let window = &rest[..rest.len().min(OUTPUT_BYTES + 1)];
        match memchr::memchr(0, window) {
            Some(end) => {
                let text = window[..end].to_vec();
                let meter = &mut self.sandbox.store.data_mut().meter;
                meter.reserve(text.len() as u64)?;
                Ok(text)
            }
            None if window.len() > OUTPUT_BYTES => Err(EvalError::OutputTooLarge),
            None => Err(EvalError::BadAddress("opa_json_dump")),
        }
    }

    fn memory(&mut self) -> Option<&mut [u8]> {
        let memory = self
            .sandbox
            .instance
            .get_memory(&mut self.sandbox.store, "memory")?;
        Some(memory.data_mut(&mut self.sandbox.store))
    }
}

// === impl Error ===

impl Error {
    pub(super) fn into_eval(self) -> EvalError {
        self.0
    }
}

impl From<EvalError> for Error {
    fn from(error: EvalError) -> Self {
        Self(error)
    }
}

impl From<Error> for PrepareError {
    fn from(error: Error) -> Self {
        Self::instantiate(&error.0)
    }
}
