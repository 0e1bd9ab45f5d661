//! Rego compiled to WebAssembly by OPA, plain and in Gatekeeper's form.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use bytes::Bytes;
use wasmtime::Linker;

use crate::{
    abi::{self, Adapter},
    engine,
    host::{DataForm, Document},
    inspect::{self, Constants, Export, Import},
    json,
    policy::{EvalError, PolicySpec, PrepareError},
    review::Review,
    sandbox::{Guest, OnSlow, Template},
    verdict::Verdict,
};

mod builtins;
mod deadline;
mod exports;
mod imports;
mod instance;
mod memory;
mod result;
mod value;

pub(crate) use deadline::Limit;
pub(crate) use memory::own_memory;

use exports::Exports;
use instance::Instance;

/// The ABI of modules that OPA compiles, in one of its two dialects.
pub(crate) struct Rego {
    dialect: Dialect,
}

/// What the host functions of one evaluation need.
#[derive(Default)]
pub(crate) struct Session {
    functions: Option<exports::Functions>,
    builtins: Arc<builtins::Table>,
    /// One time per evaluation: a rule that reads the clock twice sees one value.
    now: Option<SystemTime>,
}

/// A linked Rego module.
struct Program {
    template: Template,
    exports: Exports,
    dialect: Dialect,
    entrypoint: i32,
    builtins: Arc<builtins::Table>,
    settings: Bytes,
    data: Data,
}

/// What rules see as `data`.
#[derive(Default)]
struct Data {
    /// The last one with objects of the cluster: all evaluations share one text per state.
    last: Mutex<Option<([u8; 32], Bytes)>>,
}

/// The form of the input and of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Opa,
    Gatekeeper,
}

/// The global that holds the major version of the ABI; modules older than the version have none. Minor versions add
/// functions, which are looked up by name.
const VERSION: &str = "opa_wasm_abi_version";
const SUPPORTED_VERSION: i32 = 1;

/// For policies that declare no kinds.
const NO_INVENTORY: &[u8] = br#"{"inventory":{"cluster":{},"namespace":{}}}"#;

// === impl Rego ===

impl Rego {
    pub(crate) const OPA: Self = Self {
        dialect: Dialect::Opa,
    };
    pub(crate) const GATEKEEPER: Self = Self {
        dialect: Dialect::Gatekeeper,
    };
}

impl Adapter for Rego {
    /// Gatekeeper's modules look like OPA's: they are known by their metadata only.
    fn recognises(&self, imports: &[Import], exports: &[Export]) -> bool {
        let entry = ["opa_eval", "opa_eval_ctx_new", "eval"];
        self.dialect == Dialect::Opa
            && entry.iter().any(|name| inspect::has(exports, name))
            && imports.iter().any(imports::is_opa)
    }

    fn version_problem(&self, constants: &Constants) -> Option<String> {
        match constants.get(VERSION)? {
            Some(SUPPORTED_VERSION) => None,
            Some(version) => Some(format!(
                "the module has version {version} of OPA's ABI: only version {SUPPORTED_VERSION} is supported"
            )),
            None => Some(format!(
                "the version of OPA's ABI can't be read: {VERSION} must be a constant"
            )),
        }
    }

    fn required_exports(&self) -> &'static [&'static str] {
        &["opa_json_parse", "opa_malloc"]
    }

    fn provides(&self, import: &Import) -> bool {
        imports::is_opa(import) || (import.module == imports::MODULE && import.kind == "memory")
    }

    fn rewrite<'a>(&self, wasm: &'a [u8]) -> Result<Cow<'a, [u8]>, engine::Error> {
        own_memory(wasm).map_err(|error| engine::Error::Compile(error.to_string()))
    }

    fn link(&self, linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
        imports::link(linker)
    }

    fn prepare(
        &self,
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
    ) -> Result<Box<dyn abi::Program>, PrepareError> {
        let program = Program::new(template, module, spec, self.dialect)?;
        Ok(Box::new(program))
    }
}

// === impl Program ===

