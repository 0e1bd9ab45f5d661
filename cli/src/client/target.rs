//! Which control plane a command queries.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    time::Duration,
};

use http::Uri;

use super::{Client, direct};

/// Which control plane to query, and with which credentials.
///
/// Without any of these, a control plane of this machine (`assent up`) is queried if one runs,
/// and otherwise that of the cluster of the kubeconfig.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Kubeconfig of the cluster [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Control plane")]
    kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", help_heading = "Control plane")]
    context: Option<String>,

    /// Namespace that Assent is installed in
    #[arg(
        long,
        value_name = "NS",
        env = "ASSENT_NAMESPACE",
        default_value = "assent-system",
        help_heading = "Control plane"
    )]
    assent_namespace: String,

    /// Discovery address of the control plane, instead of a cluster [default: http://127.0.0.1:15010 if `assent up` runs]
    #[arg(
        long,
        value_name = "URL",
        env = "ASSENT_SERVER",
        help_heading = "Control plane"
    )]
    server: Option<Uri>,

    /// PEM file with the CA of --server; needed for https://
    #[arg(
        long,
        value_name = "FILE",
        env = "ASSENT_CA",
        help_heading = "Control plane"
    )]
    pub(super) ca: Option<PathBuf>,

    /// Name in the certificate of --server, if it differs from the URL (port forwarding)
    #[arg(
        long,
        value_name = "NAME",
        env = "ASSENT_TLS_NAME",
        help_heading = "Control plane"
    )]
    pub(super) tls_name: Option<String>,

    /// File with the bearer token for --server
    #[arg(
        long,
        value_name = "FILE",
        env = "ASSENT_TOKEN_FILE",
        help_heading = "Control plane"
    )]
    pub(super) token_file: Option<PathBuf>,

    /// Only this PolicyServer [default: all]
    #[arg(
        long,
        value_name = "NAME",
        env = "ASSENT_POLICY_SERVER",
        help_heading = "Control plane"
    )]
    pub(crate) policy_server: Option<String>,
}

/// A control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// At this address.
    Url(Uri),
    /// In the cluster of the kubeconfig.
    Cluster,
}

/// What decides about the target.
#[derive(Clone, Debug, Default)]
struct Situation {
    /// A flag names a cluster.
    names_cluster: bool,
    server: Option<Uri>,
    is_plugin: bool,
    runs_locally: bool,
    has_kubeconfig: bool,
}

/// Where `assent up` listens by default.
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 15_010);

/// A listener on this machine accepts at once.
const PROBE: Duration = Duration::from_millis(500);

// === impl ServerArgs ===

impl ServerArgs {
    /// Connects to the control plane.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        match self.target() {
            Target::Url(server) => direct::connect(self, server).await,
            Target::Cluster => self.connect_to_cluster().await,
        }
    }

    #[cfg(feature = "cluster")]
    async fn connect_to_cluster(&self) -> anyhow::Result<Client> {
        let remote = self.open().await?;
        super::cluster::connect(remote, self.policy_server.clone()).await
    }

    #[cfg(not(feature = "cluster"))]
    async fn connect_to_cluster(&self) -> anyhow::Result<Client> {
        anyhow::bail!("this build of assent cannot read a kubeconfig; specify --server URL")
    }

    /// The cluster, if the control plane is in one.
    #[cfg(feature = "cluster")]
    pub(crate) async fn cluster(&self) -> anyhow::Result<Option<assent_k8s::remote::Remote>> {
        match self.target() {
            Target::Url(_) => Ok(None),
            Target::Cluster => self.open().await.map(Some),
        }
    }

    #[cfg(feature = "cluster")]
    async fn open(&self) -> anyhow::Result<assent_k8s::remote::Remote> {
        let options = assent_k8s::remote::Options {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            namespace: self.assent_namespace.clone(),
        };
        Ok(assent_k8s::remote::Remote::open(options).await?)
    }

    pub(super) fn target(&self) -> Target {
        let mut situation = Situation {
            names_cluster: self.kubeconfig.is_some() || self.context.is_some(),
            server: self.server.clone(),
            is_plugin: crate::plugin::is_plugin(),
            ..Situation::default()
        };
        if !situation.is_decided() {
            situation.runs_locally = TcpStream::connect_timeout(&LOCAL, PROBE).is_ok();
            situation.has_kubeconfig = has_kubeconfig();
        }
        situation.target()
    }
}

// === impl Situation ===

impl Situation {
    /// Whether the command line alone says which control plane is meant.
    fn is_decided(&self) -> bool {
        self.names_cluster || self.server.is_some() || self.is_plugin
    }

    /// A flag comes before a variable, and a control plane of this machine before a cluster that
    /// the kubeconfig happens to name.
    fn target(self) -> Target {
        let local = || Uri::from_static("http://127.0.0.1:15010");
        match self {
            Self {
                names_cluster: true,
                ..
            } => Target::Cluster,
            Self {
                server: Some(server),
                ..
            } => Target::Url(server),
            Self {
                is_plugin: true, ..
            } => Target::Cluster,
            Self {
                runs_locally: false,
                has_kubeconfig: true,
                ..
            } => Target::Cluster,
            _ => Target::Url(local()),
        }
    }
}

/// Whether kubectl would find a kubeconfig.
fn has_kubeconfig() -> bool {
    let named = std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let usual = home.map(|home| home.join(".kube/config"));
    cfg!(feature = "cluster") && (named || usual.is_some_and(|file| file.exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(situation: Situation, expect: Target) {
        assert_eq!(situation.clone().target(), expect, "{situation:?}");
    }

    #[test]
    fn flags_come_before_variables_and_local_before_the_kubeconfig() {
        let url = Uri::from_static("https://assent.example:15010");
        let local = Target::Url(Uri::from_static("http://127.0.0.1:15010"));
        let mk = Situation::default;
        check(mk(), local.clone());
        let both = Situation {
            runs_locally: true,
            has_kubeconfig: true,
            ..mk()
        };
        check(both.clone(), local);
        let plugin = Situation {
            is_plugin: true,
            ..both.clone()
        };
        check(plugin.clone(), Target::Cluster);
        let server = Situation {
            server: Some(url.clone()),
            ..plugin
        };
        check(server.clone(), Target::Url(url));
        let named = Situation {
            names_cluster: true,
            ..server
        };
        check(named, Target::Cluster);
        let only_kubeconfig = Situation {
            has_kubeconfig: true,
            ..mk()
        };
        check(only_kubeconfig, Target::Cluster);
    }
}
