//! One sandbox: the state of a guest's store, its limits, and access to its memory.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wasmtime::{Caller, Instance, InstancePre, Memory, Store, UpdateDeadline};

use crate::{
    budget::{Reservation, parsed_bytes},
    engine::{Engine, Running},
    headroom::Headroom,
    host,
    limits::{Limits, SANDBOX_BYTES},
    opa,
    policy::EvalError,
    review::Review,
    wapc, wasi,
};

mod meter;

pub(crate) use meter::{Meter, OnSlow};

/// Ticks after which an evaluation counts as slow. The first one may come at once.
const SLOW: u64 = 2;

/// What a store holds for the one guest in it.
pub(crate) struct Guest {
    pub(crate) meter: Meter,
    pub(crate) host: Arc<host::Access>,
    pub(crate) pins: host::Pins,
    pub(crate) wapc: wapc::Exchange,
    pub(crate) wasi: wasi::Io,
    pub(crate) opa: opa::Session,
    /// Whether a snapshot will be taken of the instance: it gets no clock, and the same randomness each time.
    pub(crate) frozen: bool,
    memory: Option<Memory>,
}

/// Why a host function ends the evaluation.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error("deadline exceeded")]
    Timeout,
    #[error("the memory that evaluations share is used up")]
    Overloaded,
    #[error("host-call budget exceeded")]
    HostCallBudget,
    #[error("output too large")]
    OutputTooLarge,
    #[error("{0} was given an address outside of the guest's memory")]
    BadAddress(&'static str),
    #[error("exit {0}")]
    Exit(i32),
    #[error("{0}")]
    Abort(String),
    #[error("{0}")]
    Context(String),
}

/// A linked module from which sandboxes are instantiated.
pub(crate) struct Template {
    engine: Engine,
    pre: InstancePre<Guest>,
    limits: Limits,
    headroom: Headroom,
    host: Arc<host::Access>,
}

/// A running guest. Nothing of it survives.
pub(crate) struct Sandbox<'a> {
    pub(crate) store: Store<Guest>,
    pub(crate) instance: Instance,
    _clock: Running<'a>,
}

// === impl Template ===

impl Template {
    pub(crate) fn new(
        engine: &Engine,
        pre: InstancePre<Guest>,
        limits: Limits,
        host: Arc<host::Access>,
    ) -> Self {
        Self {
            engine: engine.clone(),
            headroom: Headroom::of(pre.module(), &limits),
            pre,
            limits,
            host,
        }
    }

    pub(crate) fn host(&self) -> &host::Access {
        &self.host
    }

    /// Makes a fresh instance. The deadline runs from here; `prepare` may fill in input before any code of
    /// the guest runs. `input_bytes` is what the host holds of it.
    pub(crate) fn start(
        &self,
        input_bytes: usize,
        on_slow: Option<OnSlow>,
        prepare: impl FnOnce(&mut Guest),
    ) -> Result<Sandbox<'_>, EvalError> {
        let clock = self.engine.keep_time();
        let memory = self.engine.memory().reservation();
        let mut guest = Guest::new(&self.limits, self.host.clone(), memory);
        guest.meter.reserve(SANDBOX_BYTES + input_bytes as u64)?;
        guest.meter.unseen_bytes = self.headroom.bytes();
        guest.meter.watch(on_slow);
        prepare(&mut guest);
        let mut store = Store::new(self.engine.wasmtime(), guest);
        store.limiter(|guest| &mut guest.meter);
        let ticks = Engine::ticks(self.limits.timeout).max(1);
        store.set_epoch_deadline(if on_slow.is_some() {
            ticks.min(SLOW)
        } else {
            ticks
        });
        store.epoch_deadline_callback(|mut store| store.data_mut().meter.on_tick());
        match self.pre.instantiate(&mut store) {
            Ok(instance) => {
                let memory = instance.get_memory(&mut store, "memory");
                store.data_mut().memory = memory;
                self.headroom.limit(&mut store, &instance);
                Ok(Sandbox {
                    store,
                    instance,
                    _clock: clock,
                })
            }
            Err(error) => Err(EvalError::from_wasmtime(&error, store.data())),
        }
    }

    /// Reserves memory for reading an answer after its sandbox is gone. A patch is made from both objects.
    pub(crate) fn reserve_for(
        &self,
        answer: &[u8],
        review: &Review<'_>,
        mutating: bool,
    ) -> Result<Reservation, EvalError> {
        let mut memory = self.engine.memory().reservation();
        let mut bytes = parsed_bytes(answer);
        if mutating {
            bytes = bytes.saturating_add(parsed_bytes(review.request.as_bytes()));
        }
        memory.grow(bytes).map_err(|_| EvalError::Overloaded)?;
        Ok(memory)
    }
}

