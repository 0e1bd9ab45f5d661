//! Makes policy modules from interpreters: an instance that has read the text of a policy becomes a module.
//!
//! The interpreter is a waPC guest. It gets the text with the operation `build`; its memory and globals are then
//! written into a copy of its module, so that each instance of the copy starts where the interpreter stopped. The
//! copy is an ordinary module: nothing that runs it knows where it came from.
//!
//! Equal input gives equal bytes. The guest gets fixed bytes for randomness, and no clock: what it took of either
//! would be the same in every evaluation, and differ between builds.

use std::{
    future::{Future, ready},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use wasmtime::{Instance, Store, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

use crate::{
    abi::Abi,
    engine::{Engine, Error},
    host,
    limits::Limits,
    policy::{EvalError, PolicySpec},
    sandbox::{Guest, Sandbox, Template},
    wapc,
};

/// What `build` made of a text.
#[derive(Debug)]
pub struct Snapshot {
    /// The interpreter's answer.
    pub answer: Vec<u8>,
    /// The module, without metadata.
    pub wasm: Vec<u8>,
}

/// Calls of an interpreter that has read a text.
#[derive(Debug)]
pub struct Calls {
    /// The payload of `build`.
    pub text: Vec<u8>,
    /// The operation of all calls, such as `validate`.
    pub operation: &'static str,
    /// The payloads of the calls, which share an instance.
    pub payloads: Vec<Vec<u8>>,
}

/// The answers to [`Calls`], in their order.
pub type Answers = Vec<Result<Vec<u8>, EvalError>>;

/// Why a text could not be built.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The interpreter itself is of no use.
    #[error("failed to use the interpreter: {0}")]
    Interpreter(String),
    /// The interpreter failed on the text.
    #[error(transparent)]
    Build(#[from] EvalError),
}

/// The function that toolchains export to set up an instance, once. A snapshot is set up, and does not export it.
const INITIALIZE: &str = "_initialize";

/// The operation that reads a text.
const BUILD: &str = "build";

// === impl Engine ===

impl Engine {
    /// Compiles an interpreter so that [`Engine::snapshot`] takes milliseconds instead of seconds. The result is for
    /// engines of the same fingerprint.
    pub fn precompile_interpreter(&self, interpreter: &[u8]) -> Result<Vec<u8>, Error> {
        let (_, instrumented) = wizer()
            .instrument(interpreter)
            .map_err(|error| Error::Compile(format!("{error:#}")))?;
        let compiled = self.wasmtime().precompile_module(&instrumented);
        compiled.map_err(|error| Error::Compile(format!("{error:#}")))
    }

    /// Lets an interpreter read `payload`, and makes a module of it. `compiled` is what
    /// [`Engine::precompile_interpreter`] returned for it, if the caller has kept that; the caller is trusted with it
    /// as with the program itself.
    pub fn snapshot(
        &self,
        interpreter: &[u8],
        compiled: Option<&[u8]>,
        payload: Vec<u8>,
        limits: Limits,
    ) -> Result<Snapshot, SnapshotError> {
        let wizer = wizer();
        let (context, instrumented) = wizer.instrument(interpreter).map_err(unusable)?;
        let template = self.interpreter(&instrumented, compiled, limits)?;
        let (mut sandbox, answer) = build(&template, payload)?;
        let mut state = State {
            store: &mut sandbox.store,
            instance: sandbox.instance,
        };
        let wasm = immediate(wizer.snapshot(&context, &mut state)).map_err(unusable)?;
        Ok(Snapshot { answer, wasm })
    }

    /// Lets an interpreter read a text and answer calls right away, without a module in between: for tests of languages.
    /// Returns the answer to the text and those to the calls, of which the first error is the last.
    pub fn interpret(
        &self,
        interpreter: &[u8],
        compiled: Option<&[u8]>,
        calls: Calls,
        limits: Limits,
    ) -> Result<(Vec<u8>, Answers), SnapshotError> {
        let instrumented = match compiled {
            Some(_) => Vec::new(),
            None => wizer().instrument(interpreter).map_err(unusable)?.1,
        };
        let template = self.interpreter(&instrumented, compiled, limits)?;
        let (mut sandbox, answer) = build(&template, calls.text)?;
        sandbox.store.data_mut().frozen = false;
        let mut answers = Vec::new();
        for payload in calls.payloads {
            sandbox.store.data_mut().wapc = wapc::Exchange::new(calls.operation, payload);
            answers.push(wapc::call_export(&mut sandbox));
            if matches!(answers.last(), Some(Err(_))) {
                break;
            }
        }
        Ok((answer, answers))
    }

    fn interpreter(
        &self,
        instrumented: &[u8],
        compiled: Option<&[u8]>,
        limits: Limits,
    ) -> Result<Template, SnapshotError> {
        let module = match compiled {
            Some(compiled) => self.deserialize(compiled),
            None => wasmtime::Module::new(self.wasmtime(), instrumented),
        };
        let module = module.map_err(unusable)?;
        let pre = self.linker(Abi::Wapc).instantiate_pre(&module);
        let host = Arc::new(host::Access::new(&PolicySpec::new(Abi::Wapc)));
        Ok(Template::new(self, pre.map_err(unusable)?, limits, host))
    }
}

/// An instance that has read `payload`, and its answer.
fn build(template: &Template, payload: Vec<u8>) -> Result<(Sandbox<'_>, Vec<u8>), EvalError> {
    let mut sandbox = template.start(payload.len(), None, |guest| {
        guest.frozen = true;
        guest.wapc = wapc::Exchange::new(BUILD, payload);
    })?;
    initialize(&mut sandbox)?;
    let answer = wapc::call_export(&mut sandbox)?;
    Ok((sandbox, answer))
}

fn unusable(error: wasmtime::Error) -> SnapshotError {
    SnapshotError::Interpreter(format!("{error:#}"))
}

fn wizer() -> Wizer {
    let mut wizer = Wizer::new();
    wizer.init_func(INITIALIZE).keep_init_func(false);
    wizer
}

fn initialize(sandbox: &mut Sandbox<'_>) -> Result<(), EvalError> {
    let func = sandbox
        .instance
        .get_typed_func::<(), ()>(&mut sandbox.store, INITIALIZE);
    let Ok(func) = func else { return Ok(()) };
    let called = func.call(&mut sandbox.store, ());
    called.map_err(|error| sandbox.explain(&error))
}

/// The instance of which a snapshot is taken.
struct State<'a> {
    store: &'a mut Store<Guest>,
    instance: Instance,
}

impl InstanceState for State<'_> {
    fn global_get(&mut self, name: &str, _: ValType) -> impl Future<Output = SnapshotVal> + Send {
        let global = self.instance.get_global(&mut *self.store, name);
        let global = global.expect("the instrumented module must export its globals");
        ready(match global.get(&mut *self.store) {
            Val::I32(value) => SnapshotVal::I32(value),
            Val::I64(value) => SnapshotVal::I64(value),
            Val::F32(value) => SnapshotVal::F32(value),
            Val::F64(value) => SnapshotVal::F64(value),
            Val::V128(value) => SnapshotVal::V128(value.as_u128()),
            _ => unreachable!("instrumenting must refuse globals that hold references"),
        })
    }

    fn memory_contents(
        &mut self,
        name: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) -> impl Future<Output = ()> + Send {
        let memory = self.instance.get_memory(&mut *self.store, name);
        let memory = memory.expect("the instrumented module must export its memory");
        contents(memory.data(&*self.store));
        ready(())
    }
}

/// The result of a future that never waits.
fn immediate<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("reading an instance must not wait"),
    }
}
