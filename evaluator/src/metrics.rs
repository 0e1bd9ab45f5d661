//! Counters and gauges, and how they are written for Prometheus.

use assent_core::{Mode, Policy};
use prometheus_client::{
    encoding::{EncodeLabel as _, EncodeLabelSet, LabelSetEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

mod denials;

use denials::Denials;

/// What every name begins with.
const PREFIX: &str = "assent";

/// Everything that one evaluator counts. Cheap to clone; clones count together.
#[derive(Clone)]
pub(crate) struct Metrics {
    evaluations: Family<VerdictLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    pub(crate) evaluation_seconds: Histogram,
    pub(crate) loaded_policies: Gauge,
    pub(crate) rejected_policies: Gauge,
    pub(crate) snapshot_version: Gauge,
    pub(crate) swap_seconds: Histogram,
    pub(crate) retired_path_requests: Counter,
    pub(crate) overload_rejections: Counter,
    pub(crate) connected: Gauge,
    pub(crate) state_errors: Counter,
    pub(crate) context_mismatches: Counter,
    pub(crate) certificate_expiry: Family<CertificateLabels, Gauge>,
    pub(crate) requests: Family<CodeLabels, Counter>,
    pub(crate) denials: Denials,
    dropped_decisions: Family<DropLabels, Counter>,
}

/// The counters of one revision, looked up once.
#[derive(Clone)]
pub(crate) struct PolicyMetrics {
    pub(crate) allowed: Counter,
    pub(crate) denied: Counter,
    pub(crate) mutated: Counter,
    errors: Family<ErrorLabels, Counter>,
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VerdictLabels {
    policy: String,
    mode: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ErrorLabels {
    policy: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CodeLabels {
    pub(crate) code: u16,
    pub(crate) endpoint: Endpoint,
}

/// What was asked. Series of the review port have no such label, those of Envoy's port have `endpoint="authz"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Reviews,
    Authz,
}

/// Why a line of the decision log was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DropLabels {
    reason: &'static str,
}

/// A family, so that there is no series before there is a certificate: zero is 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CertificateLabels {
    pub(crate) certificate: &'static str,
}

const VERDICTS: [&str; 3] = ["allowed", "denied", "mutated"];
const MODES: [&str; 2] = ["protect", "monitor"];

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            evaluations: Family::default(),
            errors: Family::default(),
            // 10 µs to 10 s: a small policy takes some 10 µs, a deadline is seconds.
            evaluation_seconds: Histogram::new(exponential_buckets(10e-6, 2.0, 21)),
            loaded_policies: Gauge::default(),
            rejected_policies: Gauge::default(),
            snapshot_version: Gauge::default(),
            // Swapping a pointer takes microseconds, building a set of thousands milliseconds.
            swap_seconds: Histogram::new(exponential_buckets(10e-6, 4.0, 10)),
            retired_path_requests: Counter::default(),
            overload_rejections: Counter::default(),
            connected: Gauge::default(),
            state_errors: Counter::default(),
            context_mismatches: Counter::default(),
            certificate_expiry: Family::default(),
            requests: Family::default(),
            denials: Denials::default(),
            dropped_decisions: Family::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let to = registry.sub_registry_with_prefix(PREFIX);
        to.register(
            "context_mismatches",
            "States of collections that did not match their root",
            self.context_mismatches.clone(),
        );
        to.register(
            "evaluations",
            "Verdicts of policies",
            self.evaluations.clone(),
        );
        to.register(
            "evaluation_errors",
            "Evaluations without a verdict",
            self.errors.clone(),
        );
        to.register(
            "evaluation_seconds",
            "Time of one evaluation",
            self.evaluation_seconds.clone(),
        );
        to.register(
            "loaded_policies",
            "Revisions that are loaded",
            self.loaded_policies.clone(),
        );
        to.register(
            "rejected_policies",
            "Announced revisions that are not loaded",
            self.rejected_policies.clone(),
        );
        to.register(
            "snapshot_version",
            "First 48 bits of the version in place",
            self.snapshot_version.clone(),
        );
        to.register(
            "swap_seconds",
            "Time to put a set in place",
            self.swap_seconds.clone(),
        );
        to.register(
            "retired_path_requests",
            "Requests on paths that no webhook should name any more",
            self.retired_path_requests.clone(),
        );
        to.register(
            "overload_rejections",
            "Requests refused because too many were waiting",
            self.overload_rejections.clone(),
        );
        to.register(
            "connected",
            "Whether the discovery stream is open",
            self.connected.clone(),
        );
        to.register(
            "state_errors",
            "Failures to keep the last good set on disk",
            self.state_errors.clone(),
        );
        to.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate in use ends, in seconds since 1970",
            self.certificate_expiry.clone(),
        );
        to.register(
            "http_requests",
            "Review requests by status code",
            self.requests.clone(),
        );
        to.register(
            "denials",
            "Denials and errors by kind and namespace, those of monitor mode included",
            self.denials.family(),
        );
        to.register(
            "decision_log_dropped",
            "Lines that are missing in the decision log",
            self.dropped_decisions.clone(),
        );
    }

    /// The counters of one revision's policy.
    pub(crate) fn of(&self, policy: &Policy) -> PolicyMetrics {
        let mode = match policy.content.mode {
            Mode::Protect => "protect",
            Mode::Monitor => "monitor",
        };
        let counter = |verdict| {
            let policy = policy.policy.to_string();
            self.evaluations.get_or_create_owned(&VerdictLabels {
                policy,
                mode,
                verdict,
            })
        };
        PolicyMetrics {
            allowed: counter("allowed"),
            denied: counter("denied"),
            mutated: counter("mutated"),
            errors: self.errors.clone(),
            policy: policy.policy.to_string(),
        }
    }

    /// Counts a line that is missing in the decision log.
    pub(crate) fn dropped_decisions(&self, labels: DropLabels) {
        self.dropped_decisions.get_or_create(&labels).inc();
    }

    /// Forgets a policy that is gone, so that series do not grow for ever.
    pub(crate) fn forget(&self, policy: &str, reasons: &[&'static str]) {
        for mode in MODES {
            for verdict in VERDICTS {
                let policy = policy.to_owned();
                self.evaluations.remove(&VerdictLabels {
                    policy,
                    mode,
                    verdict,
                });
            }
        }
        for reason in reasons {
            let policy = policy.to_owned();
            self.errors.remove(&ErrorLabels { policy, reason });
        }
    }
}

