//! A scripted control plane over a real socket.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use assent_proto::v1::{
    self, DeltaPolicyDiscoveryRequest, DeltaPolicyDiscoveryResponse,
    module_service_server::{ModuleService, ModuleServiceServer},
    policy_discovery_service_server::{PolicyDiscoveryService, PolicyDiscoveryServiceServer},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::{PATIENCE, QUIET, hash::digest};

type Boxed<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

/// The scripted side.
pub struct Peer {
    addr: SocketAddr,
    streams: mpsc::Receiver<Stream>,
    modules: Modules,
    server: JoinHandle<()>,
}

/// One stream that an evaluator opened.
pub struct Stream {
    /// Its first message.
    pub hello: DeltaPolicyDiscoveryRequest,
    inbound: Streaming<DeltaPolicyDiscoveryRequest>,
    outbound: mpsc::Sender<Result<DeltaPolicyDiscoveryResponse, Status>>,
}

/// Modules by the digest under which they are offered, which may be a lie.
type Modules = Arc<Mutex<HashMap<String, Vec<u8>>>>;

#[derive(Clone)]
struct Service {
    streams: mpsc::Sender<Stream>,
    modules: Modules,
}

// === impl Peer ===

impl Peer {
    /// Listens on a free port.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Listens there.
    pub async fn start_at(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).await.expect("address must be free");
        let addr = listener
            .local_addr()
            .expect("a bound socket must have an address");
        let (sender, streams) = mpsc::channel(16);
        let modules = Modules::default();
        let service = Service {
            streams: sender,
            modules: modules.clone(),
        };
        let router = Server::builder()
            .add_service(PolicyDiscoveryServiceServer::new(service.clone()))
            .add_service(ModuleServiceServer::new(service));
        let incoming = TcpListenerStream::new(listener);
        let server = tokio::spawn(async move {
            router
                .serve_with_incoming(incoming)
                .await
                .expect("the scripted side must serve");
        });
        Self {
            addr,
            streams,
            modules,
            server,
        }
    }

    /// Where it listens, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Makes a module available.
    pub fn serve(&self, wasm: &[u8]) {
        self.serve_as(&digest(wasm), wasm);
    }

    /// Offers bytes under a digest that may be wrong.
    pub fn serve_as(&self, digest: &str, wasm: &[u8]) {
        let mut modules = self.modules.lock().expect("lock must not be poisoned");
        modules.insert(digest.to_owned(), wasm.to_vec());
    }

    /// The next stream that an evaluator opens.
    pub async fn stream(&mut self) -> Stream {
        let stream = timeout(PATIENCE, self.streams.recv()).await;
        stream
            .expect("an evaluator must connect")
            .expect("the scripted side must run")
    }

    /// Stops at once and returns the address.
    pub async fn stop(self) -> SocketAddr {
        self.server.abort();
        let _ = self.server.await;
        self.addr
    }
}

// === impl Stream ===

impl Stream {
    /// Sends a response.
    pub async fn push(&self, response: DeltaPolicyDiscoveryResponse) {
        self.outbound
            .send(Ok(response))
            .await
            .expect("the evaluator must be there");
    }

    /// Ends the stream.
    pub async fn end(self, status: Status) {
        let _ = self.outbound.send(Err(status)).await;
    }

    /// The next answer.
    pub async fn answer(&mut self) -> DeltaPolicyDiscoveryRequest {
        let answer = timeout(PATIENCE, self.inbound.message())
            .await
            .expect("an answer must come");
        answer
            .expect("the stream must go on")
            .expect("the evaluator must not end the stream")
    }

    /// Pushes and expects an ACK.
    pub async fn applied(&mut self, response: DeltaPolicyDiscoveryResponse) {
        let wanted = (response.nonce.clone(), response.version_info.clone());
        self.push(response).await;
        let answer = self.answer().await;
        assert_eq!(answer.error_detail, None, "{answer:?}");
        assert_eq!((answer.response_nonce, answer.version_info), wanted);
    }

