//! `assent run`: evaluates one request with one policy on this machine.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use assent_api::server::DEFAULT_HOST_CAPABILITIES;
use assent_core::Mode;
use assent_wasm::{
    AdmissionResponse, Engine, EngineConfig, HostServices, Inspection, Module, Policy, PolicySpec,
    PolicyType, Verdict, capability,
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    exit::Exit,
    manifest,
    module::{Loaded, ModuleArgs},
    out::{self, OutputArgs},
    progress::{self, Progress},
};

mod answer;
mod request;

use request::Incoming;

/// Evaluates one request with one policy on this machine.
///
/// The policy is a module with --settings, or a manifest with the module, settings, mode, message,
/// entrypoint and limits. Its rules are not applied: every request is evaluated.
/// Host calls about images query their registries, with the same access as for modules.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Module (a .wasm file, sha256:<digest> with --store, registry://, https:// or file://) or manifest
    #[arg(value_name = "MODULE|MANIFEST")]
    policy: String,

    /// AdmissionReview or bare AdmissionRequest as JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    request: PathBuf,

    /// Settings as YAML or JSON, instead of those in the manifest
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// Whether the policy may change the object [default: from the manifest or the module]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    mutating: Option<bool>,

    /// Entrypoint of a Rego module [default: from the manifest, or the first one]
    #[arg(long, value_name = "NAME")]
    entrypoint: Option<String>,

    /// Accept any JSON document, or {"request": DOCUMENT}; implied by modules of the type raw
    #[arg(long)]
    raw: bool,

    /// Host calls that a PolicyServer would grant: *, oci/* or oci/v1/verify; repeat for more. The module's own list
    /// narrows them [default: crypto/*, kubernetes/* and oci/*, or none for an AdmissionPolicy]
    #[arg(long = "host-capability", value_name = "CALL")]
    host_capabilities: Option<Vec<String>>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent run policy.wasm --request review.json --settings settings.yaml
  assent run manifest.yaml --request review.json
  kubectl … | assent run registry://ghcr.io/org/policy:v1 --request - -o json

Exit codes: 0 = allowed, 1 = denied, 2 = not evaluated (including rejected settings, and policies that
read other objects of a cluster).";

/// The limit of an evaluator: an UPDATE carries two objects of at most 3 MiB each.
const MAX_REQUEST: u64 = 7 << 20;

/// The size limit of a manifest.
const MAX_SETTINGS: u64 = 1 << 20;

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            request,
            settings,
            mutating,
            entrypoint,
            raw,
            host_capabilities,
            output,
            modules,
        } = self;
        let body = read(&request, MAX_REQUEST).context("failed to read the request")?;
        let settings = settings.as_deref().map(read_settings).transpose()?;
        let loaded = block_on(modules.load(&policy))?;
        let engine = Engine::new(EngineConfig::small())?;
        let module = compile(&engine, &loaded)?;
        expect_no_context(&loaded, module.inspection())?;
        let mut spec = spec(&loaded, &module, host_capabilities)?;
        spec.raw |= raw;
        if let Some(settings) = settings {
            spec.settings_json = settings.into();
        }
        spec.mutating = mutating.unwrap_or(spec.mutating);
        spec.entrypoint = entrypoint.unwrap_or(spec.entrypoint);
        let incoming = Incoming::parse(&body, spec.raw)?;
        let runtime = runtime(Builder::new_multi_thread().worker_threads(1))?;
        let services = {
            let _inside = runtime.enter();
            assent_evaluator::host_services(modules.registry_access()?)?
        };
        let verdict = evaluate(&engine, &module, spec, services, &incoming)?;
        let verdict = match &loaded.policy {
            Some(policy) if policy.mode == Mode::Monitor => monitored(verdict),
            _ => verdict,
        };
        if output.is_json() {
            out::json(&AdmissionResponse::new(&incoming.uid, &verdict))?;
        } else {
            out::print(answer::Text(&verdict))?;
        }
        Ok(Exit::yes_if(verdict.allowed))
    }
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime(&mut Builder::new_current_thread())?.block_on(future)
}

fn runtime(builder: &mut Builder) -> anyhow::Result<Runtime> {
    let runtime = builder.enable_all().build();
    runtime.context("failed to start the runtime")
}

fn compile(engine: &Engine, loaded: &Loaded) -> anyhow::Result<Module> {
    let size = progress::size(loaded.bytes.len() as u64);
    let _progress = Progress::of(format!("compiling {} ({size}) …", loaded.origin));
    let module = engine.compile(&loaded.bytes);
    module.with_context(|| format!("failed to load {}", loaded.origin))
}

