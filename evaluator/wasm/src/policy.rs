//! A policy that is ready to evaluate requests: a module, its settings, its limits.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    abi::{Abi, Program},
    budget::CodeReservation,
    engine::Engine,
    host::{self, HostServices},
    inspect::Inspection,
    json,
    limits::Limits,
    review::Review,
    sandbox::{OnSlow, Template},
    verdict::Verdict,
};

mod error;

pub use error::{EvalError, PrepareError, Stage};

/// A compiled module and its description.
#[derive(Clone)]
pub struct Module {
    code: wasmtime::Module,
    inspection: Arc<Inspection>,
    _memory: Arc<CodeReservation>,
}

/// Everything but the module that changes the verdicts of a policy.
#[derive(Clone)]
pub struct PolicySpec {
    /// How the module is called.
    pub abi: Abi,
    /// The settings as JSON; `{}` if there are none.
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
    /// Whether the policy evaluates documents that are not admission requests.
    pub raw: bool,
    /// Whether the policy decides about requests at Envoy.
    pub check: bool,
    /// Names the policy in log lines.
    pub name: String,
    /// Whether values of Secrets are among the settings: what the guest logs, and what it says in errors, is withheld.
    /// Its verdicts are not.
    pub confidential: bool,
}

/// Linked, pre-instantiated and ready; may be used from many threads at once.
pub struct Policy {
    program: Box<dyn Program>,
    spec: PolicySpec,
    host: Arc<host::Access>,
    /// The code is in use as long as the policy is.
    _module: Module,
}

/// A pod that most policies allow.
const SELF_TEST: &str = r#"{"uid":"assent-self-test","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"requestKind":{"group":"","version":"v1","kind":"Pod"},"requestResource":{"group":"","version":"v1","resource":"pods"},"name":"assent-self-test","namespace":"default","operation":"CREATE","userInfo":{"username":"assent","groups":[]},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"assent-self-test","namespace":"default"},"spec":{"containers":[]}},"oldObject":null,"dryRun":true}"#;

/// A plain request at Envoy.
const SELF_TEST_CHECK: &str = r#"{"attributes":{"source":{"address":{"socketAddress":{"address":"192.0.2.1","portValue":49152}}},"destination":{"address":{"socketAddress":{"address":"192.0.2.2","portValue":8080}}},"request":{"time":{"seconds":1767225600},"http":{"id":"0","method":"GET","headers":{":authority":"assent-self-test.invalid",":method":"GET",":path":"/",":scheme":"http"},"path":"/","host":"assent-self-test.invalid","scheme":"http","protocol":"HTTP/1.1"}},"metadataContext":{}},"parsed_body":null,"parsed_path":[""],"parsed_query":{},"truncated_body":false,"version":{"encoding":"protojson","ext_authz":"v3"}}"#;

// === impl Module ===

impl Module {
    pub(crate) fn new(
        code: wasmtime::Module,
        inspection: Inspection,
        memory: CodeReservation,
    ) -> Self {
        Self {
            code,
            inspection: Arc::new(inspection),
            _memory: Arc::new(memory),
        }
    }

    /// The description of the module.
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
            check: false,
            name: String::new(),
            confidential: false,
        }
    }

    /// An error as others may see it.
    fn published(&self, error: PrepareError) -> PrepareError {
        match self.confidential {
            true => error.without_guest_text(),
            false => error,
        }
    }
}

/// Without the settings, which may be confidential.
impl fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySpec")
            .field("name", &self.name)
            .field("abi", &self.abi)
            .field("mutating", &self.mutating)
            .field("limits", &self.limits)
            .field("confidential", &self.confidential)
            .finish_non_exhaustive()
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
        check_settings(&spec).map_err(|error| spec.published(error))?;
        let host = Arc::new(host::Access::new(&spec));
        let pre = engine.linker(spec.abi).instantiate_pre(module.code());
        let pre = pre.map_err(|error| PrepareError::link(format!("{error:#}")))?;
        let template = Template::new(engine, pre, spec.limits, host.clone());
        let adapter = spec.abi.adapter();
        let program = adapter.prepare(template, module.code(), &spec);
        let program = program.map_err(|error| spec.published(error))?;
        Ok(Self {
            program,
            spec,
            host,
            _module: module.clone(),
        })
    }

    /// What the policy was prepared with.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Connects the policy to the services that its capabilities allow. Before that, host calls to the outside get
    /// an error: whether a policy is valid must not depend on a network.
    pub fn connect(&self, services: Arc<HostServices>) {
        self.host.connect(services);
    }

    /// Whether an evaluation has made a host call that waits or computes for long, so that others will. Such a policy
    /// should not be evaluated with [`Policy::evaluate_in_place`].
    pub fn waits(&self) -> bool {
        self.host.waits()
    }

    /// Asks the module whether its settings are valid.
    pub fn validate_settings(&self) -> Result<(), PrepareError> {
        let valid = self.program.validate_settings();
        valid.map_err(|error| self.spec.published(error))
    }

    /// Evaluates one harmless request. A policy that denies it or reports that it can't read it is sound; one that
    /// traps or does not end is not.
    pub fn self_test(&self) -> Result<(), PrepareError> {
        let request = serde_json::from_str(SELF_TEST).expect("the self-test request must be JSON");
        let review = if self.spec.check {
            Review::check(SELF_TEST_CHECK)
        } else if self.spec.raw {
            Review::raw(request)
        } else {
            self_test_review(request)
        };
        match self.evaluate(&review) {
            Err(error) if error.is_fatal() => Err(PrepareError::self_test(&error)),
            _ => Ok(()),
        }
    }

    /// Evaluates a request in a sandbox of its own.
    pub fn evaluate(&self, review: &Review<'_>) -> Result<Verdict, EvalError> {
        self.run(review, None)
    }

    /// As [`Policy::evaluate`], on a thread that has other work to do. If the policy takes longer than some
    /// milliseconds, is about to sleep or makes a host call that waits, `on_slow` is called, up to three times, on the
    /// same thread: to have another thread do that work.
    pub fn evaluate_in_place(
        &self,
        review: &Review<'_>,
        on_slow: fn(),
    ) -> Result<Verdict, EvalError> {
        self.run(review, Some(on_slow))
    }

    fn run(&self, review: &Review<'_>, on_slow: Option<OnSlow>) -> Result<Verdict, EvalError> {
        let verdict = self.program.evaluate(review, self.spec.mutating, on_slow);
        let verdict = verdict.map_err(|error| match self.spec.confidential {
            true => error.without_guest_text(),
            false => error,
        })?;
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
