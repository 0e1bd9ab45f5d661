//! `assent run`: evaluates requests with one policy on this machine.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use assent_wasm::{AdmissionResponse, HostServices, RequestEffects, Review, Verdict};

use crate::{
    evaluate::{Host, LocalPolicy, Overrides, ReadyPolicy},
    exit::Exit,
    input, manifest,
    module::ModuleArgs,
    objects::ObjectsArgs,
    out::{self, OutputArgs},
    request::{Incoming, RequestArgs},
};

mod answer;
pub(crate) mod check;
mod files;

pub(crate) use answer::operations;
pub(crate) use files::Items;

/// Evaluates requests or objects with one policy on this machine.
///
/// The policy is a module with --settings, or a manifest with the module, settings, mode, message,
/// entrypoint and limits.
///
/// With -f, a request is made of each object. Objects that no rule of the manifest matches are skipped: an API server would
/// not ask the policy. AdmissionReviews, AdmissionRequests and test cases are taken as they are.
///
/// Host calls about images query their registries, with the same access as for modules.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Module (a .wasm file, sha256:<digest> with --store, registry://, https:// or file://), text (.rego,
    /// .cel.yaml) or manifest
    #[arg(value_name = "MODULE|MANIFEST")]
    policy: String,

    /// AdmissionReview or bare AdmissionRequest as JSON, evaluated whatever the rules say; - is standard input
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_unless_present_any = ["files", "check"],
        conflicts_with_all = ["files", "check"]
    )]
    request: Option<PathBuf>,

    /// CheckRequest of Envoy as JSON, for policies that decide about requests; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    check: Option<PathBuf>,

    /// Objects, reviews or test cases as YAML or JSON: a file, a directory, or - for standard input; repeat for more
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// Also read the directories inside of a directory
    #[arg(short = 'R', long, requires = "files")]
    recursive: bool,

    /// Evaluate objects that no rule of the manifest matches, too
    #[arg(long, requires = "files")]
    ignore_rules: bool,

    #[command(flatten)]
    making: RequestArgs,

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
    objects: ObjectsArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent run policy.wasm -f pod.yaml --settings settings.yaml
  assent run manifest.yaml -f manifests/ -R --namespace shop
  assent run manifest.yaml -f new.yaml --old-object old.yaml --user alice --group developers
  kubectl get pods -o yaml | assent run registry://ghcr.io/org/policy:v1 -f - -o json
  assent run manifest.yaml --request review.json
  assent run requestpolicy.yaml --check check.json
  assent run manifest.yaml -f ingress.yaml --objects cluster/

Exit codes: 0 = everything was allowed, 1 = something was denied, 2 = something was not evaluated
(including rejected settings, objects that no rule matches, if there are no others, and policies that
read other objects, without --objects).";

/// A body of 8 MiB, escaped.
const MAX_CHECK: u64 = 18 << 20;

/// The size limit of a manifest.
const MAX_SETTINGS: u64 = 1 << 20;

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            request,
            check,
            files,
            recursive,
            ignore_rules,
            making,
            settings,
            mutating,
            entrypoint,
            raw,
            host_capabilities,
            objects,
            output,
            modules,
        } = self;
        let body = request.as_deref().map(|path| {
            let body = input::read(path, input::MAX_FILE);
            body.context("failed to read the request")
        });
        let body = body.transpose()?;
        let settings = settings.as_deref().map(read_settings).transpose()?;
        let overrides = Overrides {
            mutating,
            entrypoint,
            raw,
            host_capabilities,
            check: check.is_some(),
            timeout: None,
        };
        let content = objects.read()?;
        let host = Host::start(modules)?;
        let policy = host.load(&policy, &overrides)?;
        check::expect_kind(policy.loaded.policy.as_deref(), check.is_some())?;
        if let Some(path) = check {
            let body = input::read(&path, MAX_CHECK).context("failed to read the request")?;
            let services = host.services(&policy, &content)?;
            let ready = prepare(&host, &policy, settings, &services)?;
            return run_check(&policy, &ready, &body, output);
        }
        if let Some(body) = body {
            let services = host.services(&policy, &content)?;
            let ready = prepare(&host, &policy, settings, &services)?;
            return run_request(&policy, &ready, &body, output);
        }
        let run = files::FilesRun {
            host: &host,
            policy: &policy,
            settings,
            content,
            ignore_rules,
            options: making.options(),
            old_objects: making.old_object,
        };
        let documents = input::read_all(&files, recursive)?;
        run.run(&documents, output)
    }
}

fn prepare(
    host: &Host,
    policy: &LocalPolicy,
    settings: Option<Vec<u8>>,
    services: &Arc<HostServices>,
) -> anyhow::Result<ReadyPolicy> {
    let ready = host.prepare(policy, settings, services);
    ready.with_context(|| format!("failed to use {}", policy.loaded.name()))
}

fn run_check(
    policy: &LocalPolicy,
    ready: &ReadyPolicy,
    body: &[u8],
    output: OutputArgs,
) -> anyhow::Result<Exit> {
    let verdict = match check::document(body, policy.loaded.policy.as_deref())? {
        Ok(document) => ready.evaluate(&Review::check(&document))?,
        Err(denied) => denied,
    };
    let verdict = in_mode(policy, verdict, "the request");
    if output.is_json() {
        out::json(&check::Decision::new(&verdict, &RequestEffects::default()))?;
    } else {
        out::print(answer::Text(&verdict))?;
    }
    Ok(Exit::yes_if(verdict.allowed))
}

fn run_request(
    policy: &LocalPolicy,
    ready: &ReadyPolicy,
    body: &[u8],
    output: OutputArgs,
) -> anyhow::Result<Exit> {
    let incoming = Incoming::parse(body, policy.is_raw())?;
    let verdict = ready.evaluate(&incoming.review)?;
    let verdict = in_mode(policy, verdict, "the request");
    if output.is_json() {
        out::json(&AdmissionResponse::new(&incoming.uid, &verdict))?;
    } else {
        out::print(answer::Text(&verdict))?;
    }
    Ok(Exit::yes_if(verdict.allowed))
}

/// Monitor mode: reports a denial, and allows the request unchanged.
fn in_mode(policy: &LocalPolicy, verdict: Verdict, what: &str) -> Verdict {
    if !policy.is_monitored() {
        return verdict;
    }
    if !verdict.allowed {
        let message = verdict.message.as_deref().unwrap_or("no message");
        out::note(format_args!(
            "the policy is in monitor mode and would deny {what}: {}",
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

pub(crate) fn read_settings(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read the settings in {}", path.display());
    let bytes = input::read(path, MAX_SETTINGS).with_context(failed)?;
    let text = std::str::from_utf8(&bytes).with_context(failed)?;
    manifest::settings(path, text)
}
