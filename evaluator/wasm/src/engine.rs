//! The process-wide engine: one configuration, one clock, compiled modules.

use std::{borrow::Cow, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use wasmtime::{Config, InstanceAllocationStrategy, Linker, PoolingAllocationConfig};

use crate::{
    abi::Abi,
    artefact,
    budget::MemoryBudget,
    headroom,
    inspect::{InspectError, Inspection, inspect},
    limits::{STACK_BYTES, TABLE_ELEMENTS},
    policy::Module,
    sandbox::Guest,
};

mod fingerprint;
mod ticker;

pub(crate) use ticker::{Running, TICK};

/// How much the engine may hold at once.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Sandboxes that may exist at the same time; 0 takes memory on demand instead of from a pool, which
    /// suits processes that run a few calls and end.
    pub max_concurrent_instances: u32,
    /// The most that any policy's memory limit may be.
    pub max_memory_bytes: usize,
    /// Memory that a free sandbox keeps, so that its next use takes no page faults.
    pub keep_resident_bytes: usize,
    /// Memory of all evaluations together, and of compiled code.
    pub memory: MemoryBudget,
}

/// Free sandboxes that stay prepared for their module: at most 80 MiB that an idle process holds.
const WARM_SLOTS: u32 = 64;

/// The engine: cheap to clone, one per process.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// Why the engine can't start.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the WebAssembly engine: {0}")]
pub struct EngineError(String);

/// Why a module can't be compiled or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a module.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A module that no ABI fits.
    #[error("{0}")]
    Unfit(String),
    /// The compiler refused it.
    #[error("failed to compile the module: {0}")]
    Compile(String),
    /// The artefact does not have the announced hash.
    #[error("the artefact has the hash {found}, not the expected {expected}")]
    Hash {
        /// Hash of the bytes.
        found: String,
        /// Announced hash.
        expected: String,
    },
    /// The artefact belongs to another engine, or is damaged.
    #[error("failed to load the artefact: {0}")]
    Artefact(String),
}

struct Inner {
    wasmtime: wasmtime::Engine,
    linkers: Linkers,
    fingerprint: String,
    max_memory_bytes: usize,
    memory: MemoryBudget,
    ticker: ticker::Ticker,
}

/// The host functions of each ABI, in the order of [`Abi::ALL`].
struct Linkers([Linker<Guest>; Abi::ALL.len()]);

// === impl EngineConfig ===

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            // Each slot reserves addresses (4 GiB), not memory: far more than threads that evaluate.
            max_concurrent_instances: 256,
            // Room for a policy server that quadruples the default limit.
            max_memory_bytes: 512 << 20,
            // A Rust policy dirties less than 64 KiB, a Go policy a little more than 1 MiB; for the latter keeping it
            // saves 400 µs of page faults per evaluation.
            keep_resident_bytes: 1280 << 10,
            memory: MemoryBudget::unlimited(),
        }
    }
}

impl EngineConfig {
    /// For processes that run a few calls and end. Artefacts are the same as with the default.
    ///
    /// A limit on such a process must be on data (`RLIMIT_DATA`), not on addresses (`RLIMIT_AS`): each
    /// memory reserves 4 GiB of addresses whatever it uses.
    pub fn small() -> Self {
        Self {
            max_concurrent_instances: 0,
            ..Self::default()
        }
    }

    fn to_wasmtime(&self) -> Config {
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .max_wasm_stack(STACK_BYTES)
            // Fibers and tasks are for async guests: none here.
            .concurrency_support(false)
            .wasm_gc(false)
            .wasm_features(wasmtime::WasmFeatures::FUNCTION_REFERENCES, false)
            .wasm_memory64(false)
            .wasm_multi_memory(false)
            .wasm_relaxed_simd(false)
            // A guest's output on stderr is more helpful than offsets, at no cost.
            .wasm_backtrace_max_frames(None);
        if self.max_concurrent_instances > 0 {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(self.pool()));
        }
        config
    }

    fn pool(&self) -> PoolingAllocationConfig {
        let count = self.max_concurrent_instances;
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(count)
            .total_memories(count)
            .max_memories_per_module(1)
            // Toolchains make one table; a second one holds references of the host.
            .total_tables(count.saturating_mul(2))
            .max_tables_per_module(2)
            .table_elements(TABLE_ELEMENTS)
            .max_memory_size(self.max_memory_bytes)
            // Grows with functions and globals: Go modules of 10 MB need about 1 MiB.
            .max_core_instance_size(16 << 20)
            .max_unused_warm_slots(count.min(WARM_SLOTS))
            .linear_memory_keep_resident(self.keep_resident_bytes)
            .table_keep_resident(TABLE_ELEMENTS * size_of::<usize>())
            .pagemap_scan(wasmtime::Enabled::Auto);
        pool
    }
}

// === impl Engine ===

