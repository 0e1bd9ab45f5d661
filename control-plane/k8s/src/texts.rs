//! Reads policies that are kept in ConfigMaps.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

/// Reads ConfigMaps of the namespaces that may hold policies.
#[derive(Clone)]
pub struct TextReader {
    client: Client,
    namespaces: Vec<String>,
}

/// A key of a ConfigMap can't be read. It may be created or corrected later.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the key {key} of the ConfigMap {name} in namespace {namespace}: {why}")]
pub struct Error {
    namespace: String,
    name: String,
    key: String,
    why: String,
}

// === impl TextReader ===

impl TextReader {
    /// Reads from these namespaces for policies of the cluster.
    pub fn new(client: Client, namespaces: Vec<String>) -> Self {
        Self { client, namespaces }
    }

    /// Whether a policy may use a ConfigMap of `namespace`; `own` is the policy's namespace, if it has one. Otherwise
    /// whoever may create policies could have any ConfigMap read, and part of it shown in a status.
    pub fn allow(&self, namespace: &str, own: Option<&str>) -> Result<(), String> {
        match own {
            Some(own) if own == namespace => Ok(()),
            Some(own) => Err(format!(
                "spec.module: an AdmissionPolicy can use ConfigMaps of its own namespace {own} only"
            )),
            None if self.namespaces.iter().any(|one| one == namespace) => Ok(()),
            None => Err(format!(
                "spec.module: {namespace} is not a policy namespace; there are: {}",
                self.namespaces.join(", ")
            )),
        }
    }

    /// The content of a key: text, or binary data.
    pub async fn read(&self, namespace: &str, name: &str, key: &str) -> Result<Vec<u8>, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let error = |why: String| Error {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
            why,
        };
        let found = api.get_opt(name).await.map_err(|e| match e {
            kube::Error::Api(status) if status.code == 403 => error(format!(
                "no permission; add {namespace} to the chart's value policyNamespaces ({status})"
            )),
            e => error(e.to_string()),
        })?;
        let found = found.ok_or_else(|| error("there is no such ConfigMap".into()))?;
        let text = found.data.unwrap_or_default().remove(key);
        let binary = found.binary_data.unwrap_or_default().remove(key);
        let content = text.map(String::into_bytes).or(binary.map(|b| b.0));
        content.ok_or_else(|| error("it has no such key".into()))
    }
}