// === impl Sandbox ===

impl Sandbox<'_> {
    /// Classifies the error of a call into the guest.
    pub(crate) fn explain(&self, error: &wasmtime::Error) -> EvalError {
        EvalError::from_wasmtime(error, self.store.data())
    }

    /// A function that was found when the policy was prepared.
    pub(crate) fn func<P, R>(
        &mut self,
        export: &wasmtime::ModuleExport,
    ) -> Result<wasmtime::TypedFunc<P, R>, EvalError>
    where
        P: wasmtime::WasmParams,
        R: wasmtime::WasmResults,
    {
        let func = self
            .instance
            .get_module_export(&mut self.store, export)
            .and_then(wasmtime::Extern::into_func);
        let typed = func.and_then(|func| func.typed(&self.store).ok());
        typed.ok_or_else(|| {
            EvalError::Internal("an export has changed since it was linked".to_owned())
        })
    }

    /// Calls a function that was found when the policy was prepared.
    pub(crate) fn call<P, R>(
        &mut self,
        export: &wasmtime::ModuleExport,
        params: P,
    ) -> Result<R, EvalError>
    where
        P: wasmtime::WasmParams,
        R: wasmtime::WasmResults,
    {
        let func = self.func::<P, R>(export)?;
        func.call(&mut self.store, params)
            .map_err(|error| self.explain(&error))
    }
}

// === impl Guest ===

impl Guest {
    pub(crate) fn new(limits: &Limits, host: Arc<host::Access>, memory: Reservation) -> Self {
        Self {
            meter: Meter::new(limits, memory),
            host,
            pins: host::Pins::default(),
            wapc: wapc::Exchange::default(),
            wasi: wasi::Io::default(),
            opa: opa::Session::default(),
            frozen: false,
            memory: None,
        }
    }
}

impl Meter {
    /// Called at every tick past the first estimate of the deadline, or once the evaluation is slow.
    fn on_tick(&mut self) -> wasmtime::Result<UpdateDeadline> {
        self.mark_slow();
        if self.remaining() == Duration::ZERO {
            return Err(Stop::Timeout.into());
        }
        Ok(UpdateDeadline::Continue(1))
    }

    /// Time left of the deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// The guest's memory and its state, for a host function called `name`.
pub(crate) fn memory<'a>(
    caller: &'a mut Caller<'_, Guest>,
    name: &'static str,
) -> Result<(&'a mut [u8], &'a mut Guest), Stop> {
    let memory = match caller.data().memory {
        Some(memory) => memory,
        // Start functions run before the sandbox knows its exports.
        None => caller
            .get_export("memory")
            .and_then(wasmtime::Extern::into_memory)
            .ok_or(Stop::BadAddress(name))?,
    };
    Ok(memory.data_and_store_mut(caller))
}

/// `length` bytes at `at`, if they are within the memory.
pub(crate) fn slice<'a>(
    memory: &'a [u8],
    at: i32,
    length: i32,
    name: &'static str,
) -> Result<&'a [u8], Stop> {
    let (start, end) = range(at, length);
    memory.get(start..end).ok_or(Stop::BadAddress(name))
}

/// As [`slice`], to write to.
pub(crate) fn slice_mut<'a>(
    memory: &'a mut [u8],
    at: i32,
    length: usize,
    name: &'static str,
) -> Result<&'a mut [u8], Stop> {
    let start = at.cast_unsigned() as usize;
    memory
        .get_mut(start..start.saturating_add(length))
        .ok_or(Stop::BadAddress(name))
}

/// Copies `bytes` to `at`.
pub(crate) fn write(
    memory: &mut [u8],
    at: i32,
    bytes: &[u8],
    name: &'static str,
) -> Result<(), Stop> {
    slice_mut(memory, at, bytes.len(), name)?.copy_from_slice(bytes);
    Ok(())
}

/// Addresses are unsigned, whatever the signature says; 32 bits can't overflow a sum of 64.
fn range(at: i32, length: i32) -> (usize, usize) {
    let start = at.cast_unsigned() as usize;
    (start, start + length.cast_unsigned() as usize)
}