/// Takes the policy from the manifest, or from the module if there is none.
fn spec(
    loaded: &Loaded,
    module: &Module,
    granted: Option<Vec<String>>,
) -> anyhow::Result<PolicySpec> {
    let inspection = module.inspection();
    let Some(abi) = inspection.abi else {
        bail!(
            "failed to load {}: the module has no known ABI",
            loaded.origin
        );
    };
    let metadata = inspection.metadata.as_ref();
    let granted = granted.unwrap_or_else(|| default_capabilities(loaded));
    let mut spec = PolicySpec {
        mutating: metadata.is_some_and(|metadata| metadata.mutating),
        host_capabilities: capability::effective(&granted, inspection.host_capabilities()),
        raw: metadata.is_some_and(|metadata| metadata.policy_type == PolicyType::Raw),
        name: loaded.name(),
        ..PolicySpec::new(abi)
    };
    let Some(policy) = &loaded.policy else {
        return Ok(spec);
    };
    if let Some(seconds) = policy.timeout_eval_seconds {
        spec.limits.timeout = std::time::Duration::from_secs(seconds.into());
    }
    Ok(PolicySpec {
        settings_json: policy.settings.to_vec().into(),
        mutating: policy.mutating,
        entrypoint: policy.entrypoint.clone(),
        message: policy.message.clone(),
        ..spec
    })
}

/// What a PolicyServer grants that does not say.
pub(crate) fn default_capabilities(loaded: &Loaded) -> Vec<String> {
    let policy = loaded.policy.as_ref();
    match policy.and_then(|policy| policy.key.namespace()) {
        Some(_) => Vec::new(),
        None => DEFAULT_HOST_CAPABILITIES.map(str::to_owned).into(),
    }
}

/// Refuses a policy that must see other objects: without them it might allow what it denies in a cluster.
fn expect_no_context(loaded: &Loaded, inspection: &Inspection) -> anyhow::Result<()> {
    let declared = loaded.policy.as_ref().map(|p| &p.context_resources);
    let declared = declared.filter(|kinds| !kinds.is_empty()).map(|kinds| {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|one| format!("{} ({})", one.kind, one.api_version))
            .collect();
        format!("spec.contextAwareResources names {}", kinds.join(", "))
    });
    match declared.or_else(|| inspection.required_context()) {
        None => Ok(()),
        Some(why) => bail!(
            "{} was not evaluated: {why}, and there are no Kubernetes objects here; without them the policy might \
             allow what it denies in a cluster",
            loaded.name()
        ),
    }
}

/// Validates the settings first, as evaluators do.
fn evaluate(
    engine: &Engine,
    module: &Module,
    spec: PolicySpec,
    services: Arc<HostServices>,
    incoming: &Incoming<'_>,
) -> anyhow::Result<Verdict> {
    let name = spec.name.clone();
    let policy = Policy::prepare(engine, module, spec);
    let policy = policy.with_context(|| format!("failed to load {name}"))?;
    policy.connect(services);
    policy
        .validate_settings()
        .with_context(|| format!("failed to use {name}"))?;
    let verdict = policy.evaluate(&incoming.review);
    verdict.with_context(|| format!("{name} returned no verdict"))
}

/// Monitor mode: reports a denial, and allows the request unchanged.
fn monitored(verdict: Verdict) -> Verdict {
    if !verdict.allowed {
        let message = verdict.message.as_deref().unwrap_or("no message");
        out::note(format_args!(
            "the policy is in monitor mode and would deny the request: {}",
            out::clean_lines(message)
        ));
    }
    Verdict {
        allowed: true,
        warnings: verdict.warnings,
        audit_annotations: verdict.audit_annotations,
        ..Verdict::default()
    }
}

fn read_settings(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read the settings in {}", path.display());
    let bytes = read(path, MAX_SETTINGS).with_context(failed)?;
    let text = std::str::from_utf8(&bytes).with_context(failed)?;
    manifest::settings(path, text)
}

/// Reads a file, or standard input for `-`.
fn read(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => {
            let file = File::open(path);
            Box::new(file.with_context(|| format!("failed to open {}", path.display()))?)
        }
    };
    let mut bytes = Vec::new();
    let read = input.take(most + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("failed to read {}", path.display()))?;
    if bytes.len() as u64 > most {
        bail!(
            "{} is larger than the {} allowed",
            path.display(),
            progress::size(most)
        );
    }
    Ok(bytes)
}
