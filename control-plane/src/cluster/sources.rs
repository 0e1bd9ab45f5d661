//! What a PolicyServer declares about registries: pull secrets and certificates out of the
//! control plane's namespace.

use assent_api::ParsedServer;
use assent_modules::pull::{Auth, Sources};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

use crate::{
    servers,
    vetting::{Failed, ReadSources},
};

/// What a server declares, with the names of what must be read.
#[derive(Clone, Debug, Default)]
pub(super) struct References {
    declared: Sources,
    pull_secret: Option<String>,
    /// Host, name of a ConfigMap and key in it.
    certificates: Vec<(String, String, String)>,
}

/// Sources whose secrets are read when they are needed: nothing secret is kept.
pub(super) struct SecretSources {
    client: Client,
    namespace: String,
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
            client: client.clone(),
            namespace: namespace.to_owned(),
            references,
        }
    }

    async fn certificate(&self, name: &str, key: &str) -> Result<Vec<u8>, Failed> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let missing = |what: &str| {
            Failed::later(format!(
                "the policy server's source certificate: {what} in namespace {}",
                self.namespace
            ))
        };
        let found = api
            .get_opt(name)
            .await
            .map_err(|e| missing(&e.to_string()))?;
        let found = found.ok_or_else(|| missing(&format!("there is no ConfigMap {name}")))?;
        let value = found.data.unwrap_or_default().remove(key);
        let value = value.ok_or_else(|| missing(&format!("ConfigMap {name} has no key {key}")))?;
        Ok(value.into_bytes())
    }

    async fn auth(&self, name: &str) -> Result<Auth, Failed> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let wrong = |what: String| {
            Failed::later(format!(
                "the policy server's imagePullSecret {name} in namespace {}: {what}",
                self.namespace
            ))
        };
        let found = api.get_opt(name).await.map_err(|e| wrong(e.to_string()))?;
        let found = found.ok_or_else(|| wrong("there is no such Secret".into()))?;
        let data = found.data.unwrap_or_default();
        let config = data.get(".dockerconfigjson").or(data.get(".dockercfg"));
        let config = config.ok_or_else(|| {
            wrong(
                "it has no .dockerconfigjson; make it by `kubectl create secret docker-registry`"
                    .into(),
            )
        })?;
        Auth::from_docker_config(&config.0).map_err(|e| wrong(e.to_string()))
    }
}

#[async_trait]
impl ReadSources for SecretSources {
    async fn read(&self) -> Result<Sources, Failed> {
        let mut sources = self.references.declared.clone();
        for (host, name, key) in &self.references.certificates {
            let certificate = self.certificate(name, key).await?;
            sources.certificates.insert(host.clone(), certificate);
        }
        if let Some(name) = &self.references.pull_secret {
            sources.auth = self.auth(name).await?;
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
