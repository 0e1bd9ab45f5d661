//! Connections that stay open and send one review after the other.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

use super::{REVIEW, certificate};

/// Open connections and what they ask.
pub(crate) struct Client {
    connections: Vec<Connection>,
    work: Arc<Work>,
}

/// What is asked, and what the answer must be.
struct Work {
    paths: Vec<String>,
    good: fn(&[u8]) -> bool,
}

/// What one run saw.
pub(crate) struct Measured {
    /// Of every request, in order.
    pub(crate) latencies: Vec<Duration>,
    /// From the first request to the last answer.
    pub(crate) took: Duration,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Which path comes next: connections begin at different ones.
    next: usize,
}

// === impl Client ===

impl Client {
    /// Opens connections that will ask `paths` in turn. Answers that are not `good` end a run.
    pub(crate) async fn open(
        address: SocketAddr,
        tls: Arc<ClientConfig>,
        connections: usize,
        paths: Vec<String>,
        good: fn(&[u8]) -> bool,
    ) -> anyhow::Result<Self> {
        let mut opened = Vec::with_capacity(connections);
        for n in 0..connections {
            let next = n * paths.len() / connections;
            opened.push(Connection::open(address, tls.clone(), next).await?);
        }
        Ok(Self {
            connections: opened,
            work: Arc::new(Work { paths, good }),
        })
    }

    /// Keeps every connection busy for `time`.
    pub(crate) async fn run(&mut self, time: Duration) -> anyhow::Result<Measured> {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for connection in self.connections.drain(..) {
            tasks.spawn(connection.run(self.work.clone(), start + time));
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (connection, seen) = done??;
            self.connections.push(connection);
            latencies.extend(seen);
        }
        let took = start.elapsed();
        latencies.sort_unstable();
        Ok(Measured { latencies, took })
    }
}

// === impl Connection ===

impl Connection {
    async fn open(
        address: SocketAddr,
        tls: Arc<ClientConfig>,
        next: usize,
    ) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(certificate::NAME)?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, next })
    }

    async fn run(
        mut self,
        work: Arc<Work>,
        until: Instant,
    ) -> anyhow::Result<(Self, Vec<Duration>)> {
        let mut seen = Vec::new();
        let mut start = Instant::now();
        while start < until {
            let path = &work.paths[self.next % work.paths.len()];
            self.next += 1;
            self.ask(path, work.good).await?;
            let end = Instant::now();
            seen.push(end - start);
            start = end;
        }
        Ok((self, seen))
    }

    async fn ask(&mut self, path: &str, good: fn(&[u8]) -> bool) -> anyhow::Result<()> {
        let request = Request::post(path)
            .header("host", certificate::NAME)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(REVIEW)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.context("failed to read an answer")?.to_bytes();
        ensure!(
            status.is_success() && good(&body),
            "{path} was answered with {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }
}

// === impl Measured ===

impl Measured {
    /// Requests a second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// The latency that this share of all requests did not exceed.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

/// A policy that allows.
pub(crate) fn allowed(answer: &[u8]) -> bool {
    const ALLOWED: &[u8] = br#""allowed":true"#;
    answer.windows(ALLOWED.len()).any(|part| part == ALLOWED)
}

/// The review itself.
pub(crate) fn echoed(answer: &[u8]) -> bool {
    answer.len() == REVIEW.len()
}
