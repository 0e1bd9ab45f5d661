//! Metrics of the discovery service.

use assent_core::session::{Event, Stage};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[cfg(test)]
mod tests;

/// Metrics of the discovery service. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    streams: Family<Server, Gauge>,
    acks: Family<Answer, Counter>,
    nacks: Family<Nack, Counter>,
    stale_nonces: Counter,
    protocol_errors: Counter,
    pushes: Family<Kind, Counter>,
    push_bytes: Counter,
    refused: Family<Refusal, Counter>,
    refused_calls: Family<Refusal, Counter>,
    first_messages: Family<Reason, Counter>,
    connections: Family<Reason, Counter>,
    cut: Counter,
    throttled: Counter,
}

/// The series of one PolicyServer, so that they are looked up once per stream. They are removed
/// with the PolicyServer; streams that end later count nothing.
#[derive(Clone, Debug)]
pub(crate) struct ServerMetrics {
    streams: Gauge,
    acks: Counter,
    nacks: Counter,
}

/// Why a connection was not served, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unserved {
    /// Its TLS handshake failed.
    Tls,
    /// It did not begin with HTTP/2.
    NotHttp2,
    /// It did not begin in time.
    TooSlow,
    /// It was closed before it began.
    Closed,
    /// It violated HTTP/2 and was closed.
    Broken,
    /// Its address has too many.
    TooMany,
    /// No call on it was authenticated in time.
    Unauthenticated,
}

/// What was wrong with a first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BadFirst {
    /// No message arrived.
    Missing,
    /// The message is malformed or too long.
    Unreadable,
    /// The node is missing.
    NoNode,
    /// The node is too large.
    LargeNode,
    /// The name of the replica is malformed.
    BadId,
    /// It lists more revisions than are allowed.
    TooManyHeld,
    /// The credential belongs to another replica.
    Identity,
    /// There is no such PolicyServer.
    UnknownServer,
}

