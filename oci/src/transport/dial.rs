//! Resolves names, and opens TCP connections to addresses that were checked.

use std::{
    convert::Infallible,
    error::Error as StdError,
    future::{Ready, ready},
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::url::Host;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use tokio::net::TcpStream;
use tower::Service;

use super::connector::ConnectError;

/// A host that does not take a connection in this time is as good as down.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds the addresses of a host. Tests replace it: what a name resolves to is decided by
/// whoever owns the name.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Lookup>);

type Lookup = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Gives the connector addresses that were checked before.
#[derive(Clone)]
struct Checked(Vec<SocketAddr>);

// === impl Resolver ===

impl Resolver {
    pub(super) fn system() -> Self {
        Self::new(|name, port| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name.as_str(), port)).await?;
                Ok(found.collect())
            })
        })
    }

    pub(super) fn new(
        lookup: impl Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(lookup))
    }

    pub(super) async fn resolve(
        &self,
        host: &Host,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        match host {
            Host::Ipv4(address) => Ok(vec![SocketAddr::from((*address, port))]),
            Host::Ipv6(address) => Ok(vec![SocketAddr::from((*address, port))]),
            Host::Domain(name) => (self.0)(name.clone(), port).await.map_err(|_| {
                ConnectError::Failed("the name of the host does not resolve".to_owned())
            }),
        }
    }
}

/// Connects to the first address that answers; IPv4 gets a chance soon after IPv6 is slow.
pub(super) async fn dial(addresses: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let Some(first) = addresses.first() else {
        return Err(ConnectError::Failed("the host has no address".to_owned()));
    };
    // Always a name, so that nothing but the checked addresses is used.
    let uri = format!("http://checked:{}", first.port());
    let uri: Uri = uri.parse().expect("a name and a port must be a URI");
    let mut connector = HttpConnector::new_with_resolver(Checked(addresses));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    let connected = connector.call(uri).await;
    let stream = connected.map_err(|error| ConnectError::Failed(innermost(&error)))?;
    Ok(stream.into_inner())
}

/// The message of the first cause, which says most.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

// === impl Checked ===

impl Service<Name> for Checked {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        ready(Ok(self.0.clone().into_iter()))
    }
}
