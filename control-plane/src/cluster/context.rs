//! Objects of the cluster that policies read, in a cluster.

use assent_context::{
    CollectionSpec,
    sink::{AccessReview, AccessVerdict, ReadError},
};
use assent_controller::contexts::{FollowedCollection, KindRef};
use assent_grpc::context::LiveReads;
use assent_k8s::context::{Follower, LiveReader};
use async_trait::async_trait;
use serde_json::Value;

use crate::context::ContextSource;

/// Live reads by the control plane's own client.
pub(super) struct ClusterReads(pub(super) LiveReader);

impl ContextSource for Follower {
    fn follow_kinds(&self, kinds: Vec<KindRef>) {
        Follower::follow_kinds(self, kinds);
    }

    fn follow_collections(&self, collections: Vec<FollowedCollection>) {
        Follower::follow_collections(self, collections);
    }
}

// === impl ClusterReads ===

#[async_trait]
impl LiveReads for ClusterReads {
    async fn get(
        &self,
        collection: &CollectionSpec,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ReadError> {
        self.0.get(collection, namespace, name).await
    }

    async fn review(&self, review: AccessReview) -> Result<AccessVerdict, ReadError> {
        self.0.review(review).await
    }
}
