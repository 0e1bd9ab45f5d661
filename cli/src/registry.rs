//! `assent push`, `pull`, `verify` and `digest`: modules in registries.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, bail};
use assent_core::Digest;
use assent_oci::{ModuleUrl, verify::Keys};
use serde::Serialize;

use crate::{
    client::block_on,
    exit::Exit,
    module::ModuleArgs,
    out::{self, OutputArgs},
};

/// Pushes a module to a registry, in the format that evaluators pull.
///
/// Sign it afterwards with `cosign sign --key`, by the digest that is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = PUSH_EXAMPLES)]
pub(crate) struct PushArgs {
    /// Module: a .wasm file, or whatever else `assent run` takes
    #[arg(value_name = "MODULE")]
    module: String,

    /// Where to: registry://HOST/REPOSITORY:TAG
    #[arg(value_name = "URL")]
    url: ModuleUrl,

    /// Annotation of the artefact, such as org.opencontainers.image.source=URL; repeat for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    annotation: Vec<(String, String)>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const PUSH_EXAMPLES: &str = "\
Examples:
  assent push policy.wasm registry://ghcr.io/org/policy:v1 --registry-config ~/.docker/config.json
  assent push policy.wasm registry://localhost:5000/policy:v1 --insecure-source localhost:5000

Exit codes: 0 = pushed, 2 = not pushed.";

/// Fetches a module and writes it to a file.
#[derive(Debug, clap::Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(crate) struct PullArgs {
    /// Module in a registry, at an https:// address, or sha256:<digest> with --store
    #[arg(value_name = "URL")]
    url: String,

    /// File to write [default: the last part of the URL, with .wasm]
    #[arg(short = 'O', long, value_name = "FILE")]
    output_file: Option<PathBuf>,

    /// Fetch only if the module is signed by this key, PEM; repeat for more, of which one must have signed
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const PULL_EXAMPLES: &str = "\
Examples:
  assent pull registry://ghcr.io/org/policy:v1
  assent pull registry://ghcr.io/org/policy:v1 --key cosign.pub -O policy.wasm

Exit codes: 0 = written, 1 = not signed by the keys, 2 = not fetched.";

/// Checks that a module in a registry is signed.
#[derive(Debug, clap::Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Module or image in a registry
    #[arg(value_name = "URL")]
    url: ModuleUrl,

    /// Public key, PEM; repeat for more, of which one must have signed
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,

    /// Each of the keys must have signed
    #[arg(long)]
    all: bool,

    /// Annotation that the signature must have; repeat for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "all")]
    annotation: Vec<(String, String)>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  assent verify registry://ghcr.io/org/policy:v1 --key cosign.pub
  assent verify registry://ghcr.io/org/policy:v1 --key a.pub --key b.pub --all

Exit codes: 0 = signed, 1 = not signed by the keys, 2 = the signatures could not be read.";

/// Prints the digests of modules.
#[derive(Debug, clap::Args)]
#[command(after_help = DIGEST_EXAMPLES)]
pub(crate) struct DigestArgs {
    /// Modules or manifests: whatever `assent run` takes
    #[arg(value_name = "MODULE|MANIFEST", required = true)]
    modules: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    sources: ModuleArgs,
}

const DIGEST_EXAMPLES: &str = "\
Examples:
  assent digest policy.wasm
  assent digest registry://ghcr.io/org/policy:v1 -o json

The URL in the output pins the module: for a registry by the digest of its manifest, which is what cosign signs.

Exit codes: 0 = printed, 2 = a module could not be read.";

/// A module and what names it exactly. The JSON form is a contract with scripts.
#[derive(Debug, Serialize)]
struct Named {
    module: String,
    /// Of the bytes of the module.
    digest: String,
    /// A URL that always means these bytes; none for a plain file.
    url: Option<String>,
}

// === impl PushArgs ===

impl PushArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            module,
            url,
            annotation,
            output,
            modules,
        } = self;
        let annotations: BTreeMap<String, String> = annotation.into_iter().collect();
        let named = block_on(async {
            let loaded = modules.load(&module).await?;
            let inspection = assent_wasm::inspect(&loaded.bytes);
            let inspection =
                inspection.with_context(|| format!("failed to read {}", loaded.origin))?;
            if inspection.metadata.is_none() {
                out::note("the module has no metadata; `assent annotate` writes it");
            }
            let pusher = modules.pusher()?;
            let pushed = pusher.push(&url, loaded.bytes.clone(), &annotations);
            let pinned = pushed.await.map_err(crate::module::advise)?;
            anyhow::Ok(Named {
                module: url.to_string(),
                digest: Digest::of(&loaded.bytes).to_string(),
                url: Some(pinned.to_string()),
            })
        })?;
        named.print(output, "pushed")
    }
}

// === impl PullArgs ===

