//! Evaluates requests on this machine, as an evaluator does: for `assent run`, `test` and `bench`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, bail};
use assent_api::server::DEFAULT_HOST_CAPABILITIES;
use assent_core::{Digest, Mode};
use assent_local::dispatch::{Matched, Request, Target};
use assent_wasm::{
    Engine, EngineConfig, HostServices, Module, Policy, PolicySpec, PolicyType, PrepareError,
    Review, Verdict, capability,
};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::{
    module::{Loaded, ModuleArgs},
    objects::ClusterContent,
    progress::{self, Progress},
};

/// What all evaluations of a process share.
pub(crate) struct Host {
    engine: Engine,
    services: Arc<HostServices>,
    modules: ModuleArgs,
    runtime: Runtime,
    /// By the digest of the module: compiling takes longer than everything else.
    compiled: Mutex<HashMap<Digest, Module>>,
}

/// What replaces parts of a manifest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) mutating: Option<bool>,
    pub(crate) entrypoint: Option<String>,
    pub(crate) raw: bool,
    /// Whether requests at Envoy are decided, not admission.
    pub(crate) check: bool,
    pub(crate) host_capabilities: Option<Vec<String>>,
    pub(crate) timeout: Option<Duration>,
}

/// A compiled policy.
pub(crate) struct LocalPolicy {
    module: Module,
    pub(crate) loaded: Loaded,
    spec: PolicySpec,
    /// Rules and selectors, if there is a manifest.
    target: Option<Target>,
}

/// A policy with its settings, which are valid.
pub(crate) struct ReadyPolicy {
    policy: Policy,
    name: String,
}

// === impl Host ===

impl Host {
    pub(crate) fn start(modules: ModuleArgs) -> anyhow::Result<Self> {
        let engine = Engine::new(EngineConfig::small())?;
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.context("failed to start the runtime")?;
        let services = {
            let _inside = runtime.enter();
            assent_evaluator::host_services(modules.registry_access()?)?
        };
        Ok(Self {
            engine,
            services,
            modules,
            runtime,
            compiled: Mutex::default(),
        })
    }

    /// Loads and compiles a module, or the module of a manifest.
    pub(crate) fn load(&self, name: &str, overrides: &Overrides) -> anyhow::Result<LocalPolicy> {
        let loaded = self.runtime.block_on(self.modules.load(name))?;
        let module = self.compile(&loaded)?;
        let spec = spec(&loaded, &module, overrides)?;
        let target = loaded.policy.as_deref().cloned();
        let target = target.map(|policy| Target::new(policy, ""));
        Ok(LocalPolicy {
            target: target
                .transpose()
                .context("failed to read matchConditions")?,
            module,
            loaded,
            spec,
        })
    }

    fn compile(&self, loaded: &Loaded) -> anyhow::Result<Module> {
        let digest = Digest::of(&loaded.bytes);
        // Only whole modules are in it, even after a panic.
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = compiled.get(&digest) {
            return Ok(module.clone());
        }
        let module = compile(&self.engine, loaded)?;
        compiled.insert(digest, module.clone());
        Ok(module)
    }

    /// What the policy can call, with the objects that it can read. It is an error if it must see objects and there are
    /// none.
    pub(crate) fn services(
        &self,
        policy: &LocalPolicy,
        content: &ClusterContent,
    ) -> anyhow::Result<Arc<HostServices>> {
        let (inspection, calls) = (policy.module.inspection(), &policy.spec.host_capabilities);
        content.connect(&self.services, &policy.loaded, inspection, calls)
    }

    /// What every policy can call.
    pub(crate) fn common_services(&self) -> &Arc<HostServices> {
        &self.services
    }

    /// Validates the settings first, as evaluators do. Without `settings`, those of the manifest are used.
    pub(crate) fn prepare(
        &self,
        policy: &LocalPolicy,
        settings: Option<Vec<u8>>,
        services: &Arc<HostServices>,
    ) -> Result<ReadyPolicy, PrepareError> {
        let mut spec = policy.spec.clone();
        if let Some(settings) = settings {
            spec.settings_json = settings.into();
        }
        let name = spec.name.clone();
        let policy = Policy::prepare(&self.engine, &policy.module, spec)?;
        policy.connect(services.clone());
        policy.validate_settings()?;
        Ok(ReadyPolicy { policy, name })
    }
}

// === impl LocalPolicy ===

impl LocalPolicy {
    /// Whether any JSON document is evaluated, not only admission requests.
    pub(crate) fn is_raw(&self) -> bool {
        self.spec.raw
    }

    /// Whether requests at Envoy are decided, not admission.
    pub(crate) fn is_check(&self) -> bool {
        self.spec.check
    }

