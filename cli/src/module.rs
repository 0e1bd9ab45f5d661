//! Finds a module: a file, a digest in a store, a URL, or the module of a manifest.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use assent_api::Parsed;
use assent_core::Digest;
use assent_evaluator::RegistryAccess;
use assent_modules::store::Store;
use assent_oci::{AddressPolicy, Auth, Files, ModuleUrl, Puller, Sources};
use assent_wasm::MAX_MODULE_BYTES;
use bytes::Bytes;

use crate::{manifest, progress::Progress};

/// Sources of modules.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModuleArgs {
    /// Module store for sha256:<digest>: the --state directory of a control plane
    #[arg(
        long,
        value_name = "DIR",
        env = "ASSENT_STORE",
        help_heading = "Module sources"
    )]
    store: Option<PathBuf>,

    /// Host that may be reached over plain HTTP or with an untrusted certificate
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Module sources")]
    insecure_source: Vec<String>,

    /// Registry credentials, in the format of Docker's config.json
    #[arg(
        long,
        value_name = "FILE",
        env = "ASSENT_REGISTRY_CONFIG",
        help_heading = "Module sources"
    )]
    registry_config: Option<PathBuf>,
}

/// A module, with its policy if a manifest was given.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) bytes: Bytes,
    /// Where it was found.
    pub(crate) origin: String,
    pub(crate) policy: Option<Box<Parsed>>,
}

/// The first bytes of a WebAssembly file.
const MAGIC: &[u8] = b"\0asm";

// === impl ModuleArgs ===

impl ModuleArgs {
    /// Loads the module or manifest that `name` refers to.
    pub(crate) async fn load(&self, name: &str) -> anyhow::Result<Loaded> {
        if name.starts_with("sha256:") {
            let digest = name
                .parse()
                .with_context(|| format!("failed to read {name:?}"))?;
            return Ok(Loaded::module(self.stored(digest)?, name));
        }
        if name.contains("://") {
            let bytes = self.pull(name, Path::new("")).await?;
            return Ok(Loaded::module(bytes, name));
        }
        let path = Path::new(name);
        let bytes = read_file(path)?;
        if bytes.starts_with(MAGIC) {
            return Ok(Loaded::module(bytes, name));
        }
        self.load_manifest(path, &bytes).await
    }

    async fn load_manifest(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<Loaded> {
        let known = path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        let text = std::str::from_utf8(bytes).ok().filter(|_| known);
        let Some(text) = text else {
            bail!(
                "{} is neither a WebAssembly module nor a policy manifest (.yaml, .yml, .json)",
                path.display()
            );
        };
        let policy = manifest::read(path, text)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let bytes = self.pull(&policy.module, base).await;
        let bytes =
            bytes.with_context(|| format!("failed to load the module of {}", policy.key))?;
        Ok(Loaded {
            bytes,
            origin: policy.module.clone(),
            policy: Some(policy),
        })
    }

    fn stored(&self, digest: Digest) -> anyhow::Result<Bytes> {
        let Some(dir) = &self.store else {
            bail!(
                "specify the store that contains {digest} with --store DIR: the --state directory of a control plane"
            );
        };
        match Store::peek(dir, digest)? {
            Some(bytes) => Ok(bytes),
            None => bail!("the store {} has no valid module {digest}", dir.display()),
        }
    }

    /// Registry access of policies: the same as for modules.
    pub(crate) fn registry_access(&self) -> anyhow::Result<RegistryAccess> {
        Ok(RegistryAccess {
            sources: self.sources()?,
            addresses: AddressPolicy::LOCAL,
        })
    }

    /// Fetches a module. Relative `file://` paths start at `base`.
    async fn pull(&self, url: &str, base: &Path) -> anyhow::Result<Bytes> {
        let url: ModuleUrl = url
            .parse()
            .with_context(|| format!("failed to read the URL {url:?}"))?;
        let base = std::path::absolute(if base.as_os_str().is_empty() {
            Path::new(".")
        } else {
            base
        });
        let base = base.context("failed to find the current directory")?;
        // Local addresses are allowed: the user can reach them anyway.
        let puller =
            Puller::new(self.sources()?, AddressPolicy::LOCAL)?.with_files(Files::Below(base));
        let _progress = Progress::of(format!("fetching {url} …"));
        let pulled = puller
            .pull(&url)
            .await
            .map_err(|error| advise(error.into()))?;
        Ok(pulled.bytes)
    }

    fn sources(&self) -> anyhow::Result<Sources> {
        let auth = match &self.registry_config {
            None => Auth::default(),
            Some(path) => {
                let read = std::fs::read(path);
                let json = read.with_context(|| format!("failed to read {}", path.display()))?;
                let auth = Auth::from_docker_config(&json);
                auth.with_context(|| format!("failed to use {}", path.display()))?
            }
        };
        Ok(Sources {
            insecure: self.insecure_source.clone(),
            auth,
            ..Sources::default()
        })
    }
}

// === impl Loaded ===

impl Loaded {
    fn module(bytes: Bytes, origin: &str) -> Self {
        Self {
            bytes,
            origin: origin.to_owned(),
            policy: None,
        }
    }

    /// The policy's name in messages.
    pub(crate) fn name(&self) -> String {
        match &self.policy {
            Some(policy) => policy.key.to_string(),
            None => self.origin.clone(),
        }
    }
}

/// Reads a file, but not more than the largest module.
fn read_file(path: &Path) -> anyhow::Result<Bytes> {
    let failed = || format!("failed to read {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "there is no file {}; to use a module from a registry, write registry://host/repository:tag",
            path.display()
        ),
        opened => opened.with_context(failed)?,
    };
    let mut bytes = Vec::new();
    let most = MAX_MODULE_BYTES as u64 + 1;
    file.take(most)
        .read_to_end(&mut bytes)
        .with_context(failed)?;
    Ok(bytes.into())
}

/// Adds the flag that helps: messages of the puller refer to fields of a PolicyServer.
fn advise(error: anyhow::Error) -> anyhow::Error {
    use assent_oci::Error;
    let flag = match error.downcast_ref::<Error>() {
        Some(Error::Plain { host, .. }) => {
            format!("to allow this, use --insecure-source {host}")
        }
        Some(Error::Certificate { .. }) => "to allow this, use --insecure-source HOST".into(),
        Some(
            Error::Login { .. }
            | Error::Status {
                status: 401 | 403, ..
            },
        ) => "pass registry credentials with --registry-config FILE".into(),
        _ => return error,
    };
    anyhow::anyhow!("{error}\n{flag}")
}
