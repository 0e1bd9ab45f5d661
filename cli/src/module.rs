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
use assent_oci::{
    AddressPolicy, Auth, Files, Images, ModuleUrl, Pulled, Puller, Pusher, Sources, verify::Keys,
};
use assent_text::{Language, Text};
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
            let bytes = self.pull(name, Path::new(""), "").await?;
            return Ok(Loaded::module(bytes, name));
        }
        let path = Path::new(name);
        if Language::of_file(name).is_some() {
            let text = Text::from_file(name, crate::build::read_text(path)?);
            let text = text.context("failed to find the language of the text")?;
            return Ok(Loaded::module(crate::build::module(text)?.into(), name));
        }
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
                "{} is neither a WebAssembly module, nor a text (.rego, .cel.yaml), nor a policy manifest (.yaml, .yml, .json)",
                path.display()
            );
        };
        let policy = manifest::read(path, text)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let bytes = self.pull(&policy.module, base, &policy.entrypoint).await;
        let bytes =
            bytes.with_context(|| format!("failed to load the module of {}", policy.key))?;
        Ok(Loaded {
            bytes,
            origin: shown(&policy.module),
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

    /// Writes to registries.
    pub(crate) fn pusher(&self) -> anyhow::Result<Pusher> {
        Ok(Pusher::new(self.sources()?, AddressPolicy::LOCAL)?)
    }

    /// Reads manifests and signatures in registries.
    pub(crate) fn images(&self) -> anyhow::Result<Images> {
        Ok(Images::new(self.sources()?, AddressPolicy::LOCAL)?)
    }

    /// Fetches a module, and returns the URL that pins it, if there is one. With `keys` it must be signed.
    pub(crate) async fn fetch(
        &self,
        name: &str,
        keys: Option<Keys>,
    ) -> anyhow::Result<(Bytes, Option<String>)> {
        if !name.contains("://") && keys.is_none() {
            return Ok((self.load(name).await?.bytes, None));
        }
        let pulled = self
            .pull_verified(&parse(name)?, Path::new(""), keys)
            .await?;
        Ok((pulled.bytes, Some(pulled.resolved_url.to_string())))
    }

    /// Fetches what a URL names. Relative `file://` paths start at `base`.
    async fn pull_verified(
        &self,
        url: &ModuleUrl,
        base: &Path,
        keys: Option<Keys>,
    ) -> anyhow::Result<Pulled> {
        let base = std::path::absolute(if base.as_os_str().is_empty() {
            Path::new(".")
        } else {
            base
        });
        let base = base.context("failed to find the current directory")?;
        // Local addresses are allowed: the user can reach them anyway.
        let mut puller =
            Puller::new(self.sources()?, AddressPolicy::LOCAL)?.with_files(Files::Below(base));
        if let Some(keys) = keys {
            puller = puller.with_verification(keys);
        }
        let _progress = Progress::of(format!("fetching {} …", url.redacted()));
        puller.pull(url).await.map_err(advise)
    }

    /// Fetches a module, or builds the one of a text. Relative `file://` paths start at `base`.
    async fn pull(&self, url: &str, base: &Path, entrypoint: &str) -> anyhow::Result<Bytes> {
        let url = parse(url)?;
        let pulled = self.pull_verified(&url, base, None).await?;
        let Some(name) = url.text_name() else {
            return Ok(pulled.bytes);
        };
        let text = String::from_utf8(pulled.bytes.into());
        let text = text.with_context(|| format!("{name} is not UTF-8"))?;
        let text =
            Text::from_file(name, text).context("failed to find the language of the text")?;
        let entrypoint = entrypoint.to_owned();
        Ok(crate::build::module(Text { entrypoint, ..text })?.into())
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

/// A URL for people: one that contains a whole text is shown by its digest.
fn shown(url: &str) -> String {
    let parsed = url.parse::<ModuleUrl>();
    parsed.map_or_else(|_| url.to_owned(), |url| url.redacted())
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

fn parse(url: &str) -> anyhow::Result<ModuleUrl> {
    let parsed = url.parse();
    parsed.with_context(|| format!("failed to read the URL {:?}", shown(url)))
}

/// Adds the flag that helps: messages of the puller refer to fields of a PolicyServer.
pub(crate) fn advise(error: assent_oci::Error) -> anyhow::Error {
    use assent_oci::Error;
    let flag = match &error {
        Error::Plain { host, .. } => {
            format!("to allow this, use --insecure-source {host}")
        }
        // What a TLS client makes of a plain HTTP answer.
        Error::Network { why, .. } if why.contains("corrupt message") => {
            "the host does not use TLS; to allow plain HTTP, use --insecure-source HOST".into()
        }
        Error::Certificate { .. } => "to allow this, use --insecure-source HOST".into(),
        Error::Login { .. }
        | Error::Status {
            status: 401 | 403, ..
        } => "pass registry credentials with --registry-config FILE".into(),
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}\n{flag}")
}
