//! What single objects say about the installation.

use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyServer};
use jiff::Timestamp;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Condition,
};

use super::{Area, Finding, MAX_ROWS, Verdict};

/// A policy of either kind.
pub(super) struct Policy<'a> {
    name: String,
    generation: i64,
    conditions: &'a [Condition],
}

/// A self-managed authority is replaced long before.
const EXPIRES_SOON: i64 = 7 * 86_400;

/// The leader renews its Lease several times within its duration.
const LEASE_SECONDS: i64 = 15;

/// Whether the control plane runs.
pub(super) fn pods(pods: &[Pod], namespace: &str) -> Vec<Finding> {
    let problem = |text: String, remedy: String| {
        Finding::new(Area::ControlPlane, Verdict::Problem, text, remedy)
    };
    if pods.is_empty() {
        let text = format!("there is no pod of the control plane in the namespace {namespace}");
        let remedy = "install the chart, or name its namespace with --assent-namespace".to_owned();
        return vec![problem(text, remedy)];
    }
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let images: std::collections::BTreeSet<&str> = pods.iter().filter_map(image).collect();
    let mut findings = Vec::new();
    match (ready, pods.len()) {
        (0, _) => findings.push(problem(
            "no pod of the control plane is ready".to_owned(),
            format!("kubectl logs -n {namespace} -l app.kubernetes.io/component=control-plane"),
        )),
        (ready, all) if ready < all => findings.push(Finding::new(
            Area::ControlPlane,
            Verdict::Warning,
            format!("{ready} of {all} pods of the control plane are ready"),
            format!("kubectl get pods -n {namespace}"),
        )),
        (1, _) => findings.push(Finding::new(
            Area::ControlPlane,
            Verdict::Warning,
            "there is one pod of the control plane",
            "run two or more (controlPlane.replicas): policies cannot be changed while it restarts",
        )),
        (ready, _) => {
            let text = format!("{ready} pods of the control plane are ready");
            findings.push(Finding::good(Area::ControlPlane, text));
        }
    }
    if images.len() > 1 {
        let images: Vec<&str> = images.into_iter().collect();
        findings.push(Finding::new(
            Area::ControlPlane,
            Verdict::Warning,
            format!(
                "pods of the control plane have different images: {}",
                images.join(", ")
            ),
            "an upgrade is in progress, or was interrupted: kubectl rollout status",
        ));
    }
    findings
}

/// Whether somebody leads.
pub(super) fn lease(lease: Option<&Lease>, namespace: &str, now: Timestamp) -> Finding {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    let holder = holder.filter(|holder| !holder.is_empty());
    let problem = |text: String| {
        let remedy =
            format!("kubectl logs -n {namespace} -l app.kubernetes.io/component=control-plane");
        Finding::new(Area::ControlPlane, Verdict::Problem, text, remedy)
    };
    let Some(holder) = holder else {
        return problem("no replica of the control plane leads".to_owned());
    };
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.map_or(LEASE_SECONDS, i64::from);
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    // Twice the duration: the clocks of two machines differ.
    match renewed.map(|at| now.as_second() - at.0.as_second()) {
        Some(age) if age <= 2 * seconds => {
            Finding::good(Area::ControlPlane, format!("{holder} leads"))
        }
        Some(age) => problem(format!(
            "{holder} leads, but has not renewed its Lease for {age} s"
        )),
        None => problem(format!("{holder} leads, but has never renewed its Lease")),
    }
}

/// Whether the certificates of the authority are valid.
pub(super) fn authority(bundle: Option<&str>, now: Timestamp) -> Vec<Finding> {
    let problem = |text: &str| {
        let remedy = "the control plane writes it: check its log";
        vec![Finding::new(
            Area::Certificates,
            Verdict::Problem,
            text,
            remedy,
        )]
    };
    let Some(bundle) = bundle else {
        return problem("the ConfigMap assent-ca has no certificates");
    };
    let Ok(certificates) = assent_pki::split(bundle) else {
        return problem("the ConfigMap assent-ca has no certificates");
    };
    let mut newest = 0;
    for certificate in certificates {
        let Ok(certificate) = assent_pki::read(&certificate) else {
            return problem("the ConfigMap assent-ca has a certificate that cannot be read");
        };
        let ends = certificate.life.ends.duration_since(std::time::UNIX_EPOCH);
        let ends = ends.map_or(0, |ends| ends.as_secs().cast_signed());
        newest = newest.max(ends);
    }
    let left = newest - now.as_second();
    let remedy = "with certManager, check its Certificate; otherwise check the control plane's log";
    let finding = match left {
        ..=0 => Finding::new(
            Area::Certificates,
            Verdict::Problem,
            "the certificate authority has expired",
            remedy,
        ),
        1..EXPIRES_SOON => Finding::new(
            Area::Certificates,
            Verdict::Warning,
            format!(
                "the certificate authority expires in {} hours",
                left / 3_600
            ),
            remedy,
        ),
        _ => Finding::good(
            Area::Certificates,
            format!(
                "the certificate authority is valid for {} days",
                left / 86_400
            ),
        ),
    };
    vec![finding]
}

