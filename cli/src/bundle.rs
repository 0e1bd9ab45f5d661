//! `assent save` and `assent load`: modules with their signatures in one file, for clusters without a way out.

use std::{fs::File, path::PathBuf};

use anyhow::{Context as _, bail};
use assent_oci::ModuleUrl;
use serde::Serialize;

use crate::{
    client::block_on,
    exit::Exit,
    module::ModuleArgs,
    out::{self, OutputArgs},
    progress::Progress,
    registry::in_registry,
    table::Table,
};

mod archive;

/// Saves modules with their signatures to one file.
///
/// The file is an OCI image layout in a tar archive. `assent load` pushes it to a registry on the other side. Manifests are
/// kept as they are, so that digests, pins and signatures stay valid.
#[derive(Debug, clap::Args)]
#[command(after_help = SAVE_EXAMPLES)]
pub(crate) struct SaveArgs {
    /// Modules in registries
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,

    /// File to write
    #[arg(short = 'O', long, value_name = "FILE")]
    output_file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const SAVE_EXAMPLES: &str = "\
Examples:
  assent save registry://ghcr.io/org/a:v1 registry://ghcr.io/org/b:v2 -O policies.tar

Exit codes: 0 = written, 2 = not written.";

/// Pushes the modules of a file that `assent save` wrote, with their signatures.
///
/// A module keeps its repository and tag: registry://ghcr.io/org/a:v1 becomes registry://HOST/PREFIX/org/a:v1.
#[derive(Debug, clap::Args)]
#[command(after_help = LOAD_EXAMPLES)]
pub(crate) struct LoadArgs {
    /// File that `assent save` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Registry to push to
    #[arg(value_name = "HOST[:PORT][/PREFIX]")]
    registry: String,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const LOAD_EXAMPLES: &str = "\
Examples:
  assent load policies.tar registry.example.com --registry-config ~/.docker/config.json
  assent load policies.tar localhost:5000/mirror --insecure-source localhost:5000

Exit codes: 0 = everything was pushed, 2 = not everything.";

/// One module of a bundle. The JSON form is a contract with scripts.
#[derive(Debug, Serialize)]
struct Moved {
    module: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// The digest of its manifest, which pins it and is signed.
    manifest: String,
    /// Manifests beside its own: signatures and what lists them.
    signatures: usize,
}

// === impl SaveArgs ===

impl SaveArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            urls,
            output_file,
            output,
            modules,
        } = self;
        let urls: Vec<ModuleUrl> = urls
            .iter()
            .map(|url| in_registry(url))
            .collect::<Result<_, _>>()?;
        let client = modules.pusher()?;
        let mut archive = archive::Archive::default();
        let mut saved = Vec::new();
        for url in &urls {
            let _progress = Progress::of(format!("fetching {url} …"));
            let copy = block_on(async { Ok(client.read(url).await) })?;
            let copy = copy.map_err(crate::module::advise)?;
            saved.push(moved(url, None, &copy));
            archive.add(url, &copy);
        }
        let mut bytes = Vec::new();
        archive.write(&mut bytes)?;
        out::write_file(&output_file, &bytes)?;
        print(&saved, output)
    }
}

// === impl LoadArgs ===

impl LoadArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            file,
            registry,
            output,
            modules,
        } = self;
        let failed = || format!("failed to read {}", file.display());
        let opened = File::open(&file).with_context(failed)?;
        let artefacts = archive::read(opened).with_context(failed)?;
        if artefacts.is_empty() {
            bail!("{} has no modules", file.display());
        }
        let client = modules.pusher()?;
        let mut loaded = Vec::new();
        for (module, copy) in &artefacts {
            let from = in_registry(module)?;
            let to = in_registry(&target(&from, &registry))?;
            let _progress = Progress::of(format!("pushing {to} …"));
            let pushed = block_on(async { Ok(client.write(&to, copy).await) })?;
            pushed.map_err(crate::module::advise)?;
            loaded.push(moved(&from, Some(&to), copy));
        }
        print(&loaded, output)
    }
}

/// The same repository and tag in another registry.
fn target(from: &ModuleUrl, registry: &str) -> String {
    let text = from.to_string();
    let rest = text.strip_prefix("registry://").unwrap_or(&text);
    let rest = rest.split_once('/').map_or(rest, |(_, rest)| rest);
    let registry = registry.strip_prefix("registry://").unwrap_or(registry);
    format!("registry://{}/{rest}", registry.trim_end_matches('/'))
}

fn moved(url: &ModuleUrl, to: Option<&ModuleUrl>, copy: &assent_oci::Copy) -> Moved {
    Moved {
        module: url.to_string(),
        to: to.map(ToString::to_string),
        manifest: copy
            .manifest
            .map(|digest| digest.to_string())
            .unwrap_or_default(),
        signatures: copy.manifests.len().saturating_sub(1),
    }
}

fn print(modules: &[Moved], output: OutputArgs) -> anyhow::Result<Exit> {
    if output.is_json() {
        out::json(&modules)?;
        return Ok(Exit::Yes);
    }
    let mut table = Table::new(["MODULE", "TO", "MANIFEST", "SIGNATURES"]);
    for one in modules {
        table.push([
            one.module.clone(),
            one.to.clone().unwrap_or_default(),
            one.manifest.clone(),
            one.signatures.to_string(),
        ]);
    }
    out::print(table)?;
    Ok(Exit::Yes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn repository_and_tag_are_kept() {
        let check = |from: &str, registry: &str, expect: &str| {
            assert_eq!(target(&from.parse().unwrap(), registry), expect);
        };
        check(
            "ghcr.io/org/a:v1",
            "host:5000",
            "registry://host:5000/org/a:v1",
        );
        check(
            "ghcr.io/org/a:v1",
            "registry://host/mirror/",
            "registry://host/mirror/org/a:v1",
        );
        let pin = format!("ghcr.io/a@sha256:{}", "0".repeat(64));
        check(
            &pin,
            "h",
            &format!("registry://h/a@sha256:{}", "0".repeat(64)),
        );
    }
}
