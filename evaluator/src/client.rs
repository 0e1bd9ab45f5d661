//! The connection to the control plane: keepalive, trust, and the token on every call.

use std::{path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use http::Uri;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// A channel that sends the token along.
pub(crate) type Connection = InterceptedService<Channel, Token>;

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    uri: Uri,
    ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
    token: Token,
}

/// The bearer token, as last read.
#[derive(Clone, Default)]
pub(crate) struct Token(Arc<ArcSwapOption<MetadataValue<Ascii>>>);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read {path}: {source}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("failed to use the token in {0}: it is not one line of text")]
    Token(PathBuf),
    #[error("failed to connect to {uri}: {why}")]
    Connect { uri: Uri, why: String },
    #[error("failed to follow the control plane to its leader at {0:?}: not an address")]
    Leader(String),
}

/// A pod that is gone does not answer at all.
const CONNECT: Duration = Duration::from_secs(5);

/// A peer that vanished is noticed after both: well below 40 s.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Connector ===

impl Connector {
    pub(crate) fn new(uri: Uri, ca: Option<PathBuf>, token_file: Option<PathBuf>) -> Self {
        Self {
            uri,
            ca,
            token_file,
            token: Token::default(),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Connects to the control plane, or to the leader that it named.
    pub(crate) async fn connect(&self, leader: Option<&str>) -> Result<Connection, Error> {
        self.read_token()?;
        let uri = match leader {
            Some(leader) => self.at(leader)?,
            None => self.uri.clone(),
        };
        let failed = |error: tonic::transport::Error| Error::Connect {
            uri: uri.clone(),
            why: chain(&error),
        };
        let mut endpoint = Endpoint::from(uri.clone())
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if self.is_tls() {
            endpoint = endpoint.tls_config(self.tls()?).map_err(failed)?;
        }
        let channel = endpoint.connect().await.map_err(failed)?;
        Ok(InterceptedService::new(channel, self.token.clone()))
    }

    /// Reads the token again: projected tokens rotate.
    pub(crate) fn read_token(&self) -> Result<(), Error> {
        let Some(path) = &self.token_file else {
            return Ok(());
        };
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", text.trim())
            .parse()
            .map_err(|_| Error::Token(path.clone()))?;
        value.set_sensitive(true);
        self.token.0.store(Some(Arc::new(value)));
        Ok(())
    }

    /// The same scheme at another address, which may come with or without its own.
    fn at(&self, leader: &str) -> Result<Uri, Error> {
        let wrong = || Error::Leader(leader.to_owned());
        let bare = leader.split_once("://").map_or(leader, |(_, rest)| rest);
        let authority = bare.trim_end_matches('/');
        Uri::builder()
            .scheme(self.uri.scheme_str().unwrap_or("http"))
            .authority(authority)
            .path_and_query("/")
            .build()
            .map_err(|_| wrong())
    }

    /// The authorities that the control plane's certificate must come from, PEM; none if they are the system's.
    pub(crate) fn authorities(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(path) = &self.ca else {
            return Ok(None);
        };
        let pem = std::fs::read(path).map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        Ok(Some(pem))
    }

    /// The leader is reached by its address and known by the name that was configured.
    fn tls(&self) -> Result<ClientTlsConfig, Error> {
        let mut tls = ClientTlsConfig::new();
        if let Some(host) = self.uri.host() {
            tls = tls.domain_name(host.trim_matches(['[', ']']));
        }
        Ok(match self.authorities()? {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_enabled_roots(),
        })
    }
}

// === impl Token ===

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = self.0.load_full() {
            request
                .metadata_mut()
                .insert("authorization", (*token).clone());
        }
        Ok(request)
    }
}

/// The error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_leader_is_reached_over_the_same_scheme() {
        let connector = Connector::new("https://assent:15010".parse().unwrap(), None, None);
        for given in [
            "10.0.0.7:15010",
            "https://10.0.0.7:15010",
            "http://10.0.0.7:15010/",
        ] {
            let uri = connector.at(given).unwrap();
            assert_eq!(uri.to_string(), "https://10.0.0.7:15010/", "{given}");
        }
        assert!(connector.at("not an address").is_err());
        assert!(connector.at("").is_err());
    }

    #[test]
    fn a_token_is_read_again_and_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let connector = Connector::new("http://a".parse().unwrap(), None, Some(path.clone()));
        for token in ["one", "two"] {
            std::fs::write(&path, format!("{token}\n")).unwrap();
            connector.read_token().unwrap();
            let request = connector.token.clone().call(Request::new(())).unwrap();
            let value = request.metadata().get("authorization").unwrap();
            assert_eq!(value.to_str().unwrap(), format!("Bearer {token}"));
            assert!(!format!("{value:?}").contains(token));
        }
        std::fs::write(&path, "a\u{0}b").unwrap();
        assert!(connector.read_token().is_err());
    }
}
