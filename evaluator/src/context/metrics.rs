//! What is replicated, as metrics: computed when they are asked for, because ages grow by themselves.

use std::{fmt, sync::Arc, time::Instant};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::data::{ContextData, View};

/// Writes the series of every collection.
#[derive(Clone)]
pub(crate) struct ContextMetrics(pub(crate) Arc<ContextData>);

impl Collector for ContextMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, now) = (self.0.load(), Instant::now());
        type Read = fn(&View, Instant) -> f64;
        let gauges: [(&str, &str, Read); 4] = [
            (
                "assent_context_age_seconds",
                "How old the state of a collection is",
                |view, now| view.age_at(now).as_secs_f64(),
            ),
            (
                "assent_context_objects",
                "Objects of a collection",
                |view, _| totals(view).objects as f64,
            ),
            (
                "assent_context_bytes",
                "Bytes of the objects of a collection",
                |view, _| totals(view).bytes as f64,
            ),
            (
                "assent_context_readable",
                "Whether policies can read a collection",
                |view, _| {
                    f64::from(u8::from(
                        view.snapshot.is_some() && view.state.is_readable(),
                    ))
                },
            ),
        ];
        for (name, help, read) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for view in state.views() {
                let labels = [
                    ("collection", view.spec.id().to_string()),
                    ("api_version", view.spec.api_version().to_owned()),
                    ("kind", view.spec.kind().to_owned()),
                ];
                let gauge = ConstGauge::new(read(view, now));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ContextMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContextMetrics")
    }
}

fn totals(view: &View) -> assent_context::Totals {
    let snapshot = view.snapshot.as_ref();
    snapshot
        .map(|snapshot| snapshot.totals())
        .unwrap_or_default()
}
