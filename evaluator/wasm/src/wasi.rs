//! WASI preview 1 without files, network and environment, and the command modules that use it.
//!
//! A policy reads stdin, writes stdout and stderr, asks for the time, for randomness, and sleeps. Writing that
//! small part here rather than taking a whole WASI keeps a fresh sandbox cheap, keeps sleeping within the
//! deadline, and leaves nothing behind it that could be opened by mistake.

use bytes::Bytes;

use crate::{
    answer, json,
    policy::{EvalError, PrepareError},
    review::Review,
    sandbox::{Guest, OnLong, Sandbox, Stop, Template},
    verdict::Verdict,
};

mod imports;
mod poll;
mod refused;
mod stdio;

pub(crate) use imports::{link, link_host_call};

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
pub(crate) struct Program {
    template: Template,
    start: wasmtime::ModuleExport,
    settings: Bytes,
}

const VALIDATE_SETTINGS: &[&str] = &["policy.wasm", "validate-settings"];

// === impl Program ===

impl Program {
    pub(crate) fn new(
        template: Template,
        module: &wasmtime::Module,
        settings: &Bytes,
    ) -> Result<Self, PrepareError> {
        let program = Self {
            template,
            start: crate::exports::func(module, "_start", 0, 0)?,
            settings: settings.clone(),
        };
        program
            .start(VALIDATE_SETTINGS, settings.to_vec(), None)
            .map_err(|error| PrepareError::instantiate(&error))?;
        Ok(program)
    }

    pub(crate) fn validate_settings(&self) -> Result<(), PrepareError> {
        let answer = self.run(VALIDATE_SETTINGS, self.settings.to_vec(), None);
        let answer = answer.map_err(|error| PrepareError::unsettled(&error))?;
        answer::settings(&answer).map_err(PrepareError::settings)
    }

    pub(crate) fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        long: Option<OnLong>,
    ) -> Result<Verdict, EvalError> {
        let stdin = json::payload(review, &self.settings);
        let answer = self.run(&["policy.wasm", "validate"], stdin, long)?;
        answer::validation(&answer, review, mutating)
    }

    fn run(
        &self,
        args: &'static [&'static str],
        stdin: Vec<u8>,
        long: Option<OnLong>,
    ) -> Result<Vec<u8>, EvalError> {
        let mut sandbox = self.start(args, stdin, long)?;
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

    /// An instance whose command has not run yet.
    fn start(
        &self,
        args: &'static [&'static str],
        stdin: Vec<u8>,
        long: Option<OnLong>,
    ) -> Result<Sandbox<'_>, EvalError> {
        self.template.start(long, |guest| {
            guest.wasi = Io {
                args,
                stdin,
                stdout: Some(Vec::new()),
                ..Io::default()
            };
        })
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
