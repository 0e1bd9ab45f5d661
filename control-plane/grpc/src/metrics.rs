//! What the discovery service counts.

use assent_core::session::{Event, Stage};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

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
}

/// What was pushed.
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

// === impl Metrics ===

impl Metrics {
    /// Enters everything into `registry`, whose prefix is the caller's.
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
    }

    pub(crate) fn opened(&self, server: &str) {
        self.streams.get_or_create(&Server::new(server)).inc();
    }

    pub(crate) fn closed(&self, server: &str) {
        self.streams.get_or_create(&Server::new(server)).dec();
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

    pub(crate) fn count(&self, server: &str, event: Event) {
        match event {
            Event::Ack => self.answered(server, "ack"),
            Event::Nack(stage) => {
                self.answered(server, "nack");
                self.nacked(server, stage);
            }
            Event::StaleNonce => {
                self.stale_nonces.inc();
            }
            Event::UnknownNonce | Event::WrongVersion => {
                self.protocol_errors.inc();
            }
        }
    }

    fn answered(&self, server: &str, result: &'static str) {
        let policy_server = server.to_owned();
        let labels = Answer {
            policy_server,
            result,
        };
        self.acks.get_or_create(&labels).inc();
    }

    fn nacked(&self, server: &str, stage: Stage) {
        let labels = Nack {
            policy_server: server.to_owned(),
            stage: stage.as_str(),
        };
        self.nacks.get_or_create(&labels).inc();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn series_have_their_documented_names() {
        let metrics = Metrics::default();
        metrics.opened("default");
        metrics.count("default", Event::Ack);
        metrics.count("default", Event::Nack(Stage::Compile));
        metrics.count("default", Event::StaleNonce);
        metrics.count("default", Event::UnknownNonce);
        metrics.pushed(Push::NoChange, 7);
        metrics.refused(tonic::Code::NotFound);
        let mut registry = Registry::default();
        metrics.register(registry.sub_registry_with_prefix("assent"));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"assent_discovery_streams{policy_server="default"} 1"#,
            r#"assent_discovery_acks_total{policy_server="default",result="ack"} 1"#,
            r#"assent_discovery_acks_total{policy_server="default",result="nack"} 1"#,
            r#"assent_discovery_nacks_total{policy_server="default",stage="compile"} 1"#,
            "assent_discovery_stale_nonces_total 1",
            "assent_discovery_protocol_errors_total 1",
            r#"assent_discovery_pushes_total{kind="no_change"} 1"#,
            "assent_discovery_push_bytes_total 7",
            r#"assent_discovery_refused_streams_total{code="NotFound"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
