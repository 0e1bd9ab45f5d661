//! Proxies, as the environment names them.

use std::sync::Arc;

use ::url::{Host, Url};
use http::{HeaderValue, Uri};
use hyper_util::{
    client::{
        legacy::connect::proxy::Tunnel,
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use rustls::ClientConfig;
use tower::{Service as _, service_fn};

use super::{
    connector::{ConnectError, Io, handshake, server_name},
    dial::{CONNECT_TIMEOUT, Resolver, dial, innermost},
};
use crate::sources::Origin;

/// Which requests go through which proxy.
pub(super) struct Proxies(Matcher);

/// The proxy for one request.
#[derive(Clone)]
pub(super) struct Proxy(Intercept);

// === impl Proxies ===

impl Proxies {
    /// Reads `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, also in lower case.
    pub(super) fn from_env() -> Self {
        Self(Matcher::from_env())
    }

    #[cfg(test)]
    pub(super) fn new(proxy: &str, except: &str) -> Self {
        Self(Matcher::builder().all(proxy).no(except).build())
    }

    /// Loopback is never proxied: the proxy's own loopback interface is another place.
    pub(super) fn find(&self, url: &Url) -> Option<Proxy> {
        let is_loopback = match url.host()? {
            Host::Ipv4(address) => address.is_loopback(),
            Host::Ipv6(address) => address.is_loopback(),
            Host::Domain(name) => name == "localhost" || name.ends_with(".localhost"),
        };
        if is_loopback {
            return None;
        }
        let uri = Uri::try_from(url.as_str()).ok()?;
        self.0.intercept(&uri).map(Proxy)
    }
}

// === impl Proxy ===

impl Proxy {
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.0.basic_auth().cloned()
    }

    /// A connection to the proxy itself. The operator chose its address, which is therefore
    /// not checked.
    pub(super) async fn connect(
        &self,
        resolver: &Resolver,
        trusted: &Arc<ClientConfig>,
    ) -> Result<Box<dyn Io>, ConnectError> {
        let origin = self.origin()?;
        let is_tls = match self.0.uri().scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => {
                return Err(ConnectError::Failed(format!(
                    "the proxy {origin} is not an HTTP proxy; use a URL that begins with http:// or https://"
                )));
            }
        };
        let failed = |error: ConnectError| {
            ConnectError::Failed(format!("failed to connect to the proxy {origin}: {error}"))
        };
        let addresses = resolver.resolve(&origin.host, origin.port).await;
        let tcp = dial(addresses.map_err(failed)?).await.map_err(failed)?;
        if !is_tls {
            return Ok(Box::new(tcp));
        }
        // Proxies are asked for tunnels by HTTP/1.1.
        let mut config = ClientConfig::clone(trusted);
        config.alpn_protocols.clear();
        let name = server_name(&origin.host)?;
        let tls = handshake(Arc::new(config), name, Box::new(tcp)).await;
        Ok(Box::new(tls.map_err(failed)?))
    }

    /// A tunnel through the proxy to the host of `uri`.
    pub(super) async fn tunnel(
        &self,
        resolver: &Resolver,
        trusted: &Arc<ClientConfig>,
        uri: Uri,
    ) -> Result<Box<dyn Io>, ConnectError> {
        let origin = self.origin()?;
        let (proxy, resolver, trusted) = (self.clone(), resolver.clone(), trusted.clone());
        let connect = service_fn(move |_: Uri| {
            let (proxy, resolver, trusted) = (proxy.clone(), resolver.clone(), trusted.clone());
            async move { proxy.connect(&resolver, &trusted).await.map(TokioIo::new) }
        });
        let mut tunnel = Tunnel::new(self.0.uri().clone(), connect);
        if let Some(authorization) = self.authorization() {
            tunnel = tunnel.with_auth(authorization);
        }
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, tunnel.call(uri)).await;
        let failed = |why: &dyn std::fmt::Display| {
            ConnectError::Failed(format!("the proxy {origin} opened no tunnel: {why}"))
        };
        let opened = opened.map_err(|_| failed(&"it timed out"))?;
        Ok(opened
            .map_err(|error| failed(&innermost(&error)))?
            .into_inner())
    }

    fn origin(&self) -> Result<Origin, ConnectError> {
        let url = Url::parse(&self.0.uri().to_string()).ok();
        url.as_ref()
            .and_then(Origin::of)
            .ok_or_else(|| ConnectError::Failed("the URL of the proxy has no host".to_owned()))
    }
}
