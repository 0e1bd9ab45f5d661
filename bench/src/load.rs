//! One load client that drives thousands of streams.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use assent_proto::{
    google::rpc,
    v1::{
        DeltaPolicyDiscoveryRequest, DeltaPolicyDiscoveryResponse, FetchModuleRequest, Node,
        RejectedPolicy, Stage, module_service_client::ModuleServiceClient,
        policy_discovery_service_client::PolicyDiscoveryServiceClient,
    },
};
use futures::{StreamExt as _, stream};
use prost::Message as _;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// Streams that are opened at once: a listen queue holds about so many.
const OPENING: usize = 64;

/// What a client does with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Acknowledges it.
    Honest,
    /// Refuses every policy that it brings.
    Rejecting,
    /// Stops reading after the first.
    Stuck,
    /// Fetches the modules of what it is sent, then acknowledges it.
    Fetching,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Responses.
    pub(crate) responses: AtomicU64,
    /// Policies in them.
    pub(crate) resources: AtomicU64,
    /// Bytes of the messages.
    pub(crate) bytes: AtomicU64,
    /// Bytes of modules that were fetched.
    pub(crate) modules: AtomicU64,
    /// Responses that rejecting clients got.
    pub(crate) rejected: AtomicU64,
}

/// Open streams; they end when this is dropped.
pub(crate) struct Load {
    /// What they saw.
    pub(crate) seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

// === impl Load ===

impl Load {
    /// Opens streams of clients with these numbers; each has a connection of its own, as evaluators have. They reconnect
    /// with what they hold for as long as they live.
    pub(crate) async fn open(
        address: SocketAddr,
        clients: Range<usize>,
        manner: impl Fn(usize) -> Manner,
    ) -> anyhow::Result<Self> {
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        let clients: Vec<(usize, Manner)> = clients.map(|n| (n, manner(n))).collect();
        let mut opening = stream::iter(clients)
            .map(|(n, manner)| async move {
                Ok::<_, anyhow::Error>((n, manner, connect(address).await?))
            })
            .buffer_unordered(OPENING);
        while let Some(opened) = opening.next().await {
            let (n, manner, channel) = opened?;
            let client = Client {
                id: format!("replica-{n}"),
                manner,
                version: String::new(),
                seen: seen.clone(),
            };
            tasks.spawn(client.live(channel, address));
        }
        Ok(Self {
            seen,
            _tasks: tasks,
        })
    }
}

struct Client {
    id: String,
    manner: Manner,
    /// The last version that was taken.
    version: String,
    seen: Arc<Seen>,
}

// === impl Client ===

impl Client {
    async fn live(mut self, mut channel: Channel, address: SocketAddr) {
        loop {
            // Whatever ended the stream, the client comes back.
            let _ = self.follow(channel).await;
            channel = loop {
                // Spread over a second, as jitter spreads evaluators.
                let jitter = u64::from(self.id.bytes().map(u32::from).sum::<u32>() % 1_000);
                tokio::time::sleep(Duration::from_millis(jitter)).await;
                if let Ok(channel) = connect(address).await {
                    break channel;
                }
            };
        }
    }

    async fn follow(&mut self, channel: Channel) -> Result<(), tonic::Status> {
        let (requests, outgoing) = mpsc::channel(2);
        let first = DeltaPolicyDiscoveryRequest {
            node: Some(Node {
                id: self.id.clone(),
                instance_uid: self.id.clone(),
                ..Node::default()
            }),
            version_info: self.version.clone(),
            ..DeltaPolicyDiscoveryRequest::default()
        };
        // There is room for two.
        let _ = requests.send(first).await;
        let mut client = PolicyDiscoveryServiceClient::new(channel.clone());
        let responses = client.delta_policies(ReceiverStream::new(outgoing)).await?;
        let mut responses = responses.into_inner();
        while let Some(response) = responses.message().await? {
            self.count(&response);
            if self.manner == Manner::Fetching && !self.version.is_empty() {
                self.fetch(&channel, &response).await?;
            }
            let answer = self.answer(&response);
            if requests.send(answer).await.is_err() {
                return Ok(());
            }
            if self.manner == Manner::Stuck {
                std::future::pending::<()>().await;
            }
        }
        Ok(())
    }

    /// Fetches as an evaluator does, but does not hash: the server's work is measured.
    async fn fetch(
        &self,
        channel: &Channel,
        response: &DeltaPolicyDiscoveryResponse,
    ) -> Result<(), tonic::Status> {
        let mut client = ModuleServiceClient::new(channel.clone());
        for policy in &response.policies {
            let request = FetchModuleRequest {
                digest: policy.module_digest.clone(),
                ..FetchModuleRequest::default()
            };
            let mut chunks = client.fetch_module(request).await?.into_inner();
            while let Some(chunk) = chunks.message().await? {
                let bytes = chunk.data.len() as u64;
                self.seen.modules.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn count(&self, response: &DeltaPolicyDiscoveryResponse) {
        let seen = &self.seen;
        seen.responses.fetch_add(1, Ordering::Relaxed);
        seen.resources
            .fetch_add(response.policies.len() as u64, Ordering::Relaxed);
        seen.bytes
            .fetch_add(response.encoded_len() as u64, Ordering::Relaxed);
        if self.manner == Manner::Rejecting {
            seen.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn answer(&mut self, response: &DeltaPolicyDiscoveryResponse) -> DeltaPolicyDiscoveryRequest {
        let rejects = self.manner == Manner::Rejecting && !self.version.is_empty();
        if !rejects {
            self.version.clone_from(&response.version_info);
        }
        let refused = rpc::Status {
            code: 3,
            message: "refused by the load client".into(),
            details: Vec::new(),
        };
        let rejected = response
            .policies
            .iter()
            .filter(|_| rejects)
            .map(|p| RejectedPolicy {
                revision: p.revision.clone(),
                stage: Stage::Settings.into(),
                status: Some(refused.clone()),
                retryable: false,
            });
        DeltaPolicyDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            version_info: if rejects {
                String::new()
            } else {
                response.version_info.clone()
            },
            rejected: rejected.collect(),
            error_detail: rejects.then_some(refused),
            ..DeltaPolicyDiscoveryRequest::default()
        }
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint.buffer_size(4);
    endpoint
        .connect()
        .await
        .context("failed to connect; is the limit of open files high enough?")
}
