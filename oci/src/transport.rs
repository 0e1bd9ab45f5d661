//! HTTP with limits on the addresses, the redirects and the size of responses.

mod connector;
mod dial;
mod proxy;
#[cfg(test)]
mod tests;

use std::{error::Error as StdError, time::Duration};

use ::url::Url;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioTimer},
};

use self::connector::{ConnectError, Connector};
use crate::{
    AddressPolicy, Auth, Error, Sources, SourcesError, module_url::redacted, sources::Origin,
};

/// Registries redirect once to their storage; more than a few is a loop.
const MAX_REDIRECTS: usize = 5;

/// Longer than the pauses within one pull, shorter than most servers and firewalls keep
/// an idle connection.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// As many as requests run concurrently against one HTTP/1.1 registry.
const POOL_MAX_IDLE_PER_HOST: usize = 4;

/// How long an HTTP/2 connection may be silent while a request runs before it is probed.
/// Without the probe a request on a connection that a firewall dropped waits for the
/// deadline of the whole pull.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);

/// Bodies of redirects and challenges up to this size are read and dropped, because an
/// HTTP/1.1 connection can be reused only after the body was read.
const MAX_DRAINED_BYTES: u64 = 64 << 10;

const USER_AGENT: &str = concat!("assent/", env!("CARGO_PKG_VERSION"));

/// An HTTP client with a pool of connections.
///
/// The pool belongs to one set of sources: a connection that was opened because a host was
/// declared is never reused for sources that do not declare it.
pub(crate) struct Transport {
    pub(crate) auth: Auth,
    connector: Connector,
    client: Client<Connector, Full<Bytes>>,
}

/// A response whose body has not been read.
pub(crate) struct Response {
    /// The URL that answered, after redirects.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
}

// === impl Transport ===

impl Transport {
    pub(crate) fn new(sources: Sources, addresses: AddressPolicy) -> Result<Self, SourcesError> {
        let connector = Connector::new(&sources, addresses)?;
        Ok(Self::with_connector(sources.auth, connector))
    }

    fn with_connector(auth: Auth, connector: Connector) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(POOL_MAX_IDLE_PER_HOST)
            .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
            .build(connector.clone());
        Self {
            auth,
            connector,
            client,
        }
    }

    /// Whether the host may speak plain HTTP.
    pub(crate) fn is_insecure(&self, url: &Url) -> bool {
        Origin::of(url).is_some_and(|origin| self.connector.is_insecure(&origin))
    }

    /// Gets `url`, following redirects. The authorization is sent only to the origin of
    /// `url`.
    pub(crate) async fn get(
        &self,
        url: &Url,
        accept: Option<&str>,
        authorization: Option<&str>,
    ) -> Result<Response, Error> {
        let mut target = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let authorization = authorization.filter(|_| is_same_origin(&target, url));
            let mut request = Request::get(uri(&target)?);
            if let Some(authorization) = authorization {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            request = request.header(header::ACCEPT, accept.unwrap_or("*/*"));
            let response = self.send(&target, request, Bytes::new()).await?;
            match response.redirect()? {
                Some(next) => target = next,
                None => return Ok(response),
            }
            response.drain().await;
        }
        Err(Error::Redirects {
            url: redacted(url),
            limit: MAX_REDIRECTS,
        })
    }

    /// Sends a body. It is for `url` alone: redirects are not followed.
    pub(crate) async fn upload(
        &self,
        method: Method,
        url: &Url,
        content_type: &str,
        body: Bytes,
        authorization: Option<&str>,
    ) -> Result<Response, Error> {
        let mut request = Request::builder().method(method).uri(uri(url)?);
        request = request.header(header::CONTENT_TYPE, content_type);
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        self.send(url, request, body).await
    }

    /// Posts a form. Its fields are for `url` alone: redirects are not followed.
    pub(crate) async fn post_form(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
    ) -> Result<Response, Error> {
        let request = Request::post(uri(url)?)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "*/*");
        self.send(url, request, encoded(fields)).await
    }

    async fn send(
        &self,
        url: &Url,
        mut request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response, Error> {
        request = request.header(header::USER_AGENT, USER_AGENT);
        if let Some(authorization) = self.connector.proxy_authorization(url) {
            request = request.header(header::PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body)).map_err(|_| bad_url(url))?;
        let response = self.client.request(request).await;
        let (head, body) = response
            .map_err(|error| request_error(url, &error))?
            .into_parts();
        Ok(Response {
            url: url.clone(),
            status: head.status,
            headers: head.headers,
            body,
        })
    }
}

