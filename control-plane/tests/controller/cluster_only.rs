//! Tests of what only a cluster has: pods, webhook configurations that others edit, workloads,
//! finalizers, forged objects.

mod pods;
mod policies;
mod recovery;
mod revisions;
mod servers;
mod settings;
mod statuses;
mod tenancy;
mod webhooks;

use assent_controller::Kind;
use serde_json::Value;

use crate::{cluster::ClusterWorld, harness::Harness, world::Changes};

pub(crate) type Cluster = Harness<ClusterWorld>;

impl Cluster {
    /// The API server's objects change, and the watch reports it.
    pub(crate) fn cluster(
        &mut self,
        change: impl FnOnce(&mut ClusterWorld) -> Changes<ClusterWorld>,
    ) {
        let changes = change(&mut self.world);
        self.observe(changes);
    }

    pub(crate) fn apply(&mut self, kind: Kind, object: Value) {
        self.cluster(|world| world.apply(kind, object));
    }

    pub(crate) fn edit(&mut self, kind: Kind, path: &str, edit: impl FnOnce(&mut Value)) {
        self.cluster(|world| world.edit(kind, path, edit));
    }

    pub(crate) fn gone(&mut self, kind: Kind, path: &str) {
        self.cluster(|world| world.gone(kind, path));
    }
}
