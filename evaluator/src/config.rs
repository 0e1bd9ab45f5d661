//! The configuration of an evaluator.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use assent_oci::{AddressPolicy, Images, Sources, SourcesError};
use http::Uri;

use crate::envoy::table::Workloads;

/// The configuration of an evaluator. Embedding processes fill it in themselves.
pub struct Config {
    /// Where the control plane serves discovery: `http://` or `https://`.
    pub discovery: Uri,
    /// Replica name: the pod's name in a cluster.
    pub id: String,
    /// Which PolicyServer's policies it serves.
    pub policy_server: String,
    /// Where reviews are answered.
    pub listen: Listen,
    /// Address that the control plane reports for this replica; none means that of `listen`.
    pub advertise: Option<IpAddr>,
    /// Where probes and metrics are answered; none disables them.
    pub admin_listen: Option<Listen>,
    /// Directory for the last good set; none keeps nothing across restarts.
    pub state: Option<PathBuf>,
    /// File with a key by which the last good set is authenticated; none, or no such file, trusts whoever can write
    /// to the directory.
    pub state_key: Option<PathBuf>,
    /// PEM file with the CA that the control plane's certificate must come from.
    pub ca: Option<PathBuf>,
    /// File with the bearer token; read again at each connect, because tokens rotate.
    pub token_file: Option<PathBuf>,
    /// Certificate and key of the review port; none asks the control plane for them.
    pub tls: Option<TlsFiles>,
    /// PEM file with the authorities that sign the certificates of clients; none lets every client ask.
    pub client_ca: Option<PathBuf>,
    /// Where Envoy asks about requests; none does not answer it.
    pub requests: Option<RequestsConfig>,
    /// An engine to share; none starts one for this evaluator.
    pub engine: Option<assent_wasm::Engine>,
    /// Bytes for requests and evaluations; none derives them from the limit of the container or the memory of the
    /// machine. An engine that is shared has a budget of its own for evaluations.
    pub memory_budget: Option<u64>,
    /// Which registries policies may ask about images, and how.
    pub registries: RegistryAccess,
    /// Which decisions are logged, and where.
    pub decision_log: DecisionLogConfig,
    /// Intervals and timeouts; tests use shorter ones.
    pub timings: Timings,
}

/// The decision log: denials and errors, and a sample of allowed requests, as JSON lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionLogConfig {
    /// Where lines are written.
    pub target: DecisionLogTarget,
    /// One of so many allowed requests is logged; 1 is all, 0 none.
    pub allows: u64,
}

/// Where decisions are logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DecisionLogTarget {
    /// Nowhere.
    #[default]
    Off,
    /// On standard output, which has nothing else.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// How requests at Envoy are decided.
pub struct RequestsConfig {
    /// Where Envoy asks.
    pub listen: RequestsListen,
    /// For requests that no policy matches.
    pub default: DefaultDecision,
    /// Whose policies decide.
    pub workloads: Workloads,
}

/// Where Envoy asks. A port that is not on the loopback interface has the TLS of the review port.
pub enum RequestsListen {
    /// A TCP port.
    Tcp(Listen),
    /// A Unix socket. Whoever may open the directory may ask.
    Unix(PathBuf),
}

/// What is decided about requests that no policy matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultDecision {
    /// They are denied.
    #[default]
    Deny,
    /// They are allowed.
    Allow,
}

/// An address, or a socket that is bound already.
pub enum Listen {
    /// Bind this address.
    Addr(SocketAddr),
    /// Use this socket.
    Bound(std::net::TcpListener),
}

/// PEM files; reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The leaf first, then its issuers.
    pub cert: PathBuf,
    /// The leaf's private key.
    pub key: PathBuf,
}

/// How registries are reached on behalf of policies: by the same rules as for pulling modules.
#[derive(Clone, Debug, Default)]
pub struct RegistryAccess {
    /// Hosts with special treatment, and logins.
    pub sources: Sources,
    /// Addresses that need no declaration.
    pub addresses: AddressPolicy,
}

/// Intervals and timeouts of an evaluator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Started from disk: how long to wait for a control plane before being ready without it.
    pub ready_without_control_plane: Duration,
    /// How long requests are answered after shutdown began, because API servers learn of
    /// it by their watches.
    pub drain: Duration,
    /// How long a set that was refused as a whole may stay unsettled before everything is
    /// requested again.
    pub resync: Duration,
    /// How often certificate files are checked for changes.
    pub certificate_poll: Duration,
    /// How often the review port is checked.
    pub self_check: Duration,
}

// === impl Config ===

impl Config {
    /// An evaluator on a port of the loopback interface that the system chooses.
    pub fn loopback(discovery: Uri, id: impl Into<String>) -> Self {
        let any = || Listen::Addr(SocketAddr::from(([127, 0, 0, 1], 0)));
        Self {
            discovery,
            id: id.into(),
            policy_server: assent_core::policy::DEFAULT_SERVER.into(),
            listen: any(),
            advertise: None,
            admin_listen: Some(any()),
            state: None,
            state_key: None,
            ca: None,
            token_file: None,
            tls: None,
            client_ca: None,
            requests: None,
            engine: None,
            memory_budget: None,
            registries: RegistryAccess::default(),
            decision_log: DecisionLogConfig::default(),
            timings: Timings::default(),
        }
    }
}

// === impl DecisionLogTarget ===

impl FromStr for DecisionLogTarget {
    type Err = Infallible;

    /// `off`, `stdout`, or the path of a file.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" | "" => Self::Off,
            "stdout" | "-" => Self::Stdout,
            path => Self::File(path.into()),
        })
    }
}

// === impl Listen ===

impl Listen {
    pub(crate) fn bind(self) -> std::io::Result<tokio::net::TcpListener> {
        let listener = match self {
            Listen::Addr(addr) => std::net::TcpListener::bind(addr)?,
            Listen::Bound(listener) => listener,
        };
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    }
}

// === impl RegistryAccess ===

impl RegistryAccess {
    /// Whether anything is configured that could be invalid.
    pub(crate) fn is_declared(&self) -> bool {
        !self.sources.insecure.is_empty() || !self.sources.certificates.is_empty()
    }

    pub(crate) fn open(&self) -> Result<Images, SourcesError> {
        Images::new(self.sources.clone(), self.addresses)
    }
}

// === impl Timings ===

impl Default for Timings {
    fn default() -> Self {
        Self {
            // Long enough for a control plane that is being rolled, short against an outage.
            ready_without_control_plane: Duration::from_secs(30),
            // Endpoint changes take a few seconds to reach API servers.
            drain: Duration::from_secs(15),
            // A rejection that no later response has resolved by then is a disagreement about what is loaded.
            resync: Duration::from_secs(60),
            // Rotated files are renewed days before they expire.
            certificate_poll: Duration::from_secs(10),
            // Three failures make the evaluator unready: within 15 s to 30 s.
            self_check: Duration::from_secs(5),
        }
    }
}