impl Engine {
    /// Starts the engine and its clock.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError(format!("{error:#}"));
        let wasmtime = wasmtime::Engine::new(&config.to_wasmtime()).map_err(failed)?;
        let linkers = Linkers::new(&wasmtime).map_err(failed)?;
        let ticker = ticker::Ticker::start(wasmtime.weak())
            .map_err(|error| EngineError(error.to_string()))?;
        let fingerprint = fingerprint::of(&wasmtime);
        Ok(Self(Arc::new(Inner {
            wasmtime,
            linkers,
            fingerprint,
            max_memory_bytes: config.max_memory_bytes,
            memory: config.memory,
            ticker,
        })))
    }

    /// Identifies everything that decides whether an artefact fits: version, target, CPU features, configuration.
    pub fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }

    /// Compiles a portable module.
    pub fn compile(&self, wasm: &[u8]) -> Result<Module, Error> {
        let inspection = inspect(wasm)?;
        let wasm = self.adapt(wasm, &inspection)?;
        let code = wasmtime::Module::new(&self.0.wasmtime, &wasm)
            .map_err(|error| compile_error(&error))?;
        Ok(self.module(code, inspection))
    }

    /// Compiles a portable module into an artefact for engines of the same fingerprint.
    pub fn precompile(&self, wasm: &[u8]) -> Result<Vec<u8>, Error> {
        let inspection = inspect(wasm)?;
        let wasm = self.adapt(wasm, &inspection)?;
        let code = self
            .0
            .wasmtime
            .precompile_module(&wasm)
            .map_err(|error| compile_error(&error))?;
        let header = artefact::Header {
            fingerprint: self.0.fingerprint.clone(),
            inspection,
        };
        artefact::encode(&header, &code).map_err(|error| Error::Artefact(error.to_string()))
    }

    /// The module as it is compiled; refuses one that could not be run.
    fn adapt<'a>(&self, wasm: &'a [u8], inspection: &Inspection) -> Result<Cow<'a, [u8]>, Error> {
        if let Some(problem) = &inspection.problem {
            return Err(Error::Unfit(problem.clone()));
        }
        wasmtime::Module::validate(&self.0.wasmtime, wasm)
            .map_err(|error| compile_error(&error))?;
        let wasm = match inspection.abi {
            Some(abi) => abi.adapter().rewrite(wasm)?,
            None => Cow::Borrowed(wasm),
        };
        Ok(headroom::give(&wasm).map_or(wasm, Cow::Owned))
    }

    /// Loads an artefact whose SHA-256 is `expected`.
    ///
    /// The caller that supplies the expected hash is trusted with running code in this process. The bytes are private
    /// memory of this process, and are copied once more before they become code: they can't be changed
    /// between the check and the use.
    pub fn load(&self, artefact: &[u8], expected: &[u8; 32]) -> Result<Module, Error> {
        let found = Sha256::digest(artefact);
        if found.as_slice() != expected {
            return Err(Error::Hash {
                found: hex::encode(found),
                expected: hex::encode(expected),
            });
        }
        let (header, code) =
            artefact::decode(artefact).map_err(|error| Error::Artefact(error.to_string()))?;
        if header.fingerprint != self.0.fingerprint {
            return Err(Error::Artefact(format!(
                "it was made for the engine {}, this is {}",
                header.fingerprint, self.0.fingerprint
            )));
        }
        let code = self
            .deserialize(code)
            .map_err(|error| Error::Artefact(format!("{error:#}")))?;
        Ok(self.module(code, header.inspection))
    }

    /// The one place where bytes become code without validation.
    #[allow(unsafe_code)]
    pub(crate) fn deserialize(&self, code: &[u8]) -> wasmtime::Result<wasmtime::Module> {
        // SAFETY: `load` has compared the hash of these bytes with the one that the control plane announced
        // over the authenticated connection, so they are what `precompile` wrote there. `snapshot` gets what
        // `precompile_interpreter` wrote from the process that started this one.
        unsafe { wasmtime::Module::deserialize(&self.0.wasmtime, code) }
    }

    /// A module whose code counts as used memory while it lives.
    fn module(&self, code: wasmtime::Module, inspection: Inspection) -> Module {
        let image = code.image_range();
        let bytes = image.end as usize - image.start as usize;
        let memory = self.0.memory.hold_code(bytes as u64);
        Module::new(code, inspection, memory)
    }

    /// The memory that evaluations share.
    pub fn memory(&self) -> &MemoryBudget {
        &self.0.memory
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.0.wasmtime
    }

    /// The host functions of an ABI.
    pub(crate) fn linker(&self, abi: Abi) -> &Linker<Guest> {
        &self.0.linkers.0[abi as usize]
    }

    pub(crate) fn max_memory_bytes(&self) -> usize {
        self.0.max_memory_bytes
    }

    /// Keeps the clock running, by which deadlines are noticed, while the result lives.
    pub(crate) fn keep_time(&self) -> Running<'_> {
        self.0.ticker.guest()
    }

    /// Full ticks in a duration.
    pub(crate) fn ticks(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos() / TICK.as_nanos())
            .unwrap_or(u64::MAX >> 1)
            .min(u64::MAX >> 1)
    }
}

// === impl Linkers ===

impl Linkers {
    fn new(engine: &wasmtime::Engine) -> wasmtime::Result<Self> {
        let mut linkers = Abi::ALL.map(|_| Linker::new(engine));
        for (abi, linker) in Abi::ALL.into_iter().zip(&mut linkers) {
            abi.adapter().link(linker)?;
        }
        Ok(Self(linkers))
    }
}

fn compile_error(error: &wasmtime::Error) -> Error {
    Error::Compile(format!("{error:#}"))
}
