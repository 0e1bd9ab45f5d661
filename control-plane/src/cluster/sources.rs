//! The registries that a PolicyServer declares, with the credentials and certificates that it
//! refers to.

use std::sync::Arc;

use assent_api::ParsedServer;
use assent_controller::Failure;
use assent_k8s::{
    Client,
    sources::{self, SourceReader},
};
use assent_oci::{AddressPolicy, Auth, Sources};
use async_trait::async_trait;

use crate::{
    runner::ModuleAccess,
    servers,
    vetting::{DeclaredSources, ReadSources, failure},
};

/// Modules come from public addresses, and from what PolicyServers declare.
const ADDRESSES: AddressPolicy = AddressPolicy::PUBLIC;

/// How a cluster fetches modules.
pub(super) fn module_access(client: &Client, namespace: &str) -> ModuleAccess {
    let (client, namespace) = (client.clone(), namespace.to_owned());
    ModuleAccess {
        files: None,
        addresses: ADDRESSES,
        sources: Arc::new(move |server| {
            let sources = SecretSources::new(&client, &namespace, References::of(server));
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

// === impl SecretSources ===

impl SecretSources {
    pub(super) fn new(client: &Client, namespace: &str, references: References) -> Self {
        Self {
            reader: SourceReader::new(client.clone(), namespace),
            references,
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
}

impl std::fmt::Debug for SecretSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSources")
            .field("pull_secret", &self.references.pull_secret)
            .finish_non_exhaustive()
    }
}
