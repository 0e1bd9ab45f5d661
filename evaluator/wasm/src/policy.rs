//! A policy that is ready to judge: a module, its settings, its limits.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    abi::Abi,
    engine::Engine,
    host::{self, HostServices},
    inspect::Inspection,
    json,
    limits::Limits,
    opa,
    review::Review,
    sandbox::{OnLong, Template},
    verdict::Verdict,
    wapc, wasi,
};

mod error;

pub use error::{EvalError, PrepareError, Stage};

/// A compiled module and what is known of it.
#[derive(Clone)]
pub struct Module {
    code: wasmtime::Module,
    inspection: Arc<Inspection>,
}

/// Everything about a policy that changes its verdicts, besides the module.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    /// How the module is called.
    pub abi: Abi,
    /// The settings as JSON; `{}` where there are none.
    pub settings_json: Bytes,
    /// Whether the policy may change objects.
    pub mutating: bool,
    /// Time and memory of one evaluation.
    pub limits: Limits,
    /// The entrypoint of a Rego module; empty means its first.
    pub entrypoint: String,
    /// Host calls that are allowed, such as `oci/v1/verify`, `net/*` or `*`.
    pub host_capabilities: Vec<String>,
    /// Replaces the message of a denial; empty keeps the policy's own.
    pub message: String,
    /// Whether the policy judges documents that are no admission requests.
    pub raw: bool,
    /// Names the policy in log lines.
    pub name: String,
}

/// Linked, pre-instantiated and ready; may be used from many threads at once.
pub struct Policy {
    program: Program,
    spec: PolicySpec,
    host: Arc<host::Access>,
}

enum Program {
    Wapc(wapc::Program),
    Wasi(wasi::Program),
    Rego(Box<opa::Program>),
}

/// A pod that offends nobody: policies that only judge other kinds let it pass.
const SELF_TEST: &str = r#"{"uid":"assent-self-test","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"requestKind":{"group":"","version":"v1","kind":"Pod"},"requestResource":{"group":"","version":"v1","resource":"pods"},"name":"assent-self-test","namespace":"default","operation":"CREATE","userInfo":{"username":"assent","groups":[]},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"assent-self-test","namespace":"default"},"spec":{"containers":[]}},"oldObject":null,"dryRun":true}"#;

// === impl Module ===

impl Module {
    pub(crate) fn new(code: wasmtime::Module, inspection: Inspection) -> Self {
        Self {
            code,
            inspection: Arc::new(inspection),
        }
    }

    /// What the module is.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    pub(crate) fn code(&self) -> &wasmtime::Module {
        &self.code
    }
}

// === impl PolicySpec ===