    pub(crate) fn is_monitored(&self) -> bool {
        let policy = self.loaded.policy.as_ref();
        policy.is_some_and(|policy| policy.mode == Mode::Monitor)
    }

    /// Why an API server would not ask the policy about this request; none if it would, or if there is no manifest.
    ///
    /// Labels of namespaces are not known here: a namespace selector is taken to match.
    pub(crate) fn unmatched(&self, request: &Value) -> Option<String> {
        let target = self.target.as_ref()?;
        let mut labels = BTreeMap::new();
        if let Some(namespace) = request["namespace"].as_str() {
            labels.insert(
                assent_api::tenancy::NAMESPACE_NAME_LABEL.to_owned(),
                namespace.to_owned(),
            );
        }
        match target.matches(&described(request), &labels) {
            Matched::Yes => None,
            Matched::No if target.policy().namespace_selector.is_some() => None,
            Matched::No => Some("no rule of the policy matches".into()),
            Matched::Error(error) => Some(format!("a match condition failed: {error}")),
        }
    }
}

/// The parts of a request that rules look at.
fn described(request: &Value) -> Request {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resource = &request["resource"];
    let mut rest = request.clone();
    let mut take = |field: &str| {
        let fields = rest.as_object_mut();
        fields
            .and_then(|fields| fields.remove(field))
            .unwrap_or_default()
    };
    let (object, old_object) = (take("object"), take("oldObject"));
    Request {
        group: text(&resource["group"]),
        version: text(&resource["version"]),
        resource: text(&resource["resource"]),
        subresource: text(&request["subResource"]),
        operation: text(&request["operation"]),
        namespace: text(&request["namespace"]),
        object,
        old_object,
        rest,
    }
}

// === impl ReadyPolicy ===

impl ReadyPolicy {
    pub(crate) fn evaluate(&self, review: &Review<'_>) -> anyhow::Result<Verdict> {
        let verdict = self.policy.evaluate(review);
        verdict.with_context(|| format!("{} returned no verdict", self.name))
    }
}

fn compile(engine: &Engine, loaded: &Loaded) -> anyhow::Result<Module> {
    let size = progress::size(loaded.bytes.len() as u64);
    let _progress = Progress::of(format!("compiling {} ({size}) …", loaded.origin));
    let module = engine.compile(&loaded.bytes);
    module.with_context(|| format!("failed to load {}", loaded.origin))
}

/// Takes the policy from the manifest, or from the module if there is none.
fn spec(loaded: &Loaded, module: &Module, overrides: &Overrides) -> anyhow::Result<PolicySpec> {
    let inspection = module.inspection();
    let Some(abi) = inspection.abi else {
        bail!(
            "failed to load {}: the module has no known ABI",
            loaded.origin
        );
    };
    let metadata = inspection.metadata.as_ref();
    let granted = overrides.host_capabilities.clone();
    let granted = granted.unwrap_or_else(|| default_capabilities(loaded));
    let raw = metadata.is_some_and(|metadata| metadata.policy_type == PolicyType::Raw);
    let policy = loaded.policy.as_ref();
    let mut spec = PolicySpec {
        mutating: metadata.is_some_and(|metadata| metadata.mutating),
        host_capabilities: capability::effective(&granted, inspection.host_capabilities()),
        raw: raw || overrides.raw,
        check: overrides.check || policy.is_some_and(|policy| policy.requests.is_some()),
        name: loaded.name(),
        ..PolicySpec::new(abi)
    };
    if let Some(policy) = policy {
        if let Some(millis) = policy.timeout_eval_ms {
            spec.limits.timeout = Duration::from_millis(millis.into());
        }
        spec.settings_json = policy.settings.to_vec().into();
        spec.mutating = policy.mutating;
        spec.entrypoint.clone_from(&policy.entrypoint);
        spec.message.clone_from(&policy.message);
    }
    spec.limits.timeout = overrides.timeout.unwrap_or(spec.limits.timeout);
    spec.mutating = overrides.mutating.unwrap_or(spec.mutating);
    if let Some(entrypoint) = &overrides.entrypoint {
        spec.entrypoint.clone_from(entrypoint);
    }
    Ok(spec)
}

/// What a PolicyServer grants that does not say.
pub(crate) fn default_capabilities(loaded: &Loaded) -> Vec<String> {
    let policy = loaded.policy.as_ref();
    match policy.and_then(|policy| policy.key.namespace()) {
        Some(_) => Vec::new(),
        None => DEFAULT_HOST_CAPABILITIES.map(str::to_owned).into(),
    }
}
