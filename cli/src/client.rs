//! A client of a running control plane.

use std::{fmt, time::Duration};

use anyhow::{Context as _, bail};
use assent_proto::v1::{
    ClientStatusRequest, ClientStatusResponse, CollectionStatus, ListPolicyServersRequest,
    PolicyStatus, ReplicaStatus, client_status_service_client::ClientStatusServiceClient,
    rollout_service_client::RolloutServiceClient,
};
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

#[cfg(feature = "cluster")]
mod cluster;
mod direct;
mod target;

pub(crate) use target::ServerArgs;

/// An open connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    channel: InterceptedService<Channel, Token>,
    origin: Origin,
    /// The only PolicyServer to query; all if absent.
    policy_server: Option<String>,
}

/// Where a control plane was found, for messages.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// At this address.
    Url(String),
    /// In a cluster.
    #[cfg(feature = "cluster")]
    Cluster {
        /// The context of the kubeconfig.
        context: String,
        /// The leader's pod.
        pod: String,
    },
}

/// Adds the bearer token to every call.
#[derive(Clone, Debug)]
pub(crate) struct Token(Option<MetadataValue<Ascii>>);

/// All pages of a response.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) policy_server: String,
    pub(crate) version: String,
    pub(crate) policies: Vec<PolicyStatus>,
    pub(crate) replicas: Vec<ReplicaStatus>,
    pub(crate) collections: Vec<CollectionStatus>,
}

/// A host that is down does not answer at all.
const CONNECT: Duration = Duration::from_secs(5);

/// Even a busy control plane answers in milliseconds.
const CALL: Duration = Duration::from_secs(30);

/// Room for about ten thousand policies with all their conditions.
const MAX_ANSWER: usize = 64 << 20;

/// Replicas per page: the maximum of the protocol.
const PAGE: u32 = 1_000;

/// The PolicyServer of a control plane that cannot list them.
const DEFAULT_SERVER: &str = "default";

// === impl Client ===

impl Client {
    fn new(channel: Channel, token: Token, origin: Origin, policy_server: Option<String>) -> Self {
        Self {
            channel: InterceptedService::new(channel, token),
            origin,
            policy_server,
        }
    }

    /// The PolicyServers to query, in order.
    pub(crate) async fn servers(&self) -> anyhow::Result<Vec<String>> {
        if let Some(server) = &self.policy_server {
            return Ok(vec![server.clone()]);
        }
        let mut statuses = self.statuses();
        let listed = statuses.list_policy_servers(ListPolicyServersRequest {});
        match self.call(listed).await {
            Ok(answer) => Ok(answer.policy_servers),
            // A control plane that is older than this call.
            Err(status) if status.code() == Code::Unimplemented => {
                Ok(vec![DEFAULT_SERVER.to_owned()])
            }
            Err(status) => Err(self.failed(&status)),
        }
    }

