//! What streams tell the driver.

use std::sync::Arc;

use assent_core::{
    fleet::{Name, Node},
    session::Report,
};

/// What streams and health checks tell the driver, in the order in which it happened on
/// one stream. The channel is bounded: when it is full, the stream that wants to say
/// something waits, and nobody else.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An authenticated stream opened.
    Opened {
        /// Its PolicyServer.
        server: Name,
        /// What the client says of itself.
        node: Node,
        /// What its credential says.
        identity: String,
        /// The stream's number; later streams of a replica have higher ones.
        stream: u64,
    },
    /// A stream's replica was sent something, or said something.
    Reported {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The stream.
        stream: u64,
        /// What it has and said.
        report: Report,
    },
    /// A stream ended, or its client no longer reads.
    Closed {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The stream.
        stream: u64,
    },
    /// A replica was heard of outside its stream.
    Heard {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
    },
    /// A replica saw requests on a retired route since its last health check.
    RetiredRequests {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The route.
        path: Arc<str>,
        /// How many.
        requests: u64,
    },
}
