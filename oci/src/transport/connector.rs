//! Opens the connections of the client: checks where they go, and adds TLS.
//!
//! This is a connector for hyper-util's client rather than a configuration of reqwest. A
//! resolver of reqwest gets only the name of a host. The check also needs the port, because
//! hosts are declared by port, and it must tell the operator's proxy, which usually has a
//! private address, from a target with the same name.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ::url::{Host, Url};
use http::{HeaderValue, Uri, uri::Scheme};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tower::Service;

use super::{
    dial::{CONNECT_TIMEOUT, Resolver, dial},
    proxy::{Proxies, Proxy},
};
use crate::{
    AddressPolicy, Sources, SourcesError,
    sources::{Declared, Origin},
    tls::Trust,
};

/// Opens connections within the rules of one set of sources.
#[derive(Clone)]
pub(super) struct Connector(Arc<Rules>);

struct Rules {
    declared: Declared<Arc<ClientConfig>>,
    addresses: AddressPolicy,
    trusted: Arc<ClientConfig>,
    untrusted: Arc<ClientConfig>,
    proxies: Proxies,
    resolver: Resolver,
}

/// Why a connection was not opened.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("the URL has no host")]
    NoHost,
    #[error("plain HTTP to a host that is not declared insecure")]
    Plain,
    /// With the kind of the address.
    #[error("the host has {0} address")]
    Address(&'static str),
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Failed(String),
}

/// An open connection, with TLS if the scheme asks for it.
pub(super) struct Stream {
    io: Box<dyn Io>,
    is_http2: bool,
    /// Requests for several hosts go through this connection, in absolute form.
    is_forward_proxy: bool,
}

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

// === impl Connector ===

impl Connector {
    /// Reads the system's certificate authorities and the proxy variables of the
    /// environment.
    pub(super) fn new(sources: &Sources, addresses: AddressPolicy) -> Result<Self, SourcesError> {
        Self::with(sources, addresses, Proxies::from_env(), Resolver::system())
    }

    pub(super) fn with(
        sources: &Sources,
        addresses: AddressPolicy,
        proxies: Proxies,
        resolver: Resolver,
    ) -> Result<Self, SourcesError> {
        let trust = Trust::load();
        Ok(Self(Arc::new(Rules {
            declared: Declared::read(sources, |pem| trust.with_bundle(pem))?,
            addresses,
            trusted: trust.system().map_err(SourcesError::Tls)?,
            untrusted: trust.any_certificate().map_err(SourcesError::Tls)?,
            proxies,
            resolver,
        })))
    }

    pub(super) fn is_insecure(&self, origin: &Origin) -> bool {
        self.0.declared.is_insecure(origin)
    }

    /// The login of the proxy that forwards requests for `url`. A tunnel gets it when it is
    /// opened, so that the target never sees it.
    pub(super) fn proxy_authorization(&self, url: &Url) -> Option<HeaderValue> {
        if url.scheme() != "http" {
            return None;
        }
        self.0.proxies.find(url)?.authorization()
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future =
        Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let rules = self.0.clone();
        Box::pin(async move { rules.connect(uri).await.map(TokioIo::new) })
    }
}

// === impl Rules ===

impl Rules {
    async fn connect(&self, uri: Uri) -> Result<Stream, ConnectError> {
        let url = Url::parse(&uri.to_string()).map_err(|_| ConnectError::NoHost)?;
        let origin = Origin::of(&url).ok_or(ConnectError::NoHost)?;
        let is_plain = uri.scheme() != Some(&Scheme::HTTPS);
        if is_plain && !self.declared.is_insecure(&origin) {
            return Err(ConnectError::Plain);
        }
        let proxy = self.proxies.find(&url);
        let io = match &proxy {
            None => self.connect_directly(&origin).await?,
            Some(proxy) => self.connect_through(proxy, &origin, uri, is_plain).await?,
        };
        if is_plain {
            return Ok(Stream {
                io,
                is_http2: false,
                is_forward_proxy: proxy.is_some(),
            });
        }
        self.secure(io, &origin).await
    }