    /// Pushes and expects a NACK.
    pub async fn refused(
        &mut self,
        response: DeltaPolicyDiscoveryResponse,
    ) -> DeltaPolicyDiscoveryRequest {
        let nonce = response.nonce.clone();
        self.push(response).await;
        let answer = self.answer().await;
        assert!(answer.error_detail.is_some(), "{answer:?}");
        assert_eq!(answer.response_nonce, nonce);
        answer
    }

    /// Expects no answer for a while.
    pub async fn silent(&mut self) {
        let message = timeout(QUIET, self.inbound.message()).await;
        assert!(message.is_err(), "unexpected: {message:?}");
    }

    /// Waits until the evaluator ends the stream.
    pub async fn ended(&mut self) {
        let ended = async { while let Ok(Some(_)) = self.inbound.message().await {} };
        timeout(PATIENCE, ended)
            .await
            .expect("the evaluator must end the stream");
    }
}

#[tonic::async_trait]
impl PolicyDiscoveryService for Service {
    type StreamPoliciesStream = Boxed<v1::PolicyDiscoveryResponse>;
    type DeltaPoliciesStream = Boxed<DeltaPolicyDiscoveryResponse>;

    async fn stream_policies(
        &self,
        _: Request<Streaming<v1::PolicyDiscoveryRequest>>,
    ) -> Result<Response<Self::StreamPoliciesStream>, Status> {
        Err(Status::unimplemented("evaluators follow differences"))
    }

    async fn delta_policies(
        &self,
        request: Request<Streaming<DeltaPolicyDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaPoliciesStream>, Status> {
        let mut inbound = request.into_inner();
        let hello = inbound.message().await?;
        let hello = hello.ok_or_else(|| Status::invalid_argument("no first message"))?;
        let (outbound, responses) = mpsc::channel(16);
        let stream = Stream {
            hello,
            inbound,
            outbound,
        };
        let _ = self.streams.send(stream).await;
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn fetch_policies(
        &self,
        _: Request<v1::PolicyDiscoveryRequest>,
    ) -> Result<Response<v1::PolicyDiscoveryResponse>, Status> {
        Err(Status::unimplemented("evaluators follow differences"))
    }

    async fn health_check(
        &self,
        _: Request<v1::HealthCheckRequest>,
    ) -> Result<Response<v1::HealthCheckResponse>, Status> {
        Ok(Response::new(v1::HealthCheckResponse {
            known: true,
            interval_ms: 1_000,
            ..v1::HealthCheckResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl ModuleService for Service {
    type FetchModuleStream = Boxed<v1::ModuleChunk>;

    async fn stat_modules(
        &self,
        request: Request<v1::StatModulesRequest>,
    ) -> Result<Response<v1::StatModulesResponse>, Status> {
        let modules = self.modules.lock().expect("lock must not be poisoned");
        let stat = |digest: String| v1::ModuleStat {
            present: modules.contains_key(&digest),
            size: modules.get(&digest).map_or(0, |bytes| bytes.len() as u64),
            digest,
            ..v1::ModuleStat::default()
        };
        let modules = request.into_inner().digests.into_iter().map(stat).collect();
        Ok(Response::new(v1::StatModulesResponse { modules }))
    }

    async fn fetch_module(
        &self,
        request: Request<v1::FetchModuleRequest>,
    ) -> Result<Response<Self::FetchModuleStream>, Status> {
        let v1::FetchModuleRequest { digest, offset, .. } = request.into_inner();
        let modules = self.modules.lock().expect("lock must not be poisoned");
        let bytes = modules.get(&digest).cloned();
        let bytes = bytes.ok_or_else(|| Status::not_found("there is no such module"))?;
        let start = usize::try_from(offset).expect("an offset must fit");
        let total_size = bytes.len() as u64;
        let chunk = move |(n, data): (usize, &[u8])| v1::ModuleChunk {
            data: data.to_vec().into(),
            offset: offset + (n * CHUNK) as u64,
            total_size,
            digest: digest.clone(),
        };
        let chunks: Vec<_> = bytes[start..]
            .chunks(CHUNK)
            .enumerate()
            .map(chunk)
            .map(Ok)
            .collect();
        Ok(Response::new(Box::pin(futures::stream::iter(chunks))))
    }
}

/// As large as the protocol allows.
const CHUNK: usize = 256 << 10;
