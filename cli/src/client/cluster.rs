//! A connection through the API server of a cluster.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use assent_k8s::remote::{Remote, Tunnel};
use hyper_util::rt::TokioIo;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tower::service_fn;

use super::{Client, Origin, Token, prepare, root};

/// Connects to the leader. The token is sent only to a server whose certificate is signed by the
/// authority of the cluster's ConfigMap.
pub(super) async fn connect(
    remote: Remote,
    policy_server: Option<String>,
) -> anyhow::Result<Client> {
    // If several fail, the first in this order explains the others: without a Lease, Assent is not in this namespace.
    let (leader, ca, token) = tokio::join!(remote.leader(), remote.ca(), remote.token());
    let (leader, ca, token) = (leader?, ca?, token?);
    let token = Token::new(&token).context("failed to use the token of the API server")?;
    let Tunnel {
        stream,
        mut refusal,
    } = remote.tunnel(&leader).await?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(remote.tls_name());
    let url = format!("https://{}:{}", remote.tls_name(), leader.port);
    let endpoint = prepare(Endpoint::from_shared(url)?)?
        .tls_config(tls)
        .context("failed to set up TLS with the certificates of the ConfigMap assent-ca")?;
    // A tunnel is one connection: commands that go on connect again, perhaps to another leader.
    let stream = Arc::new(Mutex::new(Some(TokioIo::new(stream))));
    let dial = service_fn(move |_: http::Uri| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lost = || std::io::Error::other("the connection to the leader is lost");
        async move { stream.ok_or_else(lost) }
    });
    let connected = endpoint.connect_with_connector(dial).await;
    let channel = connected.map_err(|error| {
        let why = refusal.try_recv().unwrap_or_else(|_| root(&error));
        anyhow::anyhow!(
            "failed to connect to port {} of the leader's pod {}: {why}; check the pod: kubectl describe pod -n {} {}",
            leader.port,
            leader.pod,
            remote.namespace(),
            leader.pod,
        )
    })?;
    let origin = Origin::Cluster {
        context: remote.context().to_owned(),
        pod: leader.pod,
    };
    Ok(Client::new(channel, token, origin, policy_server))
}
