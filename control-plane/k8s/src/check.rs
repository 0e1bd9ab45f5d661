//! Checks of an installation, by a person: is everything in place, and if not, what to do.
//!
//! The prerequisites are those of [`crate::preflight`], which the control plane checks when it
//! starts. Nothing is changed: one request is a dry run. What the person may not see is reported
//! as unknown, never as good.

use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyServer};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, api::ListParams};

use crate::{names, preflight};

mod objects;
mod probe;
#[cfg(test)]
mod tests;
mod webhooks;

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub area: Area,
    /// Whether it is as it must be.
    pub verdict: Verdict,
    /// What was found.
    pub text: String,
    /// What to do; empty if nothing has to be done.
    pub remedy: String,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The API server.
    Kubernetes,
    /// Definitions of Assent's kinds.
    Definitions,
    /// What the control plane may do.
    Permissions,
    /// Its pods and its leader.
    ControlPlane,
    /// The certificate authority.
    Certificates,
    /// Webhook configurations and what they point at.
    Webhooks,
    /// PolicyServers.
    Servers,
    /// Policies.
    Policies,
    /// What evaluators serve.
    Discovery,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it must be.
    Good,
    /// It works, but somebody should look at it.
    Warning,
    /// Something does not work.
    Problem,
    /// The person may not see it.
    Unknown,
}

/// Rows of one kind that are reported one by one; the rest is counted.
const MAX_ROWS: usize = 10;

// === impl Finding ===

impl Finding {
    /// A result without anything to do.
    pub fn good(area: Area, text: impl Into<String>) -> Self {
        Self::new(area, Verdict::Good, text, "")
    }

    /// A result.
    pub fn new(
        area: Area,
        verdict: Verdict,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            area,
            verdict,
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// A request that failed: nothing is known if it was forbidden.
    fn failed(area: Area, what: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::new(
                area,
                Verdict::Unknown,
                format!("you may not read {what}"),
                "ask somebody who may, such as a cluster administrator, to run this command",
            ),
            error => Self::new(
                area,
                Verdict::Problem,
                format!("failed to read {what}: {error}"),
                "check the API server",
            ),
        }
    }
}

// === impl Area ===

impl Area {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Definitions => "definitions",
            Self::Permissions => "permissions",
            Self::ControlPlane => "control-plane",
            Self::Certificates => "certificates",
            Self::Webhooks => "webhooks",
            Self::Servers => "servers",
            Self::Policies => "policies",
            Self::Discovery => "discovery",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
            Self::Unknown => "unknown",
        }
    }
}

/// Checks the installation in `namespace`. An error means that the API server did not answer.
pub async fn run(client: &Client, namespace: &str) -> Result<Vec<Finding>, preflight::Error> {
    let mut findings = prerequisites(client).await?;
    let pods = control_plane(client, namespace, &mut findings).await;
    findings.extend(permissions(client, namespace, pods.as_deref()).await?);
    let bundle = certificates(client, namespace, &mut findings).await;
    findings.extend(webhooks(client, namespace, bundle.as_deref()).await);
    findings.push(probe::own_webhook(client).await);
    findings.extend(users(client).await);
    Ok(findings)
}

