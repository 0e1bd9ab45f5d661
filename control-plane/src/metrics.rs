//! What the control plane counts, besides its discovery service.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use assent_context::{CollectionSpec, Mark};
use assent_core::fleet::ReplicaState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// What policies are counted by.
pub(crate) const POLICY_STATES: [&str; 3] = ["enforced", "progressing", "refused"];

/// Label `policy_server`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ServerLabel {
    /// The PolicyServer.
    pub(crate) policy_server: String,
}

/// Labels `policy_server` and `state`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabels {
    /// The PolicyServer.
    pub(crate) policy_server: String,
    /// What of it is counted.
    pub(crate) state: &'static str,
}

/// Label `result`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    /// `ok` or `error`.
    pub(crate) result: &'static str,
}

/// Label `certificate`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CertificateLabel {
    /// `authority` or `serving`.
    pub(crate) certificate: &'static str,
}

/// Label `mechanism`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MechanismLabel {
    /// `landlock`, `seccomp`, `no_new_privileges` or `unprivileged`.
    pub(crate) mechanism: &'static str,
}

/// Labels `api_version`, `kind` and `collection`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CollectionLabels {
    /// Its version.
    pub(crate) api_version: String,
    /// Its kind.
    pub(crate) kind: String,
    /// The first characters of its id: a kind may have several collections.
    pub(crate) collection: String,
}

/// Metrics of the driver.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// Replicas by what they do about the current version.
    pub(crate) replicas: Family<StateLabels, Gauge>,
    /// First 48 bits of the version, so that a change makes no new series.
    pub(crate) snapshot_version: Family<ServerLabel, Gauge>,
    /// Change published to last replica's acknowledgement.
    pub(crate) publish_to_applied: Histogram,
    /// Generation seen to webhook flipped.
    pub(crate) change_to_enforced: Histogram,
    /// Policies by what is true of them.
    pub(crate) policies: Family<StateLabels, Gauge>,
    /// Fetching a module.
    pub(crate) module_pull: Histogram,
    /// Vetting a module, compilation included.
    pub(crate) module_compile: Histogram,
    /// Routes pointed at another revision.
    pub(crate) webhook_flips: Counter,
    /// Statuses and revisions stored.
    pub(crate) status_writes: Family<ResultLabel, Counter>,
    /// 1 if this process leads.
    pub(crate) leader: Gauge,
    /// Pods that asked for an evaluator and have none.
    pub(crate) uninjected_pods: Gauge,
    /// PolicyRevisions that belong to no policy.
    pub(crate) foreign_revisions: Gauge,
    /// When certificates in use end; no series if there are none.
    pub(crate) certificate_expiry: Family<CertificateLabel, Gauge>,
    /// What confines the processes that vet modules; no series before that is known.
    pub(crate) vetting_confinement: Family<MechanismLabel, Gauge>,
    /// Objects that policies read.
    pub(crate) context_objects: Family<CollectionLabels, Gauge>,
    /// Bytes of objects that policies read.
    pub(crate) context_bytes: Family<CollectionLabels, Gauge>,
    /// How long ago a collection was known to be what the API server has.
    pub(crate) context_age: Family<CollectionLabels, Gauge>,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            replicas: Family::default(),
            snapshot_version: Family::default(),
            publish_to_applied: seconds(),
            change_to_enforced: seconds(),
            policies: Family::default(),
            module_pull: seconds(),
            module_compile: seconds(),
            webhook_flips: Counter::default(),
            status_writes: Family::default(),
            leader: Gauge::default(),
            uninjected_pods: Gauge::default(),
            foreign_revisions: Gauge::default(),
            certificate_expiry: Family::default(),
            vetting_confinement: Family::default(),
            context_objects: Family::default(),
            context_bytes: Family::default(),
            context_age: Family::default(),
        }
    }
}

impl Metrics {
    /// Counts a write of something stored.
    pub(crate) fn count_write(&self, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        let label = ResultLabel { result };
        self.status_writes.get_or_create(&label).inc();
    }

