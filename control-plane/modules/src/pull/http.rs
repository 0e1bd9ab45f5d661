//! HTTP with bounds on where, how far and how much.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ::url::{Host, Url};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

use super::{
    Error, Reach, Sources, SourcesError,
    sources::{Declared, Origin},
    tls::Trust,
    url::shown,
};

/// Registries redirect once to their storage; more than a few is a loop.
const REDIRECTS: usize = 5;

/// A host that does not take a connection in this time is as good as down.
const CONNECT: Duration = Duration::from_secs(10);

const USER_AGENT: &str = concat!("assent/", env!("CARGO_PKG_VERSION"));

pub(super) struct Http {
    declared: Declared<Arc<ClientConfig>>,
    pub(super) auth: super::Auth,
    reach: Reach,
    trusted: Arc<ClientConfig>,
    untrusted: Arc<ClientConfig>,
}

/// A response whose body has not been read.
pub(super) struct Answer {
    /// Where it came from in the end.
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    incoming: Incoming,
    /// Drives the connection; ends with the answer.
    _connection: JoinSet<()>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

// === impl Http ===

impl Http {
    pub(super) fn new(sources: Sources, reach: Reach) -> Result<Self, SourcesError> {
        let trust = Trust::load();
        Ok(Self {
            declared: Declared::read(&sources, |pem| trust.with_bundle(pem))?,
            auth: sources.auth,
            reach,
            trusted: trust.system().map_err(SourcesError::Tls)?,
            untrusted: trust.anybody().map_err(SourcesError::Tls)?,
        })
    }

    /// Whether the host may speak plain HTTP.
    pub(super) fn is_insecure(&self, url: &Url) -> bool {
        Origin::of(url).is_some_and(|origin| self.declared.is_insecure(&origin))
    }

    /// Gets `url`, following redirects. The authorization goes to the host it is for
    /// and to no other.
    pub(super) async fn get(
        &self,
        url: &Url,
        accept: Option<&str>,
        authorization: Option<&str>,
    ) -> Result<Answer, Error> {
        let mut target = url.clone();
        for _ in 0..=REDIRECTS {
            let same = Origin::of(&target) == Origin::of(url) && target.scheme() == url.scheme();
            let authorization = authorization.filter(|_| same);
            let request = get(&target, accept, authorization)?;
            let answer = self.send(&target, request).await?;
            match answer.redirect()? {
                Some(next) => target = next,
                None => return Ok(answer),
            }
        }
        Err(Error::Redirects {
            url: shown(url),
            limit: REDIRECTS,
        })
    }

    /// Posts a form. What it holds is for `url` alone: redirects are not followed.
    pub(super) async fn post_form(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
    ) -> Result<Answer, Error> {
        let request = Request::post(target(url))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(url, finish(url, request, None, encoded(fields))?)
            .await
    }

    async fn send(&self, url: &Url, request: Request<Full<Bytes>>) -> Result<Answer, Error> {
        let stream = TokioIo::new(self.connect(url).await?);
        let broken = |error: hyper::Error| network(url, &error);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(broken)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // What breaks the connection is seen by whoever waits for the answer.
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.map_err(broken)?;
        let (parts, incoming) = response.into_parts();
        Ok(Answer {
            url: url.clone(),
            status: parts.status,
            headers: parts.headers,
            incoming,
            _connection: tasks,
        })
    }

    async fn connect(&self, url: &Url) -> Result<Box<dyn Stream>, Error> {
        let origin = Origin::of(url).ok_or_else(|| Error::BadRedirect { url: shown(url) })?;
        let plain = url.scheme() == "http";
        if plain && !self.declared.is_insecure(&origin) {
            return Err(Error::Plain {
                url: shown(url),
                host: origin.to_string(),
            });
        }
        let tcp = self.connect_tcp(url, &origin).await?;
        if plain {
            return Ok(Box::new(tcp));
        }
        let name = server_name(&origin).map_err(|why| network(url, &why))?;
        let connector = TlsConnector::from(self.tls(&origin));
        let stream = tokio::time::timeout(CONNECT, connector.connect(name, tcp))
            .await
            .map_err(|_| network(url, &"no TLS handshake in time"))?
            .map_err(|error| tls_error(url, &error))?;
        Ok(Box::new(stream))
    }

    async fn connect_tcp(&self, url: &Url, origin: &Origin) -> Result<TcpStream, Error> {
        let mut last = None;
        for address in self.resolve(url, origin).await? {
            match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = Some(network(url, &error)),
                Err(_) => last = Some(network(url, &"no connection in time")),
            }
        }
        Err(last.unwrap_or_else(|| network(url, &"the host has no address")))
    }