impl Program {
    /// Besides linking, asks the module for its entrypoints and for the builtins it needs.
    fn new(
        template: Template,
        module: &wasmtime::Module,
        spec: &PolicySpec,
        dialect: Dialect,
    ) -> Result<Self, PrepareError> {
        if serde_json::from_slice::<serde_json::Map<_, _>>(&spec.settings_json).is_err() {
            return Err(PrepareError::settings("they must be an object".to_owned()));
        }
        if spec.check && dialect == Dialect::Gatekeeper {
            return Err(PrepareError::link(
                "a Gatekeeper policy can't decide about requests at Envoy: its input is an admission review"
                    .to_owned(),
            ));
        }
        let exports = Exports::find(module)?;
        let (entrypoint, builtins) = {
            let mut instance = Instance::start(&template, &exports, Arc::default(), 0, None)?;
            let entrypoint = instance.entrypoint(&spec.entrypoint)?;
            (entrypoint, Arc::new(instance.builtins()?))
        };
        Ok(Self {
            template,
            exports,
            dialect,
            entrypoint,
            builtins,
            settings: spec.settings_json.clone(),
            data: Data::default(),
        })
    }

    fn input(&self, review: &Review<'_>) -> Vec<u8> {
        let request = json::for_guest(review);
        if review.check {
            return request.into_owned();
        }
        let parts: [&[u8]; 5] = match self.dialect {
            Dialect::Opa => [b"{\"request\":", &request, b"}", b"", b""],
            Dialect::Gatekeeper => [
                b"{\"parameters\":",
                &self.settings,
                b",\"review\":",
                &request,
                b"}",
            ],
        };
        parts.concat()
    }
}

// === impl Data ===

impl Data {
    /// The document for one evaluation: settings (OPA) and the objects that the policy declares.
    fn load(&self, program: &Program) -> Result<Bytes, EvalError> {
        let Some(source) = program.template.host().data() else {
            return Ok(match program.dialect {
                Dialect::Opa => program.settings.clone(),
                Dialect::Gatekeeper => Bytes::from_static(NO_INVENTORY),
            });
        };
        let form = match program.dialect {
            Dialect::Opa => DataForm::Kubernetes,
            Dialect::Gatekeeper => DataForm::Inventory,
        };
        let Document { version, json } = source.load(form).map_err(EvalError::Context)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, text)) = &*last
            && *known == version
        {
            return Ok(text.clone());
        }
        let text = match program.dialect {
            Dialect::Opa => with_settings(&program.settings, &json),
            Dialect::Gatekeeper => [b"{\"inventory\":", &json[..], b"}"].concat().into(),
        };
        *last = Some((version, text.clone()));
        Ok(text)
    }
}

/// Settings are an object, which [`Program::new`] has checked. Objects come last: of equal keys the last one counts.
fn with_settings(settings: &[u8], objects: &[u8]) -> Bytes {
    let settings = settings.trim_ascii();
    let members = settings.strip_suffix(b"}").unwrap_or(settings);
    let comma: &[u8] = match members.trim_ascii() {
        b"{" => b"",
        _ => b",",
    };
    [members, comma, b"\"kubernetes\":", objects, b"}"]
        .concat()
        .into()
}

impl abi::Program for Program {
    /// Rego has no validation of settings. Any object is valid, which [`Program::new`] has checked.
    fn validate_settings(&self) -> Result<(), PrepareError> {
        Ok(())
    }

    fn evaluate(
        &self,
        review: &Review<'_>,
        mutating: bool,
        on_slow: Option<OnSlow>,
    ) -> Result<Verdict, EvalError> {
        let data = self.data.load(self)?;
        let input = self.input(review);
        let builtins = self.builtins.clone();
        let (template, exports) = (&self.template, &self.exports);
        let mut instance = Instance::start(template, exports, builtins, input.len(), on_slow)
            .map_err(instance::Error::into_eval)?;
        let answer = instance.evaluate(self.entrypoint, &data, &input)?;
        let _memory = self.template.reserve_for(&answer, review, mutating)?;
        match self.dialect {
            _ if review.check => result::check(&answer),
            Dialect::Opa => result::opa(&answer, review, mutating),
            Dialect::Gatekeeper => result::gatekeeper(&answer),
        }
    }
}

/// Reads bytes as results and as values of Rego; whether they were a result.
pub(crate) fn fuzz(bytes: &[u8], review: &Review<'_>) -> bool {
    let opa = result::opa(bytes, review, true).is_ok();
    let gatekeeper = result::gatekeeper(bytes).is_ok();
    if let Ok(parsed) = value::parse(bytes) {
        let _ = value::write(&parsed);
        for name in builtins::FUZZED {
            builtins::fuzz(name, &parsed);
        }
    }
    opa || gatekeeper
}
