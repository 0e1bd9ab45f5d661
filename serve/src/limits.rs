//! How many connections a port has, and how long they last.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// The limits of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one address. All API servers may share one, if their connections go through a proxy.
    pub connections_per_peer: usize,
    /// Concurrent requests of one HTTP/2 connection.
    pub streams: u32,
    /// Time for the handshake, and again for the first request after it.
    pub first_request: Duration,
    /// How long a connection may have no request in flight.
    pub idle: Duration,
}

/// Handshakes and headers take milliseconds; a peer that takes longer holds a connection.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// Clients written in Go close idle connections after 90 s. A server that closed them earlier would sometimes do so
/// while the next request is on its way.
const IDLE: Duration = Duration::from_secs(120);

// === impl Limits ===

impl Limits {
    /// For ports that API servers call. Each keeps a few connections.
    pub const fn reviews() -> Self {
        Self {
            connections: 8_192,
            connections_per_peer: 1_024,
            // Twice what an API server has in flight on one connection by default.
            streams: 500,
            first_request: FIRST_REQUEST,
            idle: IDLE,
        }
    }

    /// For ports that Envoy calls: each of its threads has one connection with all of its requests.
    pub const fn checks() -> Self {
        Self {
            streams: 1_024,
            ..Self::reviews()
        }
    }

    /// For ports that probes and scrapers call: a handful of clients, one request at a time.
    pub const fn probes() -> Self {
        Self {
            connections: 256,
            connections_per_peer: 64,
            streams: 16,
            ..Self::reviews()
        }
    }

    /// With no more connections than the process has file descriptors for; a quarter is left for other uses.
    pub(crate) fn within_descriptors(self) -> Self {
        let open = getrlimit(Resource::Nofile).current;
        let open = open.map_or(usize::MAX, |open| {
            usize::try_from(open).unwrap_or(usize::MAX)
        });
        Self {
            connections: self.connections.min(open / 4 * 3).max(1),
            ..self
        }
    }
}
