//! The way of a person's command line to a control plane, with nothing but a kubeconfig.
//!
//! The Lease names the leader, a ConfigMap has the certificates to trust, a TokenRequest gives a
//! token of an account that may only look, and the API server forwards a port of the leader's
//! pod. Each step uses the person's own rights; a step that is refused names the right.

use std::{path::PathBuf, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod, ServiceAccount},
};
use kube::{
    Api, Client,
    api::PostParams,
    config::{Config, KubeConfigOptions, Kubeconfig},
};
use tokio::io::DuplexStream;

use crate::names;

mod error;
mod rollback;

pub use error::{Error, Step};
pub use rollback::RolledBack;

/// Which cluster, as kubectl is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kubeconfig; `KUBECONFIG` or `~/.kube/config` if absent.
    pub kubeconfig: Option<PathBuf>,
    /// The context in it; the current one if absent.
    pub context: Option<String>,
    /// The control plane's namespace.
    pub namespace: String,
}

/// A cluster with an installation of Assent.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    namespace: String,
    context: String,
}

/// The leader's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Name of the pod.
    pub pod: String,
    /// Its discovery port.
    pub port: u16,
}

/// A connection to a port of a pod.
pub struct Tunnel {
    /// What is written here is sent to the pod.
    pub stream: DuplexStream,
    /// Why the pod refused it, once it has.
    pub refusal: tokio::sync::oneshot::Receiver<String>,
}

/// An API server that is reachable answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The shortest that the API server issues. A connection that lives longer is opened again, with
/// a new token.
const TOKEN_SECONDS: i64 = 600;

/// The discovery port, if the Lease does not have it.
const DISCOVERY_PORT: u16 = 15_010;

// === impl Remote ===

impl Remote {
    /// Reads the kubeconfig; sends nothing yet.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let Options {
            kubeconfig,
            context,
            namespace,
        } = options;
        let (mut config, context) = config(kubeconfig, context).await?;
        config.connect_timeout = Some(TIMEOUT);
        let client = Client::try_from(config).map_err(|e| Error::Client(Box::new(e)))?;
        Ok(Self {
            client,
            namespace,
            context,
        })
    }

    /// The client, for other modules of this crate.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The control plane's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of the context, for messages.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// The name in the control plane's certificate.
    pub fn tls_name(&self) -> String {
        format!("{}.{}.svc", names::DISCOVERY_SERVICE, self.namespace)
    }

    /// The replica that leads.
    pub async fn leader(&self) -> Result<Leader, Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let lease = self.ask(Step::Lease, api.get(names::LEASE)).await?;
        leader(&lease).ok_or_else(|| Error::NoLeader(self.namespace.clone()))
    }

    /// The certificates that the control plane's is checked with.
    pub async fn ca(&self) -> Result<String, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = self.ask(Step::Ca, api.get(names::CA_CONFIG_MAP)).await?;
        let bundle = map.data.and_then(|mut data| data.remove(names::CA_KEY));
        bundle.ok_or_else(|| Error::NoCa(self.namespace.clone()))
    }

    /// A token of the account that may look, for the control plane only.
    pub async fn token(&self) -> Result<String, Error> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![names::TOKEN_AUDIENCE.to_owned()]),
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let asked = api.create_token_request(names::VIEWER, &params, &request);
        let issued = self.ask(Step::Token, asked).await?;
        let token = issued.status.and_then(|status| status.token);
        token.filter(|t| !t.is_empty()).ok_or(Error::NoToken)
    }

    /// A connection to the leader's discovery port.
    pub async fn tunnel(&self, leader: &Leader) -> Result<Tunnel, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let forwarding = api.portforward(&leader.pod, std::slice::from_ref(&leader.port));
        let mut forwarder = self.ask(Step::Forward, forwarding).await?;
        let stream = forwarder.take_stream(leader.port);
        let stream = stream.ok_or(Error::NoStream)?;
        let (refused, refusal) = tokio::sync::oneshot::channel();
        if let Some(error) = forwarder.take_error(leader.port) {
            tokio::spawn(async move {
                if let Some(why) = error.await {
                    // Nobody waits for it any more if the connection was closed first.
                    let _ = refused.send(why);
                }
            });
        }
        Ok(Tunnel { stream, refusal })
    }

    /// Sends a request, with a deadline.
    async fn ask<T>(
        &self,
        step: Step,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| Error::of(step, &self.namespace, error)),
            Err(_) => Err(Error::Late(TIMEOUT.as_secs())),
        }
    }
}

/// The configuration, and the name of its context.
async fn config(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
) -> Result<(Config, String), Error> {
    let read = match &kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match read {
        Ok(file) => file,
        // In a pod there is none, and kubectl uses the service account.
        Err(error) => {
            let in_pod = kubeconfig.is_none() && context.is_none();
            let own = in_pod.then(Config::incluster).and_then(Result::ok);
            let own = own.map(|config| (config, "the pod's service account".to_owned()));
            return own.ok_or_else(|| Error::Kubeconfig(Box::new(error)));
        }
    };
    let name = context.clone().or_else(|| file.current_context.clone());
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(file, &options).await;
    let config = config.map_err(|error| Error::Kubeconfig(Box::new(error)))?;
    Ok((config, name.unwrap_or_default()))
}

/// The leader that a Lease names.
fn leader(lease: &Lease) -> Option<Leader> {
    let holder = lease.spec.as_ref()?.holder_identity.clone();
    let pod = holder.filter(|holder| !holder.is_empty())?;
    let annotations = lease.metadata.annotations.as_ref();
    let address = annotations.and_then(|all| all.get(names::LEADER_ADDRESS_ANNOTATION));
    let port = address.and_then(|address| address.rsplit_once(':')?.1.parse().ok());
    Some(Leader {
        pod,
        port: port.unwrap_or(DISCOVERY_PORT),
    })
}

#[cfg(test)]
mod tests;
