//! Envoy's client status (CSDS): the fleet for tools that know xDS.
//!
//! It shows a part of what [`crate::status`] reports, to the same callers: one client per replica,
//! with one resource per revision that is published for its PolicyServer. Resources have no
//! content, because settings may be confidential. The protocol has no pages, so an answer that
//! would be too large is refused with advice on how to make it smaller.

use std::sync::Arc;

use assent_core::Snapshot;
use assent_proto::envoy::service::status::v3::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse,
    client_status_discovery_service_server::ClientStatusDiscoveryService,
};
use futures::stream::{self, BoxStream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    auth::{Access, Authenticator, Gate, Principal},
    hub::Hub,
    status::{Query, StatusSource},
};

mod matcher;
mod to_proto;

use matcher::Matcher;

pub use assent_proto::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryServiceServer;

/// Resources in one answer at most. Each takes about 190 bytes, and clients of gRPC accept
/// messages of 4 MiB unless they are told otherwise.
const MAX_RESOURCES: usize = 20_000;

/// Replicas that are read at a time.
const PAGE_SIZE: usize = 1_000;

/// The service.
#[derive(Clone)]
pub struct Csds {
    hub: Hub,
    gate: Gate,
    source: Arc<dyn StatusSource>,
}

/// A stream of requests, and who sends them.
struct Conversation {
    service: Csds,
    caller: Principal,
    requests: Streaming<ClientStatusRequest>,
    over: bool,
}

// === impl Csds ===

impl Csds {
    /// Serves the state of `source` to callers that `authenticator` accepts.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        source: Arc<dyn StatusSource>,
    ) -> ClientStatusDiscoveryServiceServer<Self> {
        ClientStatusDiscoveryServiceServer::new(Self {
            hub,
            gate: Gate::new(authenticator),
            source,
        })
    }

    async fn answer(
        &self,
        caller: &Principal,
        request: ClientStatusRequest,
    ) -> Result<ClientStatusResponse, Status> {
        self.hub.check_serving()?;
        let matcher = Matcher::try_from(request.node_matchers)?;
        let mut clients = Vec::new();
        let mut room = MAX_RESOURCES;
        for (server, snapshot) in self.hub.snapshots() {
            if caller.check_server(&server).is_ok() {
                let found = self
                    .clients(&server, &snapshot, &matcher, &mut room)
                    .await?;
                clients.extend(found);
            }
        }
        Ok(ClientStatusResponse { config: clients })
    }

    /// The replicas of one PolicyServer.
    async fn clients(
        &self,
        server: &str,
        snapshot: &Snapshot,
        matcher: &Matcher,
        room: &mut usize,
    ) -> Result<Vec<ClientConfig>, Status> {
        let mut clients = Vec::new();
        let mut query = Query {
            server: server.to_owned(),
            limit: PAGE_SIZE,
            ..Query::default()
        };
        // A PolicyServer that was removed meanwhile has no page.
        while let Some(page) = self.source.client_status(query.clone()).await? {
            for row in page
                .replicas
                .iter()
                .filter(|row| matcher.matches(&row.name))
            {
                *room = room
                    .checked_sub(snapshot.policies().len().max(1))
                    .ok_or_else(too_large)?;
                clients.push(to_proto::client(server, row, snapshot));
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        Ok(clients)
    }
}

#[tonic::async_trait]
impl ClientStatusDiscoveryService for Csds {
    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Read).await?;
        let answer = self.answer(&caller.principal, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    type StreamClientStatusStream = BoxStream<'static, Result<ClientStatusResponse, Status>>;

    async fn stream_client_status(
        &self,
        request: Request<Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Read).await?;
        let conversation = Conversation {
            service: self.clone(),
            caller: caller.principal,
            requests: request.into_inner(),
            over: false,
        };
        Ok(Response::new(
            stream::unfold(conversation, Conversation::next).boxed(),
        ))
    }
}

// === impl Conversation ===

impl Conversation {
    /// The answer to the next request. The stream ends with the first error.
    async fn next(mut self) -> Option<(Result<ClientStatusResponse, Status>, Self)> {
        if self.over {
            return None;
        }
        let answer = match self.requests.message().await {
            Ok(Some(request)) => self.service.answer(&self.caller, request).await,
            Ok(None) => return None,
            Err(status) => Err(status),
        };
        self.over = answer.is_err();
        Some((answer, self))
    }
}

fn too_large() -> Status {
    Status::resource_exhausted(format!(
        "the answer has more than {MAX_RESOURCES} resources: name fewer replicas in `node_matchers`, \
         or use assent.discovery.v1.ClientStatusService, which has pages"
    ))
}
