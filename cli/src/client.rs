//! A client of a running control plane.

use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use assent_control_plane::standalone::token;
use assent_proto::v1::{
    ClientStatusRequest, ClientStatusResponse, PolicyStatus, ReplicaStatus,
    client_status_service_client::ClientStatusServiceClient,
    rollout_service_client::RolloutServiceClient,
};
use http::Uri;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// Which control plane to query, and with which credentials.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Discovery address of the control plane
    #[arg(
        long,
        value_name = "URL",
        env = "ASSENT_SERVER",
        default_value = "http://127.0.0.1:15010",
        help_heading = "Control plane"
    )]
    server: Uri,

    /// PEM file with the CA of the control plane; needed for https://
    #[arg(
        long,
        value_name = "FILE",
        env = "ASSENT_CA",
        help_heading = "Control plane"
    )]
    ca: Option<PathBuf>,

    /// Name in the control plane's certificate, if it differs from the URL (port forwarding)
    #[arg(
        long,
        value_name = "NAME",
        env = "ASSENT_TLS_NAME",
        help_heading = "Control plane"
    )]
    tls_name: Option<String>,

    /// File with the bearer token
    #[arg(
        long,
        value_name = "FILE",
        env = "ASSENT_TOKEN_FILE",
        help_heading = "Control plane"
    )]
    token_file: Option<PathBuf>,

    /// PolicyServer to query
    #[arg(
        long,
        value_name = "NAME",
        env = "ASSENT_POLICY_SERVER",
        default_value = "default",
        help_heading = "Control plane"
    )]
    pub(crate) policy_server: String,
}

/// An open connection.
pub(crate) struct Client {
    channel: InterceptedService<Channel, Token>,
    server: Uri,
    policy_server: String,
}

/// Adds the bearer token to every call.
#[derive(Clone, Debug)]
pub(crate) struct Token(Option<MetadataValue<Ascii>>);

/// All pages of a response.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) version: String,
    pub(crate) policies: Vec<PolicyStatus>,
    pub(crate) replicas: Vec<ReplicaStatus>,
}

/// A host that is down does not answer at all.
const CONNECT: Duration = Duration::from_secs(5);

/// Even a busy control plane answers in milliseconds.
const CALL: Duration = Duration::from_secs(30);

/// Room for about ten thousand policies with all their conditions.
const MAX_ANSWER: usize = 64 << 20;

/// Replicas per page: the maximum of the protocol.
const PAGE: u32 = 1_000;

// === impl ServerArgs ===

impl ServerArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let token = self.token()?;
        let endpoint = self.endpoint()?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| self.unreachable(&error))?;
        Ok(Client {
            channel: InterceptedService::new(channel, token),
            server: self.server.clone(),
            policy_server: self.policy_server.clone(),
        })
    }

    fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let Self { server, .. } = self;
        let endpoint = Endpoint::from(server.clone())
            .connect_timeout(CONNECT)
            // Detects a control plane that vanished while a rollout is being watched.
            .http2_keep_alive_interval(Duration::from_secs(15))
            .keep_alive_timeout(Duration::from_secs(10))
            .user_agent(concat!("assent/", env!("CARGO_PKG_VERSION")))?;
        match server.scheme_str() {
            Some("http") => Ok(endpoint),
            Some("https") => {
                let tls = self.tls()?;
                endpoint
                    .tls_config(tls)
                    .context("failed to set up TLS: check --ca and --tls-name")
            }
            _ => bail!(
                "--server {server} is not the URL of a control plane; use http://HOST:PORT or https://HOST:PORT"
            ),
        }
    }

    fn tls(&self) -> anyhow::Result<ClientTlsConfig> {
        let Some(path) = &self.ca else {
            bail!(
                "{} needs --ca FILE: the certificate authority of the control plane",
                self.server
            );
        };
        let pem = std::fs::read(path);
        let pem = pem.with_context(|| format!("failed to read --ca {}", path.display()))?;
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
        Ok(match &self.tls_name {
            Some(name) => tls.domain_name(name),
            None => tls,
        })
    }

    fn token(&self) -> anyhow::Result<Token> {
        let local = || local_token_file(&self.server, std::env::var_os("ASSENT_STATE"));
        let Some(path) = self.token_file.clone().or_else(local) else {
            return Ok(Token(None));
        };
        let text = std::fs::read_to_string(&path);
        let text =
            text.with_context(|| format!("failed to read --token-file {}", path.display()))?;
        let parsed = format!("Bearer {}", text.trim()).parse();
        let mut value: MetadataValue<Ascii> = parsed.ok().with_context(|| {
            format!(
                "failed to use the token in {}: it is not one line of text",
                path.display()
            )
        })?;
        value.set_sensitive(true);
        Ok(Token(Some(value)))
    }

    fn unreachable(&self, error: &tonic::transport::Error) -> anyhow::Error {
        anyhow::anyhow!(
            "failed to connect to {}: {}; start a control plane with `assent up`, or specify one with --server URL (or ASSENT_SERVER)",
            shown(&self.server),
            root(error)
        )
    }
}

