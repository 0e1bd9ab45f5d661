//! Settings that come from Secrets: the key that encrypts them, and the values.
//!
//! Secrets are read by name when they are needed. None is listed, watched or kept.

use std::collections::BTreeMap;

use assent_api::settings::{KEY_BYTES, SettingsKey, SettingsSource};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};

use crate::names;

#[cfg(test)]
mod tests;

/// The key in the Secret.
const KEY: &str = "key";

/// Reads values of Secrets for policies.
#[derive(Clone)]
pub struct SettingsReader {
    client: Client,
    namespace: String,
}

/// A value that cannot be read. Never contains one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.settingsFrom[{index}]: the Secret {name} in namespace {namespace}: {why}")]
pub struct Error {
    index: usize,
    name: String,
    namespace: String,
    why: String,
}

/// Why there is no key to encrypt settings with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The API server refused, or was not reached.
    #[error("failed to read or create the Secret {name}: {0}", name = names::SETTINGS_KEY)]
    Api(#[from] kube::Error),
    /// It has another form.
    #[error(
        "the Secret {name} has no key of {KEY_BYTES} bytes; delete it to create another one, which makes \
         a new generation of every policy that has settingsFrom",
        name = names::SETTINGS_KEY
    )]
    Damaged,
}

/// The key that encrypts settings; created if there is none. All replicas of the control plane
/// have the same: whoever is first creates it.
pub async fn settings_key(client: &Client, namespace: &str) -> Result<SettingsKey, KeyError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = api.get_opt(names::SETTINGS_KEY).await?;
    if found.is_none() {
        let created = api.create(&PostParams::default(), &new_key()).await;
        found = match created {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Some(api.get(names::SETTINGS_KEY).await?)
            }
            created => Some(created?),
        };
    }
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    let key = data.get(KEY).and_then(|key| key.0.first_chunk());
    let key = key.filter(|_| data[KEY].0.len() == KEY_BYTES);
    key.map(SettingsKey::new).ok_or(KeyError::Damaged)
}

fn new_key() -> Secret {
    let key: [u8; KEY_BYTES] = rand::random();
    let (managed_by, by) = names::MANAGED_BY;
    Secret {
        metadata: ObjectMeta {
            name: Some(names::SETTINGS_KEY.to_owned()),
            labels: Some([(managed_by.to_owned(), by.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([(KEY.to_owned(), ByteString(key.to_vec()))].into()),
        ..Secret::default()
    }
}

// === impl SettingsReader ===

impl SettingsReader {
    /// `namespace` is the control plane's, which cluster-wide policies read from.
    pub fn new(client: Client, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { client, namespace }
    }

    /// The value of each source of a policy in `policy_namespace`. A Secret is read once, so that
    /// values of one Secret belong together.
    pub async fn read(
        &self,
        policy_namespace: Option<&str>,
        sources: &[SettingsSource],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let namespace = policy_namespace.unwrap_or(&self.namespace);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let mut secrets: BTreeMap<&str, BTreeMap<String, ByteString>> = BTreeMap::new();
        let mut values = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            let reference = &source.secret_key_ref;
            let error = |why: String| Error {
                index,
                name: reference.name.clone(),
                namespace: namespace.to_owned(),
                why,
            };
            if !secrets.contains_key(reference.name.as_str()) {
                let data = self.data(&api, &reference.name).await.map_err(error)?;
                secrets.insert(&reference.name, data);
            }
            let data = &secrets[reference.name.as_str()];
            let value = data.get(&reference.key);
            let value = value.ok_or_else(|| error(format!("it has no key {}", reference.key)))?;
            values.push(value.0.clone());
        }
        Ok(values)
    }

    async fn data(
        &self,
        api: &Api<Secret>,
        name: &str,
    ) -> Result<BTreeMap<String, ByteString>, String> {
        match api.get_opt(name).await {
            Ok(Some(secret)) => Ok(secret.data.unwrap_or_default()),
            Ok(None) => Err("there is no such Secret".to_owned()),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(
                "the control plane has no permission to read it; allow its service account to get \
                 this Secret by a Role and a RoleBinding, or with the chart's value settingsSecrets"
                    .to_owned(),
            ),
            // A response that cannot be parsed could be quoted.
            Err(kube::Error::SerdeError(_)) => Err("the response cannot be parsed".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}