    async fn connect_directly(&self, origin: &Origin) -> Result<Box<dyn Io>, ConnectError> {
        let addresses = self.resolver.resolve(&origin.host, origin.port).await?;
        let addresses = self.allowed(origin, addresses)?;
        Ok(Box::new(dial(addresses).await?))
    }

    /// The addresses that may be used. They are connected to as they are: resolving the
    /// name again could give others.
    fn allowed(
        &self,
        origin: &Origin,
        mut addresses: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        if self.declared.declares(origin) {
            return Ok(addresses);
        }
        let mut refused = None;
        addresses.retain(|address| {
            let refusal = self.addresses.refusal(address.ip());
            refused = refused.or(refusal);
            refusal.is_none()
        });
        match refused {
            Some(kind) if addresses.is_empty() => Err(ConnectError::Address(kind)),
            _ => Ok(addresses),
        }
    }

    async fn connect_through(
        &self,
        proxy: &Proxy,
        origin: &Origin,
        uri: Uri,
        is_plain: bool,
    ) -> Result<Box<dyn Io>, ConnectError> {
        self.check_proxied(origin).await?;
        let trusted = &self.trusted;
        match is_plain {
            true => proxy.connect(&self.resolver, trusted).await,
            false => proxy.tunnel(&self.resolver, trusted, uri).await,
        }
    }

    /// Checks a target that a proxy will connect to, as far as it can be known here.
    ///
    /// The proxy resolves the name itself and chooses among its addresses, so one refused
    /// address is enough to refuse. A name that does not resolve here is left to the proxy:
    /// in networks where only the proxy resolves public names, all of them are like that.
    /// What such names lead to is the proxy's own policy.
    async fn check_proxied(&self, origin: &Origin) -> Result<(), ConnectError> {
        if self.declared.declares(origin) {
            return Ok(());
        }
        let Ok(addresses) = self.resolver.resolve(&origin.host, origin.port).await else {
            return Ok(());
        };
        let mut refusals = addresses
            .iter()
            .filter_map(|address| self.addresses.refusal(address.ip()));
        match refusals.next() {
            Some(kind) => Err(ConnectError::Address(kind)),
            None => Ok(()),
        }
    }

    async fn secure(&self, io: Box<dyn Io>, origin: &Origin) -> Result<Stream, ConnectError> {
        let name = server_name(&origin.host)?;
        let tls = handshake(self.tls(origin), name, io).await?;
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Stream {
            io: Box::new(tls),
            is_http2,
            is_forward_proxy: false,
        })
    }

    fn tls(&self, origin: &Origin) -> Arc<ClientConfig> {
        if self.declared.is_insecure(origin) {
            return self.untrusted.clone();
        }
        let own = self.declared.certificates(origin);
        own.unwrap_or(&self.trusted).clone()
    }
}

pub(super) async fn handshake(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: Box<dyn Io>,
) -> Result<tokio_rustls::client::TlsStream<Box<dyn Io>>, ConnectError> {
    let connecting = TlsConnector::from(config).connect(name, io);
    tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_| ConnectError::Failed("the TLS handshake timed out".to_owned()))?
        .map_err(|error| {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            match inner {
                Some(rustls::Error::InvalidCertificate(_)) => {
                    ConnectError::Certificate(error.to_string())
                }
                _ => ConnectError::Failed(error.to_string()),
            }
        })
}

pub(super) fn server_name(host: &Host) -> Result<ServerName<'static>, ConnectError> {
    match host {
        Host::Ipv4(address) => Ok(ServerName::from(IpAddr::from(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(IpAddr::from(*address))),
        Host::Domain(name) => ServerName::try_from(name.clone())
            .map_err(|error| ConnectError::Failed(error.to_string())),
    }
}

// === impl Stream ===

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(self.is_forward_proxy);
        match self.is_http2 {
            true => connected.negotiated_h2(),
            false => connected,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