// === impl Client ===

impl Client {
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

    /// Fetches the policies, without replicas.
    pub(crate) async fn policies(&self) -> anyhow::Result<Answer> {
        // All policies are on the first page; the smallest page has one replica.
        let request = self.request(1);
        let page = self.fetch(request).await?;
        let mut answer = Answer::default();
        answer.add(page);
        Ok(answer)
    }

    /// Fetches all replicas, and one policy, or all policies if `policy` is empty.
    pub(crate) async fn everything(
        &self,
        policy: &str,
        states: Vec<i32>,
    ) -> anyhow::Result<Answer> {
        let mut answer = Answer::default();
        let mut token = String::new();
        loop {
            let page = self
                .fetch(ClientStatusRequest {
                    policy: policy.to_owned(),
                    states: states.clone(),
                    page_token: token.clone(),
                    ..self.request(PAGE)
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
        policy: &str,
    ) -> Result<Streaming<ClientStatusResponse>, Status> {
        let request = ClientStatusRequest {
            policy: policy.to_owned(),
            ..self.request(1)
        };
        let mut statuses = self.statuses();
        self.call(statuses.stream_client_status(request)).await
    }

    async fn fetch(&self, request: ClientStatusRequest) -> anyhow::Result<ClientStatusResponse> {
        let mut statuses = self.statuses();
        let answered = self.call(statuses.fetch_client_status(request)).await;
        answered.map_err(|status| self.failed(&status))
    }

    fn request(&self, page_size: u32) -> ClientStatusRequest {
        ClientStatusRequest {
            policy_server: self.policy_server.clone(),
            page_size,
            ..ClientStatusRequest::default()
        }
    }

    /// Describes a failed call and suggests what to do.
    pub(crate) fn failed(&self, status: &Status) -> anyhow::Error {
        let leader = status
            .metadata()
            .get(LEADER)
            .and_then(|value| value.to_str().ok());
        let advice = match (status.code(), leader) {
            (Code::Unauthenticated, _) => "; pass a token with --token-file FILE \
                 (`assent up` keeps one in the file `token` of its state directory)"
                .to_owned(),
            (Code::PermissionDenied, _) => {
                "; use a token with access to policyservers/discovery".to_owned()
            }
            (Code::NotFound, _) => "; specify the PolicyServer with --policy-server".to_owned(),
            (Code::Unimplemented, _) => {
                "; check that this is the discovery address of a control plane".to_owned()
            }
            (Code::Unavailable, Some(leader)) => format!("; use the leader: --server {leader}"),
            _ => String::new(),
        };
        anyhow::anyhow!(
            "failed to query {}: {}{advice}",
            shown(&self.server),
            status.message()
        )
    }
}

/// Metadata key with the leader's address, in responses of a standby.
const LEADER: &str = "assent-leader";

// === impl Answer ===

impl Answer {
    fn add(&mut self, page: ClientStatusResponse) {
        self.version = page.version_info;
        self.policies.extend(page.policies);
        self.replicas.extend(page.replicas);
    }
}

// === impl Token ===

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

/// The URL without the slash of an empty path.
fn shown(server: &Uri) -> String {
    server.to_string().trim_end_matches('/').to_owned()
}

/// The innermost cause. The errors around it only say "transport error".
fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The token that an `assent up` of this machine has made, if there is one.
fn local_token_file(server: &Uri, state: Option<OsString>) -> Option<PathBuf> {
    let host = server.host()?.trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !is_local {
        return None;
    }
    let in_state = state.map(|state| token::in_state(Path::new(&state)));
    let of_user = token::of_user(server.port_u16()?);
    let mut files = in_state.into_iter().chain(of_user);
    // One of another user is of no use, and not needed for looking at policies.
    files.find(|file| std::fs::File::open(file).is_ok())
}