/// The kind of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Push {
    Full,
    Delta,
    NoChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Server {
    policy_server: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    policy_server: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Nack {
    policy_server: String,
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

// === impl Metrics ===

impl Metrics {
    /// Registers everything in `registry`, with the prefix of the caller.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("discovery");
        registry.register("streams", "Open streams", self.streams.clone());
        registry.register("acks", "Answers to responses", self.acks.clone());
        registry.register("nacks", "Refused responses", self.nacks.clone());
        registry.register(
            "stale_nonces",
            "Answers to superseded responses",
            self.stale_nonces.clone(),
        );
        registry.register(
            "protocol_errors",
            "Messages that made no sense",
            self.protocol_errors.clone(),
        );
        registry.register("pushes", "Responses sent", self.pushes.clone());
        registry.register(
            "push_bytes",
            "Bytes of responses sent",
            self.push_bytes.clone(),
        );
        registry.register(
            "refused_streams",
            "Streams refused or ended",
            self.refused.clone(),
        );
        self.register_bad_input(registry);
    }

    fn register_bad_input(&self, registry: &mut Registry) {
        registry.register(
            "refused_calls",
            "Calls other than streams that were refused",
            self.refused_calls.clone(),
        );
        registry.register(
            "first_message_errors",
            "Streams refused for what their first message said",
            self.first_messages.clone(),
        );
        registry.register(
            "refused_connections",
            "Connections that did not speak HTTP/2",
            self.connections.clone(),
        );
        registry.register(
            "cut_messages",
            "Answers that were longer than is kept",
            self.cut.clone(),
        );
        registry.register(
            "throttled",
            "Times that a stream sent more than is read in a second",
            self.throttled.clone(),
        );
    }

    /// Creates the series of a PolicyServer, which start at zero.
    pub(crate) fn server(&self, server: &str) -> ServerMetrics {
        ServerMetrics {
            streams: self.streams.get_or_create_owned(&Server::new(server)),
            acks: self.acks.get_or_create_owned(&Answer::new(server, "ack")),
            nacks: self.acks.get_or_create_owned(&Answer::new(server, "nack")),
        }
    }

    /// Removes the series of a PolicyServer: otherwise they would keep their last value.
    pub(crate) fn remove_server(&self, server: &str) {
        self.streams.remove(&Server::new(server));
        for result in ["ack", "nack"] {
            self.acks.remove(&Answer::new(server, result));
        }
        for stage in Stage::ALL {
            self.nacks.remove(&Nack::new(server, stage));
        }
    }

    pub(crate) fn pushed(&self, push: Push, bytes: usize) {
        let kind = push.as_str();
        self.pushes.get_or_create(&Kind { kind }).inc();
        self.push_bytes
            .inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    pub(crate) fn refused(&self, code: tonic::Code) {
        let code = format!("{code:?}");
        self.refused.get_or_create(&Refusal { code }).inc();
    }

    pub(crate) fn refused_call(&self, code: tonic::Code) {
        let code = format!("{code:?}");
        self.refused_calls.get_or_create(&Refusal { code }).inc();
    }

    pub(crate) fn refused_first(&self, bad: BadFirst) {
        let reason = bad.as_str();
        self.first_messages.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn unserved(&self, why: Unserved) {
        let reason = why.as_str();
        self.connections.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn cut(&self) {
        self.cut.inc();
    }

    pub(crate) fn throttled(&self) {
        self.throttled.inc();
    }

    pub(crate) fn count(&self, server: &str, counts: &ServerMetrics, event: Event) {
        match event {
            Event::Ack => {
                counts.acks.inc();
            }
            Event::Nack(stage) => {
                counts.nacks.inc();
                self.nacks.get_or_create(&Nack::new(server, stage)).inc();
            }
            Event::StaleNonce => {
                self.stale_nonces.inc();
            }
            Event::UnknownNonce | Event::WrongVersion => {
                self.protocol_errors.inc();
            }
        }
    }
}

// === impl ServerMetrics ===

impl ServerMetrics {
    pub(crate) fn opened(&self) {
        self.streams.inc();
    }

    pub(crate) fn closed(&self) {
        self.streams.dec();
    }
}

// === impl Unserved ===

impl Unserved {
    fn as_str(self) -> &'static str {
        match self {
            Unserved::Tls => "tls",
            Unserved::NotHttp2 => "not_http2",
            Unserved::TooSlow => "too_slow",
            Unserved::Closed => "closed",
            Unserved::Broken => "broken",
            Unserved::TooMany => "too_many",
            Unserved::Unauthenticated => "unauthenticated",
        }
    }
}

// === impl BadFirst ===

impl BadFirst {
    fn as_str(self) -> &'static str {
        match self {
            BadFirst::Missing => "missing",
            BadFirst::Unreadable => "unreadable",
            BadFirst::NoNode => "no_node",
            BadFirst::LargeNode => "large_node",
            BadFirst::BadId => "bad_id",
            BadFirst::TooManyHeld => "too_many_held",
            BadFirst::Identity => "identity",
            BadFirst::UnknownServer => "unknown_server",
        }
    }
}

// === impl Push ===

impl Push {
    fn as_str(self) -> &'static str {
        match self {
            Push::Full => "full",
            Push::Delta => "delta",
            Push::NoChange => "no_change",
        }
    }
}

// === impl Server ===

impl Server {
    fn new(policy_server: &str) -> Self {
        Self {
            policy_server: policy_server.to_owned(),
        }
    }
}

// === impl Answer ===

impl Answer {
    fn new(policy_server: &str, result: &'static str) -> Self {
        Self {
            policy_server: policy_server.to_owned(),
            result,
        }
    }
}

// === impl Nack ===

impl Nack {
    fn new(policy_server: &str, stage: Stage) -> Self {
        Self {
            policy_server: policy_server.to_owned(),
            stage: stage.as_str(),
        }
    }
}
