//! What is counted of context streams.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Metrics of context streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContextMetrics {
    pub(super) streams: Gauge,
    pub(super) objects_sent: Counter,
    pub(super) bytes_sent: Counter,
    pub(super) rejected: Counter,
    pub(super) resyncs: Counter,
    pub(super) protocol_errors: Counter,
    pub(super) queries: Counter,
    pub(super) queries_refused: Counter,
}

// === impl ContextMetrics ===

impl ContextMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let ContextMetrics {
            streams,
            objects_sent,
            bytes_sent,
            rejected,
            resyncs,
            protocol_errors,
            queries,
            queries_refused,
        } = self;
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter(
            "context_objects_sent",
            "Objects and deletions sent to evaluators",
            objects_sent,
        );
        counter(
            "context_bytes_sent",
            "Bytes of objects sent to evaluators",
            bytes_sent,
        );
        counter(
            "context_rejected",
            "Responses of context streams that evaluators did not take, such as for another root",
            rejected,
        );
        counter(
            "context_resyncs",
            "Collections of single evaluators that were compared bucket by bucket",
            resyncs,
        );
        counter(
            "context_protocol_errors",
            "Answers of evaluators to responses that were not sent",
            protocol_errors,
        );
        counter(
            "context_queries",
            "Live reads and access reviews for evaluators",
            queries,
        );
        counter(
            "context_queries_refused",
            "Live reads and access reviews that were refused or failed",
            queries_refused,
        );
        registry.register("context_streams", "Open context streams", streams.clone());
    }
}