/// Whether PolicyServers are complete.
pub(super) fn servers(servers: &[PolicyServer]) -> Vec<Finding> {
    if servers.is_empty() {
        let text = "there is no PolicyServer, so that no policy can be enforced";
        let remedy = "create one, or install the chart with policyServer.create=true";
        return vec![Finding::new(Area::Servers, Verdict::Warning, text, remedy)];
    }
    let check = |server: &PolicyServer| {
        let name = server.metadata.name.as_deref().unwrap_or_default();
        let status = server.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let (wanted, ready) = (server.spec.replicas, status.map_or(0, |s| s.ready_replicas));
        match condition(conditions, "Ready") {
            Some(condition) if condition.status == "True" => Finding::good(
                Area::Servers,
                format!("{name} is ready, with {ready} evaluators"),
            ),
            other => Finding::new(
                Area::Servers,
                Verdict::Problem,
                format!(
                    "{name} is not ready ({ready} of {wanted} evaluators){}",
                    why(other)
                ),
                format!("kubectl describe policyserver {name}"),
            ),
        }
    };
    servers.iter().map(check).collect()
}

/// Whether policies are enforced.
pub(super) fn policies(policies: &[Policy<'_>]) -> Vec<Finding> {
    let is_enforced = |policy: &&Policy<'_>| {
        condition(policy.conditions, "Enforced").is_some_and(|condition| {
            condition.status == "True" && condition.observed_generation == Some(policy.generation)
        })
    };
    let (enforced, others): (Vec<_>, Vec<_>) = policies.iter().partition(is_enforced);
    let mut findings = vec![Finding::good(
        Area::Policies,
        format!(
            "{} of {} policies are enforced",
            enforced.len(),
            policies.len()
        ),
    )];
    for policy in others.iter().take(MAX_ROWS) {
        let Policy {
            name, conditions, ..
        } = policy;
        let first = conditions.iter().find(|c| c.status != "True");
        findings.push(Finding::new(
            Area::Policies,
            Verdict::Warning,
            format!(
                "{name} is not enforced in its newest generation{}",
                why(first)
            ),
            format!("assent status {name}; docs/status.md has the meaning of each reason"),
        ));
    }
    if others.len() > MAX_ROWS {
        let text = format!("{} more policies are not enforced", others.len() - MAX_ROWS);
        let remedy = "assent status";
        findings.push(Finding::new(Area::Policies, Verdict::Warning, text, remedy));
    }
    findings
}

fn why(condition: Option<&Condition>) -> String {
    condition.map_or_else(String::new, |condition| {
        format!(": {} ({})", condition.reason, condition.message)
    })
}

fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut ready = conditions.filter(|c| c.type_ == "Ready" && c.status == "True");
    pod.metadata.deletion_timestamp.is_none() && ready.next().is_some()
}

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

// === impl Policy ===

impl<'a> From<&'a ClusterAdmissionPolicy> for Policy<'a> {
    fn from(policy: &'a ClusterAdmissionPolicy) -> Self {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        Self {
            name: format!("cluster/{name}"),
            generation: policy.metadata.generation.unwrap_or_default(),
            conditions: policy.status.as_ref().map_or(&[], |s| &s.conditions),
        }
    }
}

impl<'a> From<&'a AdmissionPolicy> for Policy<'a> {
    fn from(policy: &'a AdmissionPolicy) -> Self {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            name: format!("namespaced/{namespace}/{name}"),
            generation: policy.metadata.generation.unwrap_or_default(),
            conditions: policy.status.as_ref().map_or(&[], |s| &s.conditions),
        }
    }
}
