//! Objects from files as the content of a cluster, for policies that read other objects.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use assent_context::Cluster;
use assent_core::{PolicyKey, policy::ContextResource};
use assent_evaluator::context::{ContextData, FixedReads, LiveReads, Subject, with_objects};
use assent_local::objects;
use assent_wasm::{HostServices, Inspection};
use serde_json::Value;

use crate::module::Loaded;

/// Objects that a policy can read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ObjectsArgs {
    /// Kubernetes objects that the policy can read: a YAML or JSON file, or a directory of them. Kinds that are not
    /// built in need their CustomResourceDefinition among them
    #[arg(long, value_name = "DIR|FILE")]
    objects: Option<PathBuf>,

    /// Answer access reviews of the policy (kubernetes/can_i) with yes instead of no
    #[arg(long)]
    allow_all_access: bool,
}

/// What a policy can know of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterContent {
    /// None if nobody gave objects, which is not the same as a cluster without objects.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) allow_all_access: bool,
}

// === impl ObjectsArgs ===

impl ObjectsArgs {
    /// Reads the objects.
    pub(crate) fn read(&self) -> anyhow::Result<ClusterContent> {
        let cluster = self.objects.as_deref().map(read_files).transpose()?;
        Ok(ClusterContent {
            cluster,
            allow_all_access: self.allow_all_access,
        })
    }
}

/// Reads a file, or the files of a directory.
pub(crate) fn read_files(path: &Path) -> anyhow::Result<Arc<Cluster>> {
    let read = objects::read(path).context("failed to read the objects")?;
    Ok(Arc::new(read))
}

/// Objects that are written in a case.
pub(crate) fn read_values(objects: &[Value]) -> anyhow::Result<Arc<Cluster>> {
    let cluster = Cluster::new(objects.iter().cloned());
    Ok(Arc::new(cluster.context("objects")?))
}

// === impl ClusterContent ===

impl ClusterContent {
    /// The services of a policy, with the objects that it declares. Without objects, a policy that must see some is
    /// refused: it might allow what it denies in a cluster.
    pub(crate) fn connect(
        &self,
        services: &Arc<HostServices>,
        loaded: &Loaded,
        inspection: &Inspection,
        capabilities: &[String],
    ) -> anyhow::Result<Arc<HostServices>> {
        let name = loaded.name();
        let Some(cluster) = &self.cluster else {
            if let Some(why) = reads_objects(loaded, inspection) {
                bail!(
                    "{name} was not evaluated: {why}, and there are no Kubernetes objects here; without them the \
                     policy might allow what it denies in a cluster. Give them with --objects, or as `objects` of a case"
                );
            }
            return Ok(match self.allow_all_access {
                true => self.services(services, loaded, Vec::new(), Vec::new(), capabilities),
                false => services.clone(),
            });
        };
        let declared = declared(loaded, inspection);
        if declared.is_empty() && inspection.required_context().is_some() {
            bail!(
                "{name} was not evaluated: it reads other objects, and declares no kind; use a manifest with \
                 spec.contextAwareResources"
            );
        }
        let collections = declared.iter().map(|kind| cluster.collection(kind));
        let snapshots: Result<Vec<_>, _> = collections
            .map(|collection| collection.map(|mut collection| collection.snapshot()))
            .collect();
        let snapshots = snapshots.context("spec.contextAwareResources")?;
        Ok(self.services(services, loaded, snapshots, declared, capabilities))
    }

    fn services(
        &self,
        services: &Arc<HostServices>,
        loaded: &Loaded,
        snapshots: Vec<assent_context::Snapshot>,
        declared: Vec<ContextResource>,
        capabilities: &[String],
    ) -> Arc<HostServices> {
        let data = Arc::new(ContextData::fixed(snapshots));
        let live: Arc<dyn LiveReads> = Arc::new(FixedReads {
            data: data.clone(),
            allow_all_access: self.allow_all_access,
        });
        let policy = loaded.policy.as_ref().map(|policy| policy.key.clone());
        let subject = Subject {
            policy: policy.unwrap_or_else(|| PolicyKey::cluster("policy")),
            revision: Arc::default(),
            declared,
            capabilities: capabilities.to_vec(),
        };
        Arc::new(with_objects(services, subject, &data, &live))
    }
}

/// Why the policy must see other objects, if it must.
fn reads_objects(loaded: &Loaded, inspection: &Inspection) -> Option<String> {
    let declared = loaded.policy.as_ref().map(|p| &p.context_resources);
    let declared = declared.filter(|kinds| !kinds.is_empty()).map(|kinds| {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|one| format!("{} ({})", one.kind, one.api_version))
            .collect();
        format!("spec.contextAwareResources names {}", kinds.join(", "))
    });
    declared.or_else(|| inspection.required_context())
}

/// What the manifest declares, or the module if there is no manifest.
fn declared(loaded: &Loaded, inspection: &Inspection) -> Vec<ContextResource> {
    if let Some(policy) = &loaded.policy {
        return policy.context_resources.clone();
    }
    let metadata = inspection.metadata.iter();
    let kinds = metadata.flat_map(|metadata| &metadata.context_aware_resources);
    kinds
        .map(|kind| ContextResource {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
            ..ContextResource::default()
        })
        .collect()
}
