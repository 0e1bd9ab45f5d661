//! A control plane that is scripted by the test, over a real socket.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use assent_core::Digest;
use assent_proto::v1::{
    self,
    certificate_service_server::{CertificateService, CertificateServiceServer},
    context_service_server::{ContextService, ContextServiceServer},
    module_service_server::{ModuleService, ModuleServiceServer},
    policy_discovery_service_server::{PolicyDiscoveryService, PolicyDiscoveryServiceServer},
};
use http::Uri;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    service::InterceptorLayer,
    transport::{Server, ServerTlsConfig},
};

use crate::{PATIENCE, set::Revision};

type Boxed<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

/// The scripted side.
pub(crate) struct Peer {
    addr: SocketAddr,
    scheme: &'static str,
    streams: mpsc::Receiver<Stream>,
    context: mpsc::Receiver<ContextStream>,
    pub(crate) shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// One stream that the evaluator opened.
pub(crate) struct Stream {
    pub(crate) hello: v1::DeltaPolicyDiscoveryRequest,
    inbound: Streaming<v1::DeltaPolicyDiscoveryRequest>,
    outbound: mpsc::Sender<Result<v1::DeltaPolicyDiscoveryResponse, Status>>,
}

/// One context stream that the evaluator opened.
pub(crate) struct ContextStream {
    pub(crate) hello: v1::ContextRequest,
    inbound: Streaming<v1::ContextRequest>,
    outbound: mpsc::Sender<Result<v1::ContextResponse, Status>>,
}

/// What calls are answered from.
#[derive(Default)]
pub(crate) struct Shared {
    modules: Mutex<HashMap<String, Vec<u8>>>,
    /// Portable digest to what is offered as artefact, with the digest that is claimed.
    pub(crate) artefacts: Mutex<HashMap<String, (Vec<u8>, String)>>,
    pub(crate) fetches: AtomicUsize,
    /// Break each transfer after its first half.
    pub(crate) break_transfers: AtomicBool,
    pub(crate) health: Mutex<Vec<v1::HealthCheckRequest>>,
    /// What opening a stream is refused with.
    pub(crate) refusal: Mutex<Option<Status>>,
    /// Live reads that were asked for, and what they are answered with.
    pub(crate) queries: Mutex<Vec<v1::ContextQuery>>,
    pub(crate) reply: Mutex<Option<v1::ContextAnswer>>,
}

/// TLS and the token that clients must present.
struct Secure {
    tls: ServerTlsConfig,
    token: String,
}

/// Signs what evaluators ask for, for the name `localhost`.
#[derive(Clone)]
pub(crate) struct Ca(pub(crate) Arc<rcgen::CertifiedIssuer<'static, rcgen::KeyPair>>);

struct Service {
    streams: mpsc::Sender<Stream>,
    context: mpsc::Sender<ContextStream>,
    shared: Arc<Shared>,
}

impl Peer {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        Self::start_as(addr, None, None).await
    }

    /// With TLS, a token that every call needs, and a CA that signs (or none that does).
    pub(crate) async fn start_secure(tls: ServerTlsConfig, token: &str, ca: Option<Ca>) -> Self {
        let secure = Secure {
            tls,
            token: format!("Bearer {token}"),
        };
        Self::start_as("127.0.0.1:0".parse().unwrap(), Some(secure), ca).await
    }

    async fn start_as(addr: SocketAddr, secure: Option<Secure>, ca: Option<Ca>) -> Self {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, streams) = mpsc::channel(16);
        let (context_sender, context) = mpsc::channel(16);
        let shared = Arc::new(Shared::default());
        let service = || Service {
            streams: sender.clone(),
            context: context_sender.clone(),
            shared: shared.clone(),
        };
        let (tls, token) = secure.map(|secure| (secure.tls, secure.token)).unzip();
        let check = move |request: Request<()>| {
            let given = request
                .metadata()
                .get("authorization")
                .map(|value| value.as_bytes());
            match token.as_ref().map(String::as_bytes) {
                expected if expected.is_none() || expected == given => Ok(request),
                _ => Err(Status::unauthenticated("no token")),
            }
        };
        let mut server = Server::builder();
        if let Some(tls) = &tls {
            server = server.tls_config(tls.clone()).unwrap();
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        let signer = ca.map(CertificateServiceServer::new);
        let router = server
            .layer(InterceptorLayer::new(check))
            .add_optional_service(signer)
            .add_service(PolicyDiscoveryServiceServer::new(service()))
            .add_service(ModuleServiceServer::new(service()))
            .add_service(ContextServiceServer::new(service()));
        let server = tokio::spawn(async move {
            router
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self {
            addr,
            scheme,
            streams,
            context,
            shared,
            server,
        }
    }

    pub(crate) fn uri(&self) -> Uri {
        format!("{}://{}", self.scheme, self.addr).parse().unwrap()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Makes a module available.
    pub(crate) fn serve(&self, revision: &Revision) {
        let digest = Digest::of(revision.wasm()).to_string();
        self.shared
            .modules
            .lock()
            .unwrap()
            .insert(digest, revision.wasm().to_vec());
    }

    /// The next stream that the evaluator opens, with its first message.
    pub(crate) async fn stream(&mut self) -> Stream {
        tokio::time::timeout(PATIENCE, self.streams.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// The next context stream that the evaluator opens.
    pub(crate) async fn context(&mut self) -> ContextStream {
        tokio::time::timeout(PATIENCE, self.context.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// The next stream, however long it takes.
    pub(crate) async fn next(&mut self) -> Stream {
        self.streams.recv().await.unwrap()
    }

    /// Goes away at once.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.server.abort();
        let _ = self.server.await;
        self.addr
    }
}

impl Stream {
    pub(crate) async fn push(&self, response: v1::DeltaPolicyDiscoveryResponse) {
        self.outbound.send(Ok(response)).await.unwrap();
    }

    pub(crate) async fn fail(self, status: Status) {
        self.outbound.send(Err(status)).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> v1::DeltaPolicyDiscoveryRequest {
        let next = tokio::time::timeout(PATIENCE, self.inbound.message()).await;
        next.expect("no answer came")
            .unwrap()
            .expect("the evaluator closed the stream")
    }

    /// Pushes and expects an ACK.
    pub(crate) async fn applied(&mut self, response: v1::DeltaPolicyDiscoveryResponse) {
        let (nonce, version) = (response.nonce.clone(), response.version_info.clone());
        self.push(response).await;
        let answer = self.answer().await;
        assert_eq!(answer.error_detail, None, "{answer:?}");
        assert_eq!(
            (answer.response_nonce, answer.version_info),
            (nonce, version)
        );
    }

    /// Waits until the evaluator ends the stream.
    pub(crate) async fn ended(&mut self) {
        let ended = async { while let Ok(Some(_)) = self.inbound.message().await {} };
        tokio::time::timeout(PATIENCE, ended).await.unwrap();
    }
}

impl ContextStream {
    /// Pushes and returns the answer.
    pub(crate) async fn exchange(&mut self, response: v1::ContextResponse) -> v1::ContextRequest {
        let nonce = response.nonce.clone();
        self.outbound.send(Ok(response)).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.inbound.message()).await;
        let answer = answer.expect("no answer came").unwrap().unwrap();
        assert_eq!(answer.response_nonce, nonce);
        answer
    }

    pub(crate) async fn accepted(&mut self, response: v1::ContextResponse) {
        let answer = self.exchange(response).await;
        assert_eq!(answer.error_detail, None);
    }
}

#[tonic::async_trait]
impl ContextService for Service {
    type StreamContextStream = Boxed<v1::ContextResponse>;

    async fn stream_context(
        &self,
        request: Request<Streaming<v1::ContextRequest>>,
    ) -> Result<Response<Self::StreamContextStream>, Status> {
        let mut inbound = request.into_inner();
        let hello = inbound.message().await?.unwrap();
        let (outbound, responses) = mpsc::channel(16);
        let stream = ContextStream {
            hello,
            inbound,
            outbound,
        };
        let _ = self.context.send(stream).await;
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn query_context(
        &self,
        request: Request<v1::ContextQuery>,
    ) -> Result<Response<v1::ContextAnswer>, Status> {
        self.shared
            .queries
            .lock()
            .unwrap()
            .push(request.into_inner());
        let reply = self.shared.reply.lock().unwrap().clone();
        reply
            .map(Response::new)
            .ok_or_else(|| Status::unavailable("the API server does not answer"))
    }
}

#[tonic::async_trait]
impl PolicyDiscoveryService for Service {
    type StreamPoliciesStream = Boxed<v1::PolicyDiscoveryResponse>;
    type DeltaPoliciesStream = Boxed<v1::DeltaPolicyDiscoveryResponse>;

    async fn stream_policies(
        &self,
        _: Request<Streaming<v1::PolicyDiscoveryRequest>>,
    ) -> Result<Response<Self::StreamPoliciesStream>, Status> {
        Err(Status::unimplemented("the evaluator uses deltas"))
    }

    async fn delta_policies(
        &self,
        request: Request<Streaming<v1::DeltaPolicyDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaPoliciesStream>, Status> {
        if let Some(status) = self.shared.refusal.lock().unwrap().clone() {
            return Err(status);
        }
        let mut inbound = request.into_inner();
        let hello = inbound
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("empty"))?;
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
        Err(Status::unimplemented("the evaluator uses deltas"))
    }

    async fn health_check(
        &self,
        request: Request<v1::HealthCheckRequest>,
    ) -> Result<Response<v1::HealthCheckResponse>, Status> {
        self.shared
            .health
            .lock()
            .unwrap()
            .push(request.into_inner());
        Ok(Response::new(v1::HealthCheckResponse {
            known: true,
            interval_ms: 100,
            ..Default::default()
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
        let request = request.into_inner();
        let (modules, artefacts) = (
            self.shared.modules.lock().unwrap(),
            self.shared.artefacts.lock().unwrap(),
        );
        let stat = |digest: String| v1::ModuleStat {
            present: modules.contains_key(&digest),
            size: modules.get(&digest).map_or(0, |bytes| bytes.len() as u64),
            artefact: artefacts
                .get(&digest)
                .map(|(bytes, claimed)| v1::ModuleArtefact {
                    engine: request.engine.clone(),
                    digest: claimed.clone(),
                    size: bytes.len() as u64,
                }),
            digest,
        };
        let modules = request.digests.into_iter().map(stat).collect();
        Ok(Response::new(v1::StatModulesResponse { modules }))
    }

    async fn fetch_module(
        &self,
        request: Request<v1::FetchModuleRequest>,
    ) -> Result<Response<Self::FetchModuleStream>, Status> {
        let request = request.into_inner();
        self.shared.fetches.fetch_add(1, Relaxed);
        let (bytes, digest) = if request.engine.is_empty() {
            let modules = self.shared.modules.lock().unwrap();
            let bytes = modules.get(&request.digest).cloned();
            (
                bytes.ok_or_else(|| Status::not_found("no such module"))?,
                request.digest,
            )
        } else {
            let artefacts = self.shared.artefacts.lock().unwrap();
            let found = artefacts.get(&request.digest).cloned();
            found.ok_or_else(|| Status::not_found("no such artefact"))?
        };
        let from = usize::try_from(request.offset).unwrap();
        let broken = self.shared.break_transfers.load(Relaxed);
        let end = if broken && from < bytes.len() / 2 {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        let chunk = v1::ModuleChunk {
            data: bytes[from..end].to_vec().into(),
            offset: request.offset,
            total_size: bytes.len() as u64,
            digest,
        };
        let mut messages = vec![Ok(chunk)];
        if end < bytes.len() {
            messages.push(Err(Status::unavailable("the line broke")));
        }
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }
}

#[tonic::async_trait]
impl CertificateService for Ca {
    async fn sign_certificate(
        &self,
        request: Request<v1::SignCertificateRequest>,
    ) -> Result<Response<v1::SignCertificateResponse>, Status> {
        let der = request.into_inner().csr_der.into();
        let mut csr = rcgen::CertificateSigningRequestParams::from_der(&der).unwrap();
        csr.params.subject_alt_names =
            vec![rcgen::SanType::DnsName("localhost".try_into().unwrap())];
        let leaf = csr.signed_by(&self.0).unwrap();
        Ok(Response::new(v1::SignCertificateResponse {
            certificate_chain_pem: leaf.pem(),
            ..Default::default()
        }))
    }
}
