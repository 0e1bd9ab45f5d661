//! `assent inspect`: shows what a module is and whether an evaluator would load it.

use std::fmt::Write as _;

use anyhow::Context as _;
use assent_modules::vet::{Stage, VetReport, VetRequest, Vetter};
use assent_wasm::{InspectError, Inspection, Metadata, PolicyType};
use serde::Serialize;

use crate::{
    evaluate::default_capabilities,
    exit::Exit,
    module::{Loaded, ModuleArgs},
    out::{self, OutputArgs, clean, clean_lines},
    progress::{self, Progress},
    up,
};

/// Shows what a module is and whether an evaluator would load it.
///
/// The module is vetted as by a control plane, in a child process: compiled, linked and
/// instantiated, with the settings of the manifest, or without settings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Module (a .wasm file, sha256:<digest> with --store, registry://, https:// or file://), text (.rego,
    /// .cel.yaml) or manifest
    #[arg(value_name = "MODULE|MANIFEST")]
    module: String,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent inspect policy.wasm
  assent inspect registry://ghcr.io/org/policy:v1 -o json

Exit codes: 0 = the module would load, 1 = it would not, 2 = it could not be read.";

/// The findings. Their JSON form is a contract with scripts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Findings {
    module: String,
    digest: String,
    size: u64,
    abi: Option<String>,
    /// Whether an evaluator would load it.
    loads: bool,
    /// Why it would not load.
    problem: Option<String>,
    /// The module's message if it rejects the settings.
    settings_refused: Option<String>,
    metadata: Option<Metadata>,
    imports: Vec<String>,
    exports: Vec<String>,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            module,
            output,
            modules,
        } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let findings = runtime
            .context("failed to start the runtime")?
            .block_on(async {
                let loaded = modules.load(&module).await?;
                Findings::of(&loaded).await
            })?;
        if output.is_json() {
            out::json(&findings)?;
        } else {
            out::print(findings.text())?;
        }
        Ok(Exit::yes_if(findings.loads))
    }
}

// === impl Findings ===

impl Findings {
    async fn of(loaded: &Loaded) -> anyhow::Result<Self> {
        let mut findings = Self::read(loaded, assent_wasm::inspect(&loaded.bytes));
        if findings.problem.is_none() {
            findings.vet(loaded).await?;
        }
        findings.loads = findings.problem.is_none();
        Ok(findings)
    }

    fn read(loaded: &Loaded, inspection: Result<Inspection, InspectError>) -> Self {
        let (inspection, error) = match inspection {
            Ok(inspection) => (Some(inspection), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let digest = assent_core::Digest::of(&loaded.bytes).to_string();
        let listed = inspection.as_ref();
        let import = |i: &assent_wasm::Import| format!("{}.{} ({})", i.module, i.name, i.kind);
        let export = |e: &assent_wasm::Export| format!("{} ({})", e.name, e.kind);
        Self {
            module: loaded.origin.clone(),
            digest,
            size: loaded.bytes.len() as u64,
            abi: listed.and_then(|i| i.abi).map(|abi| abi.to_string()),
            loads: false,
            settings_refused: None,
            imports: listed.map_or_else(Vec::new, |i| i.imports.iter().map(import).collect()),
            exports: listed.map_or_else(Vec::new, |i| i.exports.iter().map(export).collect()),
            problem: error.or_else(|| listed.and_then(|i| i.problem.clone())),
            metadata: inspection.and_then(|i| i.metadata),
        }
    }

    /// In a child process: a module may loop, exhaust memory or crash the process that compiles it.
    async fn vet(&mut self, loaded: &Loaded) -> anyhow::Result<()> {
        let size = progress::size(self.size);
        let _progress = Progress::of(format!("compiling {} ({size}) …", self.module));
        let vetter = Vetter::new(up::this_program()?, vec!["vet".into()]);
        match vetter.vet(loaded.bytes.clone(), &request(loaded)).await? {
            VetReport::Accepted(_) => {}
            // Without a manifest the right settings are not known.
            VetReport::Refused { refused, .. }
                if refused.stage == Stage::Settings && loaded.policy.is_none() =>
            {
                self.settings_refused = Some(refused.message);
            }
            VetReport::Refused { refused, .. } => self.problem = Some(refused.message),
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a String never fails.
            let _ = writeln!(text, "{name:<13}{}", clean(value));
        };
        line("module", &self.module);
        line("digest", &self.digest);
        line(
            "size",
            &format!("{} ({} bytes)", progress::size(self.size), self.size),
        );
        line("abi", self.abi.as_deref().unwrap_or("unknown"));
        if let Some(metadata) = &self.metadata {
            describe(metadata, &mut line);
        }
        line("imports", &listed(&self.imports));
        line("exports", &listed(&self.exports));
        if let Some(message) = &self.settings_refused {
            line(
                "settings",
                &format!("the module does not load without settings: {message}"),
            );
        }
        match &self.problem {
            None => line("loads", "yes"),
            Some(problem) => line("loads", &format!("no: {}", clean_lines(problem))),
        }
        if let Some(origin) = self.metadata.as_ref().and_then(assent_text::origin) {
            let _ = writeln!(text, "\n{}", clean_lines(origin.text.trim_end()));
        }
        text
    }
}

fn request(loaded: &Loaded) -> VetRequest {
    let Some(policy) = &loaded.policy else {
        return VetRequest {
            granted_capabilities: default_capabilities(loaded),
            artefact: false,
            ..VetRequest::new("{}")
        };
    };
    VetRequest {
        entrypoint: policy.entrypoint.clone(),
        mutating: policy.mutating,
        check: policy.requests.is_some(),
        granted_capabilities: default_capabilities(loaded),
        artefact: false,
        ..VetRequest::new(String::from_utf8_lossy(&policy.settings))
    }
}

fn describe(metadata: &Metadata, line: &mut impl FnMut(&str, &str)) {
    for (name, key) in [
        ("title", "title"),
        ("version", "version"),
        ("source", "source"),
    ] {
        let key = format!("io.kubewarden.policy.{key}");
        if let Some(value) = metadata.annotations.get(&key) {
            line(name, value);
        }
    }
    if let Some(origin) = assent_text::origin(metadata) {
        line(
            "language",
            &format!("{} ({})", origin.language, origin.interpreter),
        );
        line("text", &origin.digest);
        if let Some(rule) = &origin.entrypoint {
            line("rule", rule);
        }
    }
    line("mutating", yes_no(metadata.mutating));
    let kind = match metadata.policy_type {
        PolicyType::Kubernetes => "admission requests",
        PolicyType::Raw => "any JSON document (raw)",
    };
    line("evaluates", kind);
    if let Some(calls) = &metadata.host_capabilities {
        line("host calls", &listed(calls));
    }
    let kinds = metadata.context_aware_resources.iter();
    let kinds: Vec<_> = kinds
        .map(|r| format!("{}/{}", r.api_version, r.kind))
        .collect();
    if !kinds.is_empty() {
        line("reads", &kinds.join(", "));
    }
    if let Some(version) = &metadata.minimum_kubewarden_version {
        line("made for", &format!("Kubewarden {version} or newer"));
    }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}
