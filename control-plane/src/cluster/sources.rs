//! The registries that a PolicyServer declares, with the credentials and certificates that it
//! refers to.

use std::sync::Arc;

use assent_api::{
    ParsedServer,
    settings::{SettingsKey, SettingsSource},
};
use assent_controller::Failure;
use assent_k8s::{
    Client,
    settings::SettingsReader,
    sources::{self, SourceReader},
    texts::TextReader,
};
use assent_oci::{AddressPolicy, Auth, ConfigMapKey, Sources};
use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    runner::ModuleAccess,
    servers,
    vetting::{DeclaredSources, ReadSettings, ReadSources, SettingsAccess, failure},
};

/// Modules come from public addresses, and from what PolicyServers declare.
const ADDRESSES: AddressPolicy = AddressPolicy::PUBLIC;

/// How a cluster fetches modules.
pub(super) fn module_access(
    client: &Client,
    namespace: &str,
    settings_key: Option<SettingsKey>,
    policy_namespaces: &[String],
) -> ModuleAccess {
    let texts = TextReader::new(client.clone(), policy_namespaces.to_vec());
    let (client, namespace) = (client.clone(), namespace.to_owned());
    let reader = SecretValues(SettingsReader::new(client.clone(), &namespace));
    ModuleAccess {
        settings: settings_key.map(|key| SettingsAccess {
            reader: Arc::new(reader),
            key,
        }),
        files: None,
        addresses: ADDRESSES,
        sources: Arc::new(move |server| {
            let references = References::of(server);
            let sources = SecretSources::new(&client, &namespace, references, texts.clone());
            DeclaredSources::Elsewhere(Arc::new(sources))
        }),
    }
}

/// What a server declares, with the names of what must be read.
#[derive(Clone, Debug, Default)]
pub(super) struct References {
    declared: Sources,
    pull_secret: Option<String>,
    /// Host, name of a ConfigMap and key in it.
    certificates: Vec<(String, String, String)>,
}

/// Sources whose secrets are read when they are needed: none is kept.
pub(super) struct SecretSources {
    reader: SourceReader,
    references: References,
    texts: TextReader,
}

// === impl References ===

impl References {
    pub(super) fn of(server: Option<&ParsedServer>) -> Self {
        let spec = server.map(|s| &s.spec);
        let secure = spec.and_then(|s| s.sources.as_ref());
        let secure = secure.into_iter().flat_map(|s| &s.secure);
        let certificates = secure.filter_map(|source| {
            let reference = &source.certificate_from.as_ref()?.config_map_key_ref;
            Some((
                source.name.clone(),
                reference.name.clone(),
                reference.key.clone(),
            ))
        });
        Self {
            declared: servers::sources(server),
            pull_secret: spec.and_then(|s| s.image_pull_secret.clone()),
            certificates: certificates.collect(),
        }
    }
}

/// Values of Secrets that settings come from.
struct SecretValues(SettingsReader);

#[async_trait]
impl ReadSettings for SecretValues {
    async fn read(
        &self,
        namespace: Option<&str>,
        sources: &[SettingsSource],
    ) -> Result<Vec<Vec<u8>>, String> {
        let values = self.0.read(namespace, sources).await;
        values.map_err(|error| error.to_string())
    }
}

// === impl SecretSources ===

impl SecretSources {
    pub(super) fn new(
        client: &Client,
        namespace: &str,
        references: References,
        texts: TextReader,
    ) -> Self {
        Self {
            reader: SourceReader::new(client.clone(), namespace),
            references,
            texts,
        }
    }
}

#[async_trait]
impl ReadSources for SecretSources {
    async fn read(&self) -> Result<Sources, Failure> {
        // The object may be created or corrected later.
        let failed = |error: sources::Error| failure::later(error.to_string());
        let mut sources = self.references.declared.clone();
        for (host, name, key) in &self.references.certificates {
            let certificate = self.reader.certificate(name, key).await.map_err(failed)?;
            sources.certificates.insert(host.clone(), certificate);
        }
        if let Some(name) = &self.references.pull_secret {
            let auth = self.reader.pull_secret(name, Auth::from_docker_config);
            sources.auth = auth.await.map_err(failed)?;
        }
        Ok(sources)
    }

    async fn config_map(
        &self,
        key: &ConfigMapKey,
        namespace: Option<&str>,
    ) -> Result<Bytes, Failure> {
        let allowed = self.texts.allow(&key.namespace, namespace);
        allowed.map_err(failure::invalid)?;
        let content = self.texts.read(&key.namespace, &key.name, &key.key).await;
        let content = content.map_err(|error| failure::later(error.to_string()))?;
        Ok(content.into())
    }
}

impl std::fmt::Debug for SecretSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSources")
            .field("pull_secret", &self.references.pull_secret)
            .finish_non_exhaustive()
    }
}