    /// One policy with all replicas of its PolicyServer; `None` if no server has it.
    pub(crate) async fn find(&self, policy: &str) -> anyhow::Result<Option<Answer>> {
        for server in self.servers().await? {
            let answer = self.everything(&server, policy, Vec::new()).await?;
            if answer.policies.iter().any(|found| found.policy == policy) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// The PolicyServer of a policy; the first one if none has it.
    pub(crate) async fn server_of(&self, policy: &str) -> anyhow::Result<String> {
        let servers = self.servers().await?;
        let first = servers.first().cloned();
        if servers.len() > 1 {
            for server in servers {
                let request = ClientStatusRequest {
                    policy: policy.to_owned(),
                    ..request(&server, 1)
                };
                let found = self.fetch(request).await?.policies;
                if found.iter().any(|found| found.policy == policy) {
                    return Ok(server);
                }
            }
        }
        Ok(first.unwrap_or_else(|| DEFAULT_SERVER.to_owned()))
    }

    pub(crate) fn rollouts(&self) -> RolloutServiceClient<InterceptedService<Channel, Token>> {
        RolloutServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    fn statuses(&self) -> ClientStatusServiceClient<InterceptedService<Channel, Token>> {
        ClientStatusServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    /// Waits for the response, with a deadline.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let answered = tokio::time::timeout(CALL, call).await;
        let late = |_| Status::deadline_exceeded(format!("no response after {} s", CALL.as_secs()));
        Ok(answered.map_err(late)??.into_inner())
    }

    /// Fetches the policies of a PolicyServer, without replicas.
    pub(crate) async fn policies(&self, server: &str) -> anyhow::Result<Answer> {
        // All policies are on the first page; the smallest page has one replica.
        let page = self.fetch(request(server, 1)).await?;
        let mut answer = Answer::of(server);
        answer.add(page);
        Ok(answer)
    }

    /// Fetches all replicas, and one policy, or all policies if `policy` is empty.
    pub(crate) async fn everything(
        &self,
        server: &str,
        policy: &str,
        states: Vec<i32>,
    ) -> anyhow::Result<Answer> {
        let mut answer = Answer::of(server);
        let mut token = String::new();
        loop {
            let page = self
                .fetch(ClientStatusRequest {
                    policy: policy.to_owned(),
                    states: states.clone(),
                    page_token: token.clone(),
                    ..request(server, PAGE)
                })
                .await?;
            let next = page.next_page_token.clone();
            answer.add(page);
            if next.is_empty() {
                return Ok(answer);
            }
            if next == token {
                bail!(
                    "failed to read the replicas: the control plane returned the same page twice"
                );
            }
            token = next;
        }
    }

    /// Streams the state of one policy at each change.
    pub(crate) async fn follow(
        &self,
        server: &str,
        policy: &str,
    ) -> Result<Streaming<ClientStatusResponse>, Status> {
        let request = ClientStatusRequest {
            policy: policy.to_owned(),
            ..request(server, 1)
        };
        self.stream(request).await
    }

    /// Streams the response to a request at each change.
    pub(crate) async fn stream(
        &self,
        request: ClientStatusRequest,
    ) -> Result<Streaming<ClientStatusResponse>, Status> {
        let mut statuses = self.statuses();
        self.call(statuses.stream_client_status(request)).await
    }

    async fn fetch(&self, request: ClientStatusRequest) -> anyhow::Result<ClientStatusResponse> {
        let mut statuses = self.statuses();
        let answered = self.call(statuses.fetch_client_status(request)).await;
        answered.map_err(|status| self.failed(&status))
    }

    /// Describes a failed call and suggests what to do.
    pub(crate) fn failed(&self, status: &Status) -> anyhow::Error {
        let leader = status.metadata().get(LEADER);
        let leader = leader.and_then(|value| value.to_str().ok());
        anyhow::anyhow!(
            "failed to query {}: {}{}",
            self.origin,
            status.message(),
            self.origin.advice(status.code(), leader)
        )
    }
}

/// Metadata key with the leader's address, in responses of a standby.
const LEADER: &str = "assent-leader";

// === impl Answer ===

impl Answer {
    fn of(policy_server: &str) -> Self {
        Self {
            policy_server: policy_server.to_owned(),
            ..Self::default()
        }
    }

    fn add(&mut self, page: ClientStatusResponse) {
        self.version = page.version_info;
        self.policies.extend(page.policies);
        self.replicas.extend(page.replicas);
        self.collections.extend(page.collections);
    }
}

// === impl Origin ===

impl Origin {
    /// What to do about a failed call.
    fn advice(&self, code: Code, leader: Option<&str>) -> String {
        match (code, leader) {
            (Code::NotFound, _) => "; specify the PolicyServer with --policy-server".to_owned(),
            #[cfg(feature = "cluster")]
            (Code::Unauthenticated | Code::PermissionDenied, _)
                if matches!(self, Self::Cluster { .. }) =>
            {
                "; check that the ServiceAccount assent-viewer has its ClusterRoleBinding: upgrade the chart with roles.create=true"
                    .to_owned()
            }
            (Code::Unauthenticated, _) => "; pass a token with --token-file FILE \
                 (`assent up` keeps one in the file `token` of its state directory)"
                .to_owned(),
            (Code::PermissionDenied, _) => {
                "; use a token with access to policyservers/discovery".to_owned()
            }
            (Code::Unimplemented, _) => {
                "; check that this is the discovery address of a control plane".to_owned()
            }
            (Code::Unavailable, Some(leader)) => match self {
                Self::Url(_) => format!("; use the leader: --server {leader}"),
                #[cfg(feature = "cluster")]
                Self::Cluster { .. } => "; the leader changes: try again".to_owned(),
            },
            _ => String::new(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            #[cfg(feature = "cluster")]
            Self::Cluster { context, pod } => write!(f, "the pod {pod} of the cluster {context}"),
        }
    }
}

// === impl Token ===

impl Token {
    fn none() -> Self {
        Self(None)
    }

    /// `None` if the text cannot be a token.
    fn new(token: &str) -> Option<Self> {
        let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().ok()?;
        value.set_sensitive(true);
        Some(Self(Some(value)))
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Runs a command that queries a control plane.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .context("failed to start the runtime")?
        .block_on(future)
}

/// Time limits and the name of this program, for every connection.
fn prepare(endpoint: Endpoint) -> anyhow::Result<Endpoint> {
    Ok(endpoint
        .connect_timeout(CONNECT)
        // Detects a control plane that vanished while something is being watched.
        .http2_keep_alive_interval(Duration::from_secs(15))
        .keep_alive_timeout(Duration::from_secs(10))
        .user_agent(concat!("assent/", env!("CARGO_PKG_VERSION")))?)
}

/// A request for everything of a PolicyServer.
pub(crate) fn request(server: &str, page_size: u32) -> ClientStatusRequest {
    ClientStatusRequest {
        policy_server: server.to_owned(),
        page_size,
        ..ClientStatusRequest::default()
    }
}

/// The innermost cause. The errors around it only say "transport error".
fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