/// The version of the API server, and the definitions.
async fn prerequisites(client: &Client) -> Result<Vec<Finding>, preflight::Error> {
    let (version, problem) = preflight::server_version(client).await?;
    let mut findings = vec![match problem {
        Some(problem) => Finding::new(Area::Kubernetes, Verdict::Problem, problem.to_string(), ""),
        None => Finding::good(Area::Kubernetes, format!("Kubernetes is {version}")),
    }];
    match preflight::served_definitions(client).await {
        Ok(served) => {
            let problems = preflight::definitions(&served);
            let bad = problems.iter().map(|problem| {
                Finding::new(Area::Definitions, Verdict::Problem, problem.to_string(), "")
            });
            findings.extend(bad);
            if problems.is_empty() {
                let text = "all definitions are those of this version";
                findings.push(Finding::good(Area::Definitions, text));
            }
        }
        Err(preflight::Error::Ask { source, .. }) => {
            findings.push(Finding::failed(Area::Definitions, "definitions", &source));
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// The pods of the control plane and the Lease; returns the pods if they can be seen.
async fn control_plane(
    client: &Client,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = "app.kubernetes.io/name=assent,app.kubernetes.io/component=control-plane";
    let pods = match api.list(&ListParams::default().labels(selector)).await {
        Ok(list) => {
            findings.extend(objects::pods(&list.items, namespace));
            Some(list.items)
        }
        Err(error) => {
            let what = "the control plane's pods";
            findings.push(Finding::failed(Area::ControlPlane, what, &error));
            None
        }
    };
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    findings.push(match api.get_opt(names::LEASE).await {
        Ok(lease) => objects::lease(lease.as_ref(), namespace, Timestamp::now()),
        Err(error) => Finding::failed(Area::ControlPlane, "the Lease", &error),
    });
    pods
}

/// What the control plane's account may do, as its startup check asks.
async fn permissions(
    client: &Client,
    namespace: &str,
    pods: Option<&[Pod]>,
) -> Result<Vec<Finding>, preflight::Error> {
    let account = pods.and_then(|pods| pods.first()?.spec.as_ref()?.service_account_name.clone());
    let Some(account) = account else {
        let text =
            "the control plane's account is not known, so that its permissions were not checked";
        let finding = Finding::new(Area::Permissions, Verdict::Unknown, text, "");
        return Ok(vec![finding]);
    };
    match preflight::account_permissions(client, namespace, &account).await {
        Ok(problems) if problems.is_empty() => {
            let text = format!("the ServiceAccount {account} has every permission that it needs");
            Ok(vec![Finding::good(Area::Permissions, text)])
        }
        Ok(problems) => Ok(problems
            .iter()
            .map(|problem| {
                let text = format!("{account} has {problem}");
                Finding::new(Area::Permissions, Verdict::Problem, text, "")
            })
            .collect()),
        Err(preflight::Error::Ask { source, .. }) => {
            let what = format!("the permissions of the ServiceAccount {account}");
            Ok(vec![Finding::failed(Area::Permissions, &what, &source)])
        }
        Err(error) => Err(error),
    }
}

/// The certificate authority; returns its certificates.
async fn certificates(
    client: &Client,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = match api.get_opt(names::CA_CONFIG_MAP).await {
        Ok(map) => map,
        Err(error) => {
            findings.push(Finding::failed(
                Area::Certificates,
                "the ConfigMap assent-ca",
                &error,
            ));
            return None;
        }
    };
    let bundle = map.and_then(|map| map.data?.remove(names::CA_KEY));
    findings.extend(objects::authority(bundle.as_deref(), Timestamp::now()));
    bundle
}

async fn webhooks(client: &Client, namespace: &str, bundle: Option<&str>) -> Vec<Finding> {
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let (key, value) = names::MANAGED_BY;
    let ours = ListParams::default().labels(&format!("{key}={value}"));
    let listed = tokio::try_join!(validating.list(&ours), mutating.list(&ours));
    let (validating, mutating) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            return vec![Finding::failed(
                Area::Webhooks,
                "webhook configurations",
                &error,
            )];
        }
    };
    let seen = webhooks::Seen::new(&validating.items, &mutating.items);
    let mut findings = seen.check(bundle);
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    match slices.list(&ListParams::default()).await {
        Ok(slices) => findings.extend(seen.check_endpoints(&slices.items, namespace)),
        Err(error) => findings.push(Finding::failed(Area::Webhooks, "EndpointSlices", &error)),
    }
    findings
}

/// What users have made: PolicyServers and policies.
async fn users(client: &Client) -> Vec<Finding> {
    let all = ListParams::default();
    let servers: Api<PolicyServer> = Api::all(client.clone());
    let mut findings = match servers.list(&all).await {
        Ok(list) => objects::servers(&list.items),
        Err(error) => vec![Finding::failed(Area::Servers, "PolicyServers", &error)],
    };
    let cluster: Api<ClusterAdmissionPolicy> = Api::all(client.clone());
    let namespaced: Api<AdmissionPolicy> = Api::all(client.clone());
    match tokio::try_join!(cluster.list(&all), namespaced.list(&all)) {
        Ok((cluster, namespaced)) => {
            let cluster = cluster.items.iter().map(objects::Policy::from);
            let namespaced = namespaced.items.iter().map(objects::Policy::from);
            findings.extend(objects::policies(
                &cluster.chain(namespaced).collect::<Vec<_>>(),
            ));
        }
        Err(error) => findings.push(Finding::failed(Area::Policies, "policies", &error)),
    }
    findings
}