impl PolicySpec {
    /// A policy without settings, capabilities or the right to mutate, with default limits.
    pub fn new(abi: Abi) -> Self {
        Self {
            abi,
            settings_json: Bytes::from_static(b"{}"),
            mutating: false,
            limits: Limits::default(),
            entrypoint: String::new(),
            host_capabilities: Vec::new(),
            message: String::new(),
            raw: false,
            name: String::new(),
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Links the module and makes one instance. Rego modules are asked for their entrypoints; of other guests
    /// only start functions run.
    pub fn prepare(
        engine: &Engine,
        module: &Module,
        spec: PolicySpec,
    ) -> Result<Self, PrepareError> {
        check_limits(engine, &spec)?;
        check_settings(&spec)?;
        let host = Arc::new(host::Access::new(&spec));
        let template = |linker: &wasmtime::Linker<_>| {
            let pre = linker.instantiate_pre(module.code());
            pre.map(|pre| Template::new(engine, pre, spec.limits, host.clone()))
                .map_err(|error| PrepareError::link(format!("{error:#}")))
        };
        let program = match spec.abi {
            Abi::Wapc => {
                let template = template(&engine.linkers().wapc)?;
                Program::Wapc(wapc::Program::new(
                    template,
                    module.code(),
                    &spec.settings_json,
                )?)
            }
            Abi::Wasi => {
                let template = template(&engine.linkers().wasi)?;
                Program::Wasi(wasi::Program::new(
                    template,
                    module.code(),
                    &spec.settings_json,
                )?)
            }
            Abi::Opa | Abi::Gatekeeper => {
                let template = template(&engine.linkers().opa)?;
                let dialect = if spec.abi == Abi::Opa {
                    opa::Dialect::Opa
                } else {
                    opa::Dialect::Gatekeeper
                };
                Program::Rego(Box::new(opa::Program::new(
                    template,
                    module.code(),
                    &spec,
                    dialect,
                )?))
            }
        };
        Ok(Self {
            program,
            spec,
            host,
        })
    }

    /// What the policy was prepared with.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Lets the policy reach what its capabilities allow. Before that its host calls to
    /// the outside get an error: whether a policy can be used must not hang on a network.
    pub fn connect(&self, services: Arc<dyn HostServices>) {
        self.host.connect(services);
    }

    /// Asks the module whether its settings are right.
    pub fn validate_settings(&self) -> Result<(), PrepareError> {
        match &self.program {
            Program::Wapc(program) => program.validate_settings(),
            Program::Wasi(program) => program.validate_settings(),
            // Rego has no settings validation: any object will do, and that was checked before.
            Program::Rego(_) => Ok(()),
        }
    }

    /// Judges one harmless request. A policy that denies it or says that it can't read it is sound; one that
    /// traps or does not end is not.
    pub fn self_test(&self) -> Result<(), PrepareError> {
        let request = serde_json::from_str(SELF_TEST).expect("the self-test request must be JSON");
        let review = if self.spec.raw {
            Review::raw(request)
        } else {
            self_test_review(request)
        };
        match self.evaluate(&review) {
            Err(error) if error.is_fatal() => Err(PrepareError::self_test(&error)),
            _ => Ok(()),
        }
    }

    /// Judges a request in a sandbox of its own.
    pub fn evaluate(&self, review: &Review<'_>) -> Result<Verdict, EvalError> {
        self.judge(review, None)
    }

    /// As [`Policy::evaluate`], on a thread that has other work to do. If the policy takes longer than some
    /// milliseconds or is about to sleep, `long` is called, up to three times, on the same thread: to have
    /// somebody else do that work. Host calls to the outside do not call it: policies that make them need threads of their own.
    pub fn evaluate_among_others(
        &self,
        review: &Review<'_>,
        long: fn(),
    ) -> Result<Verdict, EvalError> {
        self.judge(review, Some(long))
    }

    fn judge(&self, review: &Review<'_>, long: Option<OnLong>) -> Result<Verdict, EvalError> {
        let mutating = self.spec.mutating;
        let verdict = match &self.program {
            Program::Wapc(program) => program.evaluate(review, mutating, long)?,
            Program::Wasi(program) => program.evaluate(review, mutating, long)?,
            Program::Rego(program) => program.evaluate(review, mutating, long)?,
        };
        Ok(verdict.with_message(&self.spec.message))
    }
}

fn self_test_review(request: &serde_json::value::RawValue) -> Review<'_> {
    Review::admission(request).expect("the self-test request must be an admission request")
}

fn check_limits(engine: &Engine, spec: &PolicySpec) -> Result<(), PrepareError> {
    let most = engine.max_memory_bytes() as u64;
    if spec.limits.memory_bytes > most {
        return Err(PrepareError::link(format!(
            "the memory limit of {} bytes is above the {most} bytes that this evaluator allows",
            spec.limits.memory_bytes
        )));
    }
    Ok(())
}

/// Settings are spliced into payloads as they are, so they must be JSON.
fn check_settings(spec: &PolicySpec) -> Result<(), PrepareError> {
    let settings = &spec.settings_json;
    serde_json::from_slice::<serde::de::IgnoredAny>(settings)
        .map_err(|error| PrepareError::settings(format!("the settings are not JSON: {error}")))?;
    if !json::within_depth(settings, json::MAX_DEPTH) {
        return Err(PrepareError::settings(format!(
            "the settings nest deeper than {}",
            json::MAX_DEPTH
        )));
    }
    Ok(())
}