// === impl Response ===

impl Response {
    /// Turns every status but success into an error.
    pub(crate) fn success(self) -> Result<Self, Error> {
        if self.status.is_success() {
            return Ok(self);
        }
        Err(Error::Status {
            url: redacted(&self.url),
            status: self.status.as_u16(),
        })
    }

    /// Whether `url` itself answered, rather than a server that it redirected to.
    pub(crate) fn is_from_origin_of(&self, url: &Url) -> bool {
        is_same_origin(&self.url, url)
    }

    /// The body, if it has at most `limit` bytes.
    pub(crate) async fn body(mut self, limit: usize) -> Result<Bytes, Error> {
        let too_large = |url: &Url| Error::TooLarge {
            url: redacted(url),
            limit,
        };
        if self.body.size_hint().lower() > limit as u64 {
            return Err(too_large(&self.url));
        }
        let announced = self.body.size_hint().lower() as usize;
        let mut body = BytesMut::with_capacity(announced);
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| network(&self.url, &error))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if body.len() + data.len() > limit {
                return Err(too_large(&self.url));
            }
            body.extend_from_slice(&data);
        }
        return_to_pool().await;
        Ok(body.freeze())
    }

    /// Makes the connection reusable, if that costs little.
    pub(crate) async fn drain(mut self) {
        let announced = self.body.size_hint().upper();
        if announced.is_some_and(|bytes| bytes <= MAX_DRAINED_BYTES) {
            while let Some(Ok(_)) = self.body.frame().await {}
            return_to_pool().await;
        }
    }

    fn redirect(&self) -> Result<Option<Url>, Error> {
        if !matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let bad = || Error::BadRedirect {
            url: redacted(&self.url),
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

/// Lets the task of an HTTP/1.1 connection put it back into the pool. Without this the next
/// request often looks there too early, and opens another connection.
async fn return_to_pool() {
    tokio::task::yield_now().await;
}

fn is_same_origin(a: &Url, b: &Url) -> bool {
    Origin::of(a) == Origin::of(b) && a.scheme() == b.scheme()
}

fn uri(url: &Url) -> Result<Uri, Error> {
    Uri::try_from(url.as_str()).map_err(|_| bad_url(url))
}

fn bad_url(url: &Url) -> Error {
    network(url, &"the URL can not be used in a request")
}

fn encoded(fields: &[(&str, &str)]) -> Bytes {
    let mut form = ::url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields).finish().into()
}

/// A refusal of the connector keeps its kind; everything else is a failed network.
fn request_error(url: &Url, error: &legacy::Error) -> Error {
    let host = || Origin::of(url).map_or_else(String::new, |origin| origin.to_string());
    let mut cause: &(dyn StdError + 'static) = error;
    loop {
        if let Some(refused) = cause.downcast_ref::<ConnectError>() {
            return match refused {
                ConnectError::NoHost => Error::BadRedirect { url: redacted(url) },
                ConnectError::Plain => Error::Plain {
                    url: redacted(url),
                    host: host(),
                },
                ConnectError::Address(kind) => Error::AddressRefused {
                    url: redacted(url),
                    host: host(),
                    kind,
                },
                ConnectError::Certificate(why) => Error::Certificate {
                    url: redacted(url),
                    why: why.clone(),
                },
                ConnectError::Failed(why) => network(url, why),
            };
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return network(url, &cause),
        }
    }
}

fn network(url: &Url, why: &impl ToString) -> Error {
    Error::Network {
        url: redacted(url),
        why: why.to_string(),
    }
}