impl PullArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            url,
            output_file,
            key,
            output,
            modules,
        } = self;
        let path = output_file.unwrap_or_else(|| default_file(&url));
        let keys = match key.as_slice() {
            [] => None,
            paths => Some(Keys::any_of(&read_keys(paths)?)?),
        };
        let fetched = block_on(modules.fetch(&url, keys));
        let (bytes, pinned) = match fetched {
            Err(error) if is_unsigned(&error) => {
                out::error(&error);
                return Ok(Exit::No);
            }
            fetched => fetched?,
        };
        out::write_file(&path, &bytes)?;
        let named = Named {
            module: path.display().to_string(),
            digest: Digest::of(&bytes).to_string(),
            url: pinned,
        };
        named.print(output, "wrote")
    }
}

// === impl VerifyArgs ===

impl VerifyArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            url,
            key,
            all,
            annotation,
            output,
            modules,
        } = self;
        let pems = read_keys(&key)?;
        let keys = match all {
            true => Keys::all_of(&pems, annotation.into_iter().collect())?,
            false => Keys::any_of(&pems)?,
        };
        let images = modules.images()?;
        let verified = block_on(async {
            let name = url.to_string();
            let name = name.strip_prefix("registry://").unwrap_or(&name).to_owned();
            Ok(images.verify(&name, &keys).await)
        })?;
        let digest = match verified {
            Err(error @ assent_oci::Error::SignatureRejected { .. }) => {
                out::error(&error.into());
                return Ok(Exit::No);
            }
            verified => verified.map_err(crate::module::advise)?,
        };
        if output.is_json() {
            out::json(
                &serde_json::json!({"url": url.to_string(), "verified": true, "manifest": digest.to_string()}),
            )?;
        } else {
            out::line(format_args!("{url} is signed: its manifest is {digest}"))?;
        }
        Ok(Exit::Yes)
    }
}

// === impl DigestArgs ===

impl DigestArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            modules: names,
            output,
            sources,
        } = self;
        let found = block_on(async {
            let mut found = Vec::new();
            for name in names {
                let (bytes, url) = match name.contains("://") {
                    true => sources.fetch(&name, None).await?,
                    false => (sources.load(&name).await?.bytes, None),
                };
                let digest = Digest::of(&bytes).to_string();
                found.push(Named {
                    module: name,
                    digest,
                    url,
                });
            }
            anyhow::Ok(found)
        })?;
        if output.is_json() {
            out::json(&found)?;
        } else {
            for one in &found {
                let url = one.url.as_deref().unwrap_or(&one.module);
                out::line(format_args!("{}  {}", one.digest, out::clean(url)))?;
            }
        }
        Ok(Exit::Yes)
    }
}

// === impl Named ===

impl Named {
    fn print(&self, output: OutputArgs, verb: &str) -> anyhow::Result<Exit> {
        if output.is_json() {
            out::json(self)?;
        } else {
            out::line(format_args!("{verb} {}", out::clean(&self.module)))?;
            out::line(format_args!("  digest  {}", self.digest))?;
            if let Some(url) = &self.url {
                out::line(format_args!("  url     {}", out::clean(url)))?;
            }
        }
        Ok(Exit::Yes)
    }
}

fn is_unsigned(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<assent_oci::Error>();
    matches!(cause, Some(assent_oci::Error::SignatureRejected { .. }))
}

/// The last part of a URL: `policy.wasm` of `registry://ghcr.io/org/policy:v1`.
fn default_file(url: &str) -> PathBuf {
    let last = url.rsplit('/').next().unwrap_or_default();
    let last = last.split(['@', ':', '#', '?']).next().unwrap_or_default();
    let stem = last.strip_suffix(".wasm").unwrap_or(last);
    match stem {
        "" => "policy.wasm".into(),
        stem => format!("{stem}.wasm").into(),
    }
}

fn read_keys(paths: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path);
        text.with_context(|| format!("failed to read the key {}", path.display()))
    };
    paths.iter().map(read).collect()
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Refuses URLs that are not in a registry.
pub(crate) fn in_registry(url: &str) -> anyhow::Result<ModuleUrl> {
    let parsed: ModuleUrl = url
        .parse()
        .with_context(|| format!("failed to read the URL {url:?}"))?;
    match parsed.to_string().starts_with("registry://") {
        true => Ok(parsed),
        false => bail!("{url} is not in a registry; write registry://HOST/REPOSITORY:TAG"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_named_after_the_module() {
        for (url, file) in [
            ("registry://ghcr.io/org/policy:v1", "policy.wasm"),
            ("registry://ghcr.io/org/policy@sha256:00", "policy.wasm"),
            ("https://host/dir/a.wasm?x=1", "a.wasm"),
            ("https://host/", "policy.wasm"),
        ] {
            assert_eq!(default_file(url), PathBuf::from(file), "{url}");
        }
    }
}
