//! What a leader keeps in order besides policies: its own webhook configurations, the CA bundle
//! where pods read it, the `default` PolicyServer.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use assent_api::PolicyServer;
use assent_k8s::{
    admission::configurations::{self, Input, Reach},
    certificates::{self, Authority},
    names,
    webhook::Site,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;
use tracing::{info, warn};

use super::known::Known;

/// How often everything is looked at again.
const EVERY: Duration = Duration::from_secs(60);

/// How soon a failed chore is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What the chores need to know.
#[derive(Clone)]
pub(super) struct Chores {
    pub(super) client: Client,
    pub(super) site: Site,
    pub(super) reach: Reach,
    pub(super) authority: watch::Receiver<Arc<Authority>>,
    pub(super) known: Known,
    pub(super) default_server: Option<PathBuf>,
    /// Whether our own webhooks are asked: true once this term has written them.
    pub(super) asked: watch::Sender<bool>,
}

// === impl Chores ===

impl Chores {
    /// Keeps everything in order for as long as it is polled.
    pub(super) async fn run(mut self) {
        let mut seen = self.known.changes();
        self.asked.send_replace(false);
        loop {
            let wait = match self.once().await {
                Ok(()) => EVERY,
                Err(error) => {
                    warn!("failed to keep our own objects in order, tried again: {error:#}");
                    RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Ok(()) = self.authority.changed() => {}
                Ok(()) = seen.changed() => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    async fn once(&mut self) -> anyhow::Result<()> {
        let authority = self.authority.borrow_and_update().clone();
        self.site.ca_bundle = authority.bundle_pem().as_bytes().to_vec();
        let mut namespaces: BTreeSet<String> = self.known.injected_namespaces();
        namespaces.insert(self.site.namespace.clone());
        for namespace in namespaces {
            let published =
                certificates::publish_bundle(&self.client, &namespace, authority.bundle_pem());
            if let Err(error) = published.await {
                // A namespace that is allowed need not exist.
                warn!(%namespace, "failed to publish the CA bundle: {error}");
            }
        }
        let input = Input {
            reach: self.reach.clone(),
            namespace: self.site.namespace.clone(),
            namespace_uid: self.site.namespace_uid.clone(),
            ca_bundle: self.site.ca_bundle.clone(),
            service_accounts: self.site.service_accounts.clone(),
        };
        self.apply(&configurations::validating(&input)).await?;
        self.apply(&configurations::defaults(&input)).await?;
        self.apply(&configurations::injector(&input)).await?;
        self.asked.send_replace(true);
        self.make_default_server().await
    }

    async fn apply<K>(&self, object: &K) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let name = object.meta().name.clone().unwrap_or_default();
        let params = PatchParams::apply(names::FIELD_MANAGER).force();
        let applied = api.patch(&name, &params, &Patch::Apply(object)).await;
        applied.with_context(|| format!("failed to apply {} {name}", K::kind(&())))?;
        Ok(())
    }

    /// Makes the server that the installation is configured with, if there is none; what people
    /// changed about it is theirs.
    async fn make_default_server(&self) -> anyhow::Result<()> {
        let Some(path) = &self.default_server else {
            return Ok(());
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let document = assent_api::yaml::load(&text).into_iter().next();
        let document = document.with_context(|| format!("{} is empty", path.display()))?;
        let value = document
            .value
            .map_err(|e| anyhow::anyhow!("failed to read {}: {e}", path.display()))?;
        let server: PolicyServer = serde_json::from_value(value)
            .with_context(|| format!("{} is not a PolicyServer", path.display()))?;
        let api: Api<PolicyServer> = Api::all(self.client.clone());
        let name = server.metadata.name.clone().unwrap_or_default();
        if api.get_opt(&name).await?.is_some() {
            return Ok(());
        }
        match api.create(&PostParams::default(), &server).await {
            Ok(_) => info!(%name, "made the policy server that the installation asks for"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error).context("failed to make the default PolicyServer"),
        }
        Ok(())
    }
}
