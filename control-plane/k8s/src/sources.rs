//! Registry credentials and certificates that a PolicyServer refers to, read from the control
//! plane's namespace when they are needed: no copy is kept.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

#[cfg(test)]
mod tests;

/// Reads what PolicyServers refer to.
#[derive(Clone)]
pub struct SourceReader {
    client: Client,
    namespace: String,
}

/// Something that a PolicyServer refers to can't be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A source's certificate.
    #[error("the policy server's source certificate: {why} in namespace {namespace}")]
    Certificate {
        /// What is wrong.
        why: String,
        /// The control plane's namespace.
        namespace: String,
    },
    /// The credentials for registries.
    #[error("the policy server's imagePullSecret {name} in namespace {namespace}: {why}")]
    PullSecret {
        /// The Secret's name.
        name: String,
        /// What is wrong.
        why: String,
        /// The control plane's namespace.
        namespace: String,
    },
}

// === impl SourceReader ===

impl SourceReader {
    /// Reads from `namespace`, the control plane's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { client, namespace }
    }

    /// The PEM certificates under `key` of the ConfigMap `name`.
    pub async fn certificate(&self, name: &str, key: &str) -> Result<Vec<u8>, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let error = |why: String| Error::Certificate {
            why,
            namespace: self.namespace.clone(),
        };
        let found = api.get_opt(name).await.map_err(|e| error(e.to_string()))?;
        let found = found.ok_or_else(|| error(format!("there is no ConfigMap {name}")))?;
        let value = found.data.unwrap_or_default().remove(key);
        let value = value.ok_or_else(|| error(format!("ConfigMap {name} has no key {key}")))?;
        Ok(value.into_bytes())
    }

    /// The Docker configuration in the pull secret `name`, as `read` understands it.
    pub async fn pull_secret<T, E: std::fmt::Display>(
        &self,
        name: &str,
        read: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<T, Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let error = |why: String| Error::PullSecret {
            name: name.to_owned(),
            why,
            namespace: self.namespace.clone(),
        };
        let found = api.get_opt(name).await.map_err(|e| match e {
            kube::Error::Api(status) if status.code == 403 => error(format!(
                "no permission to read it; add it to the chart's value registrySecrets ({status})"
            )),
            e => error(e.to_string()),
        })?;
        let found = found.ok_or_else(|| error("there is no such Secret".into()))?;
        let data = found.data.unwrap_or_default();
        let config = data.get(".dockerconfigjson").or(data.get(".dockercfg"));
        let config = config.ok_or_else(|| {
            error(
                "it has no .dockerconfigjson; create it with `kubectl create secret docker-registry`"
                    .into(),
            )
        })?;
        read(&config.0).map_err(|e| error(e.to_string()))
    }
}