    /// Notes whether a mechanism confines the processes that vet modules.
    pub(crate) fn set_confinement(&self, mechanism: &'static str, in_force: bool) {
        let label = MechanismLabel { mechanism };
        let gauge = self.vetting_confinement.get_or_create(&label);
        gauge.set(in_force.into());
    }

    /// Brings the gauges of collections up to date.
    pub(crate) fn measure_context(&self, marks: &[(Arc<CollectionSpec>, Mark)]) {
        let families = [
            &self.context_objects,
            &self.context_bytes,
            &self.context_age,
        ];
        families.iter().for_each(|family| family.clear());
        for (spec, mark) in marks {
            let labels = CollectionLabels {
                api_version: spec.api_version().to_owned(),
                kind: spec.kind().to_owned(),
                collection: spec.id().to_string().chars().take(8).collect(),
            };
            let values = [mark.totals.objects, mark.totals.bytes, mark.age.as_secs()];
            for (family, value) in families.iter().zip(values) {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                family.get_or_create(&labels).set(value);
            }
        }
    }

    /// Notes when a certificate ends.
    pub(crate) fn certificate_ends(&self, certificate: &'static str, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let label = CertificateLabel { certificate };
        self.certificate_expiry.get_or_create(&label).set(seconds);
    }

    /// The PolicyServer is gone, and so is everything that is told of it.
    pub(crate) fn forget_server(&self, server: &str) {
        self.snapshot_version.remove(&ServerLabel {
            policy_server: server.to_owned(),
        });
        let labels = |state| StateLabels {
            policy_server: server.to_owned(),
            state,
        };
        for state in ReplicaState::ALL {
            self.replicas.remove(&labels(state.as_str()));
        }
        for state in POLICY_STATES {
            self.policies.remove(&labels(state));
        }
    }

    /// Registers everything; the registry brings the prefix.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "replicas",
            "Replicas by what they do about the current version",
            self.replicas.clone(),
        );
        registry.register(
            "snapshot_version",
            "First 48 bits of the snapshot version",
            self.snapshot_version.clone(),
        );
        registry.register_with_unit(
            "publish_to_applied",
            "Time from a published change to the last acknowledgement",
            Unit::Seconds,
            self.publish_to_applied.clone(),
        );
        registry.register_with_unit(
            "change_to_enforced",
            "Time from a generation seen to its webhook flipped",
            Unit::Seconds,
            self.change_to_enforced.clone(),
        );
        registry.register(
            "policies",
            "Policies by what is true of them",
            self.policies.clone(),
        );
        registry.register_with_unit(
            "module_pull",
            "Time to fetch a module",
            Unit::Seconds,
            self.module_pull.clone(),
        );
        registry.register_with_unit(
            "module_compile",
            "Time to vet and compile a module",
            Unit::Seconds,
            self.module_compile.clone(),
        );
        registry.register(
            "webhook_flips",
            "Routes pointed at another revision",
            self.webhook_flips.clone(),
        );
        registry.register(
            "status_writes",
            "Stored statuses and revisions",
            self.status_writes.clone(),
        );
        registry.register(
            "leader",
            "Whether this process decides",
            self.leader.clone(),
        );
        registry.register(
            "uninjected_pods",
            "Pods that asked for an evaluator and have none",
            self.uninjected_pods.clone(),
        );
        registry.register(
            "foreign_revisions",
            "PolicyRevisions that belong to no policy: forged or damaged, and ignored",
            self.foreign_revisions.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate in use ends, in seconds since 1970",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "vetting_confinement",
            "Whether a mechanism confines the processes that vet modules",
            self.vetting_confinement.clone(),
        );
        registry.register(
            "context_objects",
            "Objects in a collection that policies read",
            self.context_objects.clone(),
        );
        registry.register(
            "context_bytes",
            "Bytes of the objects in a collection that policies read",
            self.context_bytes.clone(),
        );
        registry.register(
            "context_source_age_seconds",
            "Time since a collection was known to be what the API server has",
            self.context_age.clone(),
        );
    }
}

/// From a millisecond to two minutes: a push to a laptop, and a rollout to a slow cluster.
fn seconds() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.001, 2.0, 18,
    ))
}
