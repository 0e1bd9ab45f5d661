//! WASI preview 1 without files, network and environment, and the command modules that use it.
//!
//! A policy reads stdin, writes stdout and stderr, asks for the time, for randomness, and sleeps. Writing that
//! small part here rather than taking a whole WASI keeps a fresh sandbox cheap, keeps sleeping within the
//! deadline, and leaves nothing behind it that could be opened by mistake.

use bytes::Bytes;
use wasmtime::Linker;

use crate::{
    abi::{self, Adapter, JsonProgram, Question},
    inspect::{self, Export, Import},
    policy::{EvalError, PolicySpec, PrepareError},
    sandbox::{Guest, OnSlow, Sandbox, Stop, Template},
};

mod imports;
mod poll;
mod refused;
mod stdio;

pub(crate) use imports::{MODULE, link};

/// The ABI of WASI commands.
pub(crate) struct Wasi;

/// Streams and arguments of one guest.
#[derive(Default)]
pub(crate) struct Io {
    args: &'static [&'static str],
    stdin: Vec<u8>,
    read: usize,
    /// The answer of a command. waPC guests answer otherwise: what they print is logged.
    stdout: Option<Vec<u8>>,
    /// A line that has not ended yet.
    line: Vec<u8>,
}

/// A linked command module.
struct Program {
    template: Template,
    start: wasmtime::ModuleExport,
    settings: Bytes,
}

// === impl Wasi ===

impl Adapter for Wasi {
    fn recognises(&self, imports: &[Import], exports: &[Export]) -> bool {
        let only_wasi = imports
            .iter()
            .all(|import| import.module == MODULE || imports::is_host_call(import));
        only_wasi && inspect::has(exports, "_start")
    }

    fn required_exports(&self) -> &'static [&'static str] {
        &["memory", "_start"]
    }

    fn provides(&self, import: &Import) -> bool {
        import.kind == "func" && (import.module == MODULE || imports::is_host_call(import))
    }

    fn link(&self, linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
        imports::link(linker)?;
        imports::link_host_call(linker)
    }

    fn prepare(
        &self,
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
    ) -> Result<Box<dyn abi::Program>, PrepareError> {
        let program = Program {
            template,
            start: crate::exports::func(module, "_start", 0, 0)?,
            settings: spec.settings_json.clone(),
        };
        let args = args(Question::ValidateSettings);
        let first = program.start(args, spec.settings_json.to_vec(), None);
        first.map_err(|error| PrepareError::instantiate(&error))?;
        Ok(Box::new(program))
    }
}

// === impl Program ===

impl Program {
    /// An instance whose command has not run yet.
    fn start(
        &self,
        args: &'static [&'static str],
        stdin: Vec<u8>,
        on_slow: Option<OnSlow>,
    ) -> Result<Sandbox<'_>, EvalError> {
        self.template.start(stdin.len(), on_slow, |guest| {
            guest.wasi = Io {
                args,
                stdin,
                stdout: Some(Vec::new()),
                ..Io::default()
            };
        })
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
        let mut sandbox = self.start(args(question), document, on_slow)?;
        let start = sandbox.func::<(), ()>(&self.start)?;
        let ended = start.call(&mut sandbox.store, ());
        sandbox.store.data_mut().flush();
        match ended {
            Err(error) if !matches!(error.downcast_ref(), Some(Stop::Exit(0))) => {
                Err(sandbox.explain(&error))
            }
            _ => Ok(sandbox
                .store
                .data_mut()
                .wasi
                .stdout
                .take()
                .unwrap_or_default()),
        }
    }
}

fn args(question: Question) -> &'static [&'static str] {
    match question {
        Question::ValidateSettings => &["policy.wasm", "validate-settings"],
        Question::Validate => &["policy.wasm", "validate"],
    }
}

// === impl Guest ===

impl Guest {
    /// Logs what was written to stderr without a final newline.
    fn flush(&mut self) {
        if !self.wasi.line.is_empty() {
            let line = std::mem::take(&mut self.wasi.line);
            crate::host::log_line(self, &String::from_utf8_lossy(&line));
        }
    }
}
