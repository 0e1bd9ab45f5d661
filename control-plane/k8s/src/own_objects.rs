//! The objects that a leader maintains besides policies: its own webhook configurations, the
//! CA bundle where pods mount it, the `default` PolicyServer.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use assent_api::PolicyServer;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    admission::{
        AdmissionCache,
        configurations::{self, Input},
    },
    certificates::{self, Authority},
    names,
    webhook::{WebhookDefaults, WebhookEndpoint},
};

/// How often everything is checked without a reason.
const INTERVAL: Duration = Duration::from_secs(60);

/// How soon a failed pass is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Changes within this time are one pass: an edit of many PolicyServers is not a pass each.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// Maintains the control plane's own objects.
#[derive(Clone)]
pub struct OwnObjects {
    /// The API server.
    pub client: Client,
    /// Namespace, owner and service accounts of the installation.
    pub defaults: WebhookDefaults,
    /// Where API servers reach the control plane's own webhooks.
    pub endpoint: WebhookEndpoint,
    /// The certificate authority, as it changes.
    pub authority: watch::Receiver<Arc<Authority>>,
    /// The namespaces that the CA bundle is published to.
    pub cache: AdmissionCache,
    /// A manifest of the `default` PolicyServer.
    pub default_server: Option<PathBuf>,
    /// True once this leader has written its own webhook configurations.
    pub webhooks_written: watch::Sender<bool>,
}

/// An object could not be brought into its desired state.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to apply {kind} {name}: {source}")]
    Apply {
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("failed to create the default PolicyServer: {0}")]
    DefaultServer(Box<kube::Error>),
    #[error("failed to read {0}: {1}")]
    Manifest(PathBuf, String),
}

// === impl OwnObjects ===

impl OwnObjects {
    /// Maintains the objects for as long as it is polled.
    pub async fn run(mut self) {
        let mut changes = self.cache.changes();
        self.webhooks_written.send_replace(false);
        loop {
            let wait = match self.reconcile().await {
                Ok(()) => INTERVAL,
                Err(error) => {
                    warn!("failed to maintain the control plane's own objects; retrying: {error}");
                    RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Ok(()) = self.authority.changed() => {}
                Ok(()) = changes.changed() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    }

    async fn reconcile(&mut self) -> Result<(), Error> {
        let authority = self.authority.borrow_and_update().clone();
        self.defaults.ca_bundle = authority.bundle_pem().as_bytes().to_vec();
        let mut namespaces: BTreeSet<String> = self.cache.injected_namespaces();
        namespaces.insert(self.defaults.namespace.clone());
        for namespace in namespaces {
            let published =
                certificates::publish_bundle(&self.client, &namespace, authority.bundle_pem());
            if let Err(error) = published.await {
                // A PolicyServer may allow a namespace that does not exist.
                warn!(%namespace, "failed to publish the CA bundle: {error}");
            }
        }
        let input = Input {
            endpoint: self.endpoint.clone(),
            namespace: self.defaults.namespace.clone(),
            namespace_uid: self.defaults.namespace_uid.clone(),
            ca_bundle: self.defaults.ca_bundle.clone(),
            service_accounts: self.defaults.service_accounts.clone(),
        };
        self.apply(&configurations::validating(&input)).await?;
        self.apply(&configurations::defaults(&input)).await?;
        self.apply(&configurations::injector(&input)).await?;
        self.webhooks_written.send_replace(true);
        self.create_default_server().await
    }

    async fn apply<K>(&self, object: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PatchParams::apply(names::FIELD_MANAGER).force();
        match api.patch(&name, &params, &Patch::Apply(object)).await {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::Apply {
                kind: K::kind(&()).into_owned(),
                name,
                source: Box::new(source),
            }),
        }
    }

    /// Creates the configured PolicyServer if it does not exist. An existing one is never
    /// changed: it belongs to the users.
    async fn create_default_server(&self) -> Result<(), Error> {
        let Some(path) = &self.default_server else {
            return Ok(());
        };
        let server = read_server(path)?;
        let api: Api<PolicyServer> = Api::all(self.client.clone());
        let name = server.metadata.name.clone().unwrap_or_default();
        let error = |error| Error::DefaultServer(Box::new(error));
        if api.get_opt(&name).await.map_err(error)?.is_some() {
            return Ok(());
        }
        match api.create(&PostParams::default(), &server).await {
            Ok(_) => info!(%name, "created the configured PolicyServer"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(other) => return Err(error(other)),
        }
        Ok(())
    }
}

fn read_server(path: &PathBuf) -> Result<PolicyServer, Error> {
    let error = |why: String| Error::Manifest(path.clone(), why);
    let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
    let document = assent_api::yaml::load(&text).into_iter().next();
    let document = document.ok_or_else(|| error("the file is empty".into()))?;
    let value = document.value.map_err(|e| error(e.to_string()))?;
    serde_json::from_value(value).map_err(|e| error(format!("it is not a PolicyServer: {e}")))
}