// === impl DropLabels ===

impl DropLabels {
    /// More decisions than the log takes in a second.
    pub(crate) const RATE: Self = Self { reason: "rate" };
    /// The output is slower than decisions are made.
    pub(crate) const QUEUE: Self = Self { reason: "queue" };
    /// The output can't be written to.
    pub(crate) const WRITE: Self = Self { reason: "write" };
}

// === impl Endpoint ===

impl Endpoint {
    fn of(policy: &str) -> Self {
        match assent_core::policy::is_for_requests(policy) {
            true => Self::Authz,
            false => Self::Reviews,
        }
    }

    fn encode(self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        match self {
            Self::Reviews => Ok(()),
            Self::Authz => ("endpoint", "authz").encode(encoder.encode_label()),
        }
    }
}

// === labels ===

impl EncodeLabelSet for VerdictLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("policy", self.policy.as_str()).encode(encoder.encode_label())?;
        ("mode", self.mode).encode(encoder.encode_label())?;
        ("verdict", self.verdict).encode(encoder.encode_label())?;
        Endpoint::of(&self.policy).encode(encoder)
    }
}

impl EncodeLabelSet for ErrorLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("policy", self.policy.as_str()).encode(encoder.encode_label())?;
        ("reason", self.reason).encode(encoder.encode_label())?;
        Endpoint::of(&self.policy).encode(encoder)
    }
}

impl EncodeLabelSet for CodeLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("code", self.code).encode(encoder.encode_label())?;
        self.endpoint.encode(encoder)
    }
}

// === impl PolicyMetrics ===

impl PolicyMetrics {
    pub(crate) fn error(&self, reason: &'static str) {
        let policy = self.policy.clone();
        self.errors
            .get_or_create(&ErrorLabels { policy, reason })
            .inc();
    }
}

/// Writes all metrics in Prometheus' own text format. The encoder speaks OpenMetrics, which
/// names a counter's family without `_total`: a classic reader would not find its type.
pub fn render(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut open = String::new();
    prometheus_client::encoding::text::encode(&mut open, registry)?;
    let mut out = String::with_capacity(open.len());
    let mut help = "";
    for line in open.lines() {
        if line.starts_with("# HELP ") {
            help = line;
        } else if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap_or((family, "untyped"));
            let total = if kind == "counter" { "_total" } else { "" };
            let words = help.splitn(4, ' ').nth(3).unwrap_or_default();
            out += &format!("# HELP {name}{total} {words}\n# TYPE {name}{total} {kind}\n");
        } else if !line.starts_with('#') {
            out += line;
            out.push('\n');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counters_are_typed_under_their_own_name() {
        let metrics = Metrics::new();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let policy = crate::announced::tests::mk_policy("a", 1, "x");
        metrics.of(&policy).denied.inc();
        metrics.of(&policy).error("trap");
        metrics.overload_rejections.inc();
        let text = render(&registry).unwrap();
        for line in [
            "# TYPE assent_evaluations_total counter",
            "assent_evaluations_total{policy=\"cluster/a\",mode=\"protect\",verdict=\"denied\"} 1",
            "assent_evaluation_errors_total{policy=\"cluster/a\",reason=\"trap\"} 1",
            "assent_overload_rejections_total 1",
            "# TYPE assent_evaluation_seconds histogram",
            "assent_evaluation_seconds_count 0",
            "assent_connected 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("EOF"));
        metrics.forget("cluster/a", &["trap"]);
        assert!(!render(&registry).unwrap().contains("cluster/a"));
    }
}
