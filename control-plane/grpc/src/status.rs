//! `ClientStatusService`: what each replica serves, and what it rejected.

use std::{sync::Arc, time::Duration};

use assent_proto::v1::{
    self, ClientStatusRequest, ClientStatusResponse, ListPolicyServersRequest,
    ListPolicyServersResponse, client_status_service_server,
};
use futures::stream::{self, BoxStream, StreamExt as _};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::{Request, Response, Status};

use crate::{
    auth::{Access, Authenticator, Gate},
    from_proto,
    hub::{Hub, not_found},
};

mod page;
mod to_proto;

pub use assent_proto::v1::client_status_service_server::ClientStatusServiceServer;
pub use page::{ConditionRow, Page, PolicyRow, Query, ReplicaRow};

/// Replicas per page, if the request does not ask for a number.
const PAGE_SIZE: usize = 100;

/// Replicas per page at most.
const MAX_PAGE_SIZE: usize = 1_000;

/// Replicas in a response of a stream that does not ask for a number: as many as fit the message
/// limit of a client.
const STREAM_PAGE_SIZE: usize = 5_000;

/// The least time between two responses of a stream: no reader is faster.
const STREAM_INTERVAL: Duration = Duration::from_millis(100);

/// The source of the state.
#[tonic::async_trait]
pub trait StatusSource: Send + Sync + 'static {
    /// The answer to `query`; `None` if there is no such PolicyServer.
    async fn client_status(&self, query: Query) -> Result<Option<Page>, Unavailable>;

    /// The names of the PolicyServers, in order.
    async fn servers(&self) -> Result<Vec<String>, Unavailable>;

    /// Changes whenever an answer may have changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The state is not available now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// The service.
#[derive(Clone)]
pub struct ClientStatus {
    hub: Hub,
    gate: Gate,
    source: Arc<dyn StatusSource>,
}

/// A stream of responses.
struct Follower {
    hub: Hub,
    source: Arc<dyn StatusSource>,
    query: Query,
    changes: watch::Receiver<u64>,
    epoch: watch::Receiver<u64>,
    last: Option<ClientStatusResponse>,
    not_before: Instant,
    over: bool,
}

// === impl ClientStatus ===

impl ClientStatus {
    /// Serves the state of `source` to callers that `authenticator` accepts.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        source: Arc<dyn StatusSource>,
    ) -> ClientStatusServiceServer<Self> {
        ClientStatusServiceServer::new(Self {
            hub,
            gate: Gate::new(authenticator),
            source,
        })
    }

    async fn admit(
        &self,
        request: Request<ClientStatusRequest>,
        default: usize,
        max: usize,
    ) -> Result<Query, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Read).await?;
        let query = query(request.into_inner(), default, max)?;
        caller.principal.check_server(&query.server)?;
        Ok(query)
    }
}

#[tonic::async_trait]
impl client_status_service_server::ClientStatusService for ClientStatus {
    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        let query = self.admit(request, PAGE_SIZE, MAX_PAGE_SIZE).await?;
        let (server, is_first) = (query.server.clone(), query.after.is_none());
        let page = self.source.client_status(query).await?;
        let page = page.ok_or_else(|| not_found(&server))?;
        let context = self.hub.context();
        let marks = |replica: &str| context.acknowledged(&server, replica);
        let mut response = to_proto::response(&page, marks);
        if is_first {
            let collections = context.marks_of(&server);
            response.collections = collections.iter().map(to_proto::collection).collect();
        }
        Ok(Response::new(response))
    }

    async fn list_policy_servers(
        &self,
        request: Request<ListPolicyServersRequest>,
    ) -> Result<Response<ListPolicyServersResponse>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Read).await?;
        let mut policy_servers = self.source.servers().await?;
        // A replica knows of its own only.
        policy_servers.retain(|server| caller.principal.check_server(server).is_ok());
        Ok(Response::new(ListPolicyServersResponse { policy_servers }))
    }

    type StreamClientStatusStream = BoxStream<'static, Result<ClientStatusResponse, Status>>;

    async fn stream_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let query = self
            .admit(request, STREAM_PAGE_SIZE, STREAM_PAGE_SIZE)
            .await?;
        let follower = Follower {
            hub: self.hub.clone(),
            source: self.source.clone(),
            query,
            changes: self.source.changes(),
            epoch: self.hub.epoch(),
            last: None,
            not_before: Instant::now(),
            over: false,
        };
        Ok(Response::new(
            stream::unfold(follower, Follower::next).boxed(),
        ))
    }
}

// === impl Follower ===

impl Follower {
    /// The next response that differs from the last one.
    async fn next(mut self) -> Option<(Result<ClientStatusResponse, Status>, Self)> {
        if self.over {
            return None;
        }
        loop {
            match self.step().await {
                Ok(Some(response)) => return Some((Ok(response), self)),
                Ok(None) => {}
                Err(status) => {
                    self.over = true;
                    return Some((Err(status), self));
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<ClientStatusResponse>, Status> {
        if self.last.is_some() {
            self.wait().await?;
        }
        self.hub.check_serving()?;
        let page = self.source.client_status(self.query.clone()).await?;
        let page = page.ok_or_else(|| not_found(&self.query.server))?;
        let (context, server) = (self.hub.context(), &self.query.server);
        let response = to_proto::response(&page, |name| context.acknowledged(server, name));
        if self.last.as_ref() == Some(&response) {
            return Ok(None);
        }
        self.last = Some(response.clone());
        self.not_before = Instant::now() + STREAM_INTERVAL;
        Ok(Some(response))
    }

    async fn wait(&mut self) -> Result<(), Status> {
        let changed = tokio::select! {
            changed = self.changes.changed() => changed,
            changed = self.epoch.changed() => changed,
        };
        changed.map_err(|_| Status::unavailable("the control plane is ending: connect again"))?;
        sleep_until(self.not_before).await;
        self.changes.borrow_and_update();
        self.epoch.borrow_and_update();
        Ok(())
    }
}

// === impl Unavailable ===

impl From<Unavailable> for Status {
    fn from(error: Unavailable) -> Self {
        Status::unavailable(error.to_string())
    }
}

fn query(request: ClientStatusRequest, default: usize, max: usize) -> Result<Query, Status> {
    let unset = |text: String| Some(text).filter(|text| !text.is_empty());
    let states = request.states.iter().map(|state| {
        let state = v1::ReplicaState::try_from(*state)
            .ok()
            .and_then(to_proto::state_of);
        state.ok_or_else(|| Status::invalid_argument("`states` has a value that is no state"))
    });
    let limit = match usize::try_from(request.page_size).unwrap_or(max) {
        0 => default,
        size => size.min(max),
    };
    Ok(Query {
        states: states.collect::<Result<_, _>>()?,
        server: from_proto::server_or_default(request.policy_server),
        policy: unset(request.policy),
        replica: unset(request.replica),
        limit,
        after: unset(request.page_token),
    })
}