    /// The addresses that may be used. They are connected to as they are here: asking
    /// the name again could give others.
    async fn resolve(&self, url: &Url, origin: &Origin) -> Result<Vec<SocketAddr>, Error> {
        let port = origin.port;
        let mut found = match &origin.host {
            Host::Ipv4(address) => vec![SocketAddr::from((*address, port))],
            Host::Ipv6(address) => vec![SocketAddr::from((*address, port))],
            Host::Domain(name) => tokio::net::lookup_host((name.as_str(), port))
                .await
                .map_err(|_| network(url, &"the name of the host does not resolve"))?
                .collect(),
        };
        if self.declared.names(origin) {
            return Ok(found);
        }
        let mut refused = None;
        found.retain(|address| match self.reach.refusal(address.ip()) {
            Some(kind) => {
                refused = Some(kind);
                false
            }
            None => true,
        });
        match refused {
            Some(kind) if found.is_empty() => Err(Error::OutOfReach {
                url: shown(url),
                host: origin.to_string(),
                kind,
            }),
            _ => Ok(found),
        }
    }

    fn tls(&self, origin: &Origin) -> Arc<ClientConfig> {
        if self.declared.is_insecure(origin) {
            return self.untrusted.clone();
        }
        let own = self.declared.certificates(origin);
        own.unwrap_or(&self.trusted).clone()
    }
}

// === impl Answer ===

impl Answer {
    /// Turns every status but success into an error.
    pub(super) fn success(self) -> Result<Self, Error> {
        if self.status.is_success() {
            return Ok(self);
        }
        Err(Error::Status {
            url: shown(&self.url),
            status: self.status.as_u16(),
        })
    }

    /// The body, if it has at most `limit` bytes.
    pub(super) async fn body(mut self, limit: usize) -> Result<Bytes, Error> {
        let too_large = |url: &Url| Error::TooLarge {
            url: shown(url),
            limit,
        };
        let announced = hyper::body::Body::size_hint(&self.incoming).lower();
        if announced > limit as u64 {
            return Err(too_large(&self.url));
        }
        let mut body = BytesMut::new();
        while let Some(frame) = self.incoming.frame().await {
            let frame = frame.map_err(|error| network(&self.url, &error))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if body.len() + data.len() > limit {
                return Err(too_large(&self.url));
            }
            body.extend_from_slice(&data);
        }
        Ok(body.freeze())
    }

    fn redirect(&self) -> Result<Option<Url>, Error> {
        if !matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let bad = || Error::BadRedirect {
            url: shown(&self.url),
        };
        let location = self.headers.get(header::LOCATION).ok_or_else(bad)?;
        let location = location.to_str().map_err(|_| bad())?;
        let next = self.url.join(location).map_err(|_| bad())?;
        match next.scheme() {
            "http" | "https" => Ok(Some(next)),
            _ => Err(bad()),
        }
    }
}

fn get(
    url: &Url,
    accept: Option<&str>,
    authorization: Option<&str>,
) -> Result<Request<Full<Bytes>>, Error> {
    let mut request = Request::get(target(url));
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    finish(url, request, accept, Bytes::new())
}

fn encoded(fields: &[(&str, &str)]) -> Bytes {
    let mut form = ::url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields).finish().into()
}

fn target(url: &Url) -> &str {
    &url[::url::Position::BeforePath..::url::Position::AfterQuery]
}

fn finish(
    url: &Url,
    request: http::request::Builder,
    accept: Option<&str>,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, Error> {
    let host = &url[::url::Position::BeforeHost..::url::Position::AfterPort];
    request
        .header(header::HOST, host)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, accept.unwrap_or("*/*"))
        .header(header::CONNECTION, "close")
        .body(Full::new(body))
        .map_err(|_| network(url, &"the address can not be put into a request"))
}

fn server_name(origin: &Origin) -> Result<ServerName<'static>, String> {
    match &origin.host {
        Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::from(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::from(*address))),
        Host::Domain(name) => ServerName::try_from(name.clone()).map_err(|error| error.to_string()),
    }
}

fn network(url: &Url, why: &impl ToString) -> Error {
    Error::Network {
        url: shown(url),
        why: why.to_string(),
    }
}

fn tls_error(url: &Url, error: &std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|e| e.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => Error::Certificate {
            url: shown(url),
            why: error.to_string(),
        },
        _ => network(url, error),
    }
}
