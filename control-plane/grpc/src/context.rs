//! `ContextService`: objects of the cluster for policies that read them.
//!
//! One task per stream. What a client still has to get is kept beside the collection, so that
//! changes and the mark that covers them are taken under one lock ([`assent_context::feed`]).

use std::sync::Arc;

use assent_proto::v1::{self, context_service_server::ContextService};
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::{
    auth::{Access, Authenticator, Gate},
    hub::Hub,
};

mod clients;
mod hub;
mod metrics;
mod query;
mod stream;

pub use assent_proto::v1::context_service_server::ContextServiceServer;
pub use hub::{Assigned, ContextHub, Limits};
pub use query::LiveReads;

/// The longest message of a client: 64 collections with their buckets have 700 KiB.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The service.
#[derive(Clone)]
pub struct Context {
    hub: Hub,
    gate: Gate,
    queries: Arc<query::Queries>,
}

// === impl Context ===

impl Context {
    /// Serves the collections of `hub` to callers known to `authenticator`; `reads` answers what
    /// must be asked of the API server itself.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        reads: Arc<dyn LiveReads>,
    ) -> ContextServiceServer<Self> {
        let service = Self {
            hub,
            gate: Gate::new(authenticator),
            queries: Arc::new(query::Queries::new(reads)),
        };
        ContextServiceServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES)
    }
}

#[tonic::async_trait]
impl ContextService for Context {
    type StreamContextStream = BoxStream<'static, Result<v1::ContextResponse, Status>>;

    async fn stream_context(
        &self,
        request: Request<Streaming<v1::ContextRequest>>,
    ) -> Result<Response<Self::StreamContextStream>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Stream).await?;
        let (opening, responses) =
            stream::Opening::new(self.hub.clone(), caller, request.into_inner());
        tokio::spawn(opening.run().in_current_span());
        Ok(Response::new(responses))
    }

    async fn query_context(
        &self,
        request: Request<v1::ContextQuery>,
    ) -> Result<Response<v1::ContextAnswer>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Replica).await?;
        let deadline = query::deadline(request.metadata());
        let answer =
            self.queries
                .answer(&self.hub, &caller.principal, request.into_inner(), deadline);
        Ok(Response::new(answer.await?))
    }
}
