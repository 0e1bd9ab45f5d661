//! What went wrong on the way to a control plane, and what to do.

use kube::config::KubeconfigError;

use crate::names;

/// One request on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reading the Lease.
    Lease,
    /// Reading the certificates.
    Ca,
    /// Asking for a token.
    Token,
    /// Forwarding a port.
    Forward,
    /// Reading a policy.
    Read,
    /// Asking for a rollback.
    RollBack,
}

/// A control plane cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("failed to read the kubeconfig: check --kubeconfig, --context and KUBECONFIG")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// No client can be made of it.
    #[error("failed to create a client for the API server of the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The API server does not answer.
    #[error("no response from the API server after {0} s")]
    Late(u64),
    /// The person lacks a right.
    #[error("not allowed to {right} in the namespace {namespace}; {remedy}")]
    Forbidden {
        /// Verb and object.
        right: String,
        /// Where.
        namespace: String,
        /// What to do.
        remedy: String,
    },
    /// There is no such object.
    #[error("{object} does not exist in the namespace {namespace}; {remedy}")]
    Missing {
        /// Kind and name.
        object: String,
        /// Where.
        namespace: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The policy does not exist.
    #[error("there is no policy {0}")]
    NoPolicy(String),
    /// A request failed.
    #[error("failed to {0}")]
    Request(&'static str, #[source] Box<kube::Error>),
    /// Nobody leads.
    #[error(
        "no replica of the control plane in the namespace {0} leads; check its pods: kubectl get pods -n {0}"
    )]
    NoLeader(String),
    /// The ConfigMap has no certificates.
    #[error(
        "the ConfigMap assent-ca in the namespace {0} has no key ca.crt; check the control plane's log"
    )]
    NoCa(String),
    /// The API server issued no token.
    #[error("the API server issued no token")]
    NoToken,
    /// The port was not forwarded.
    #[error("the API server forwarded no port")]
    NoStream,
    /// The control plane did not act on the request.
    #[error(
        "the control plane did not roll back within {0} s; its leader may be starting: see `kubectl describe`"
    )]
    NotRolledBack(u64),
}

// === impl Step ===

impl Step {
    fn attempt(self) -> &'static str {
        match self {
            Self::Lease => "find the leader of the control plane",
            Self::Ca => "read the certificates of the control plane",
            Self::Token => "get a token for the control plane",
            Self::Forward => "forward a port of the leader's pod",
            Self::Read => "read the policy",
            Self::RollBack => "request the rollback",
        }
    }

    fn right(self) -> String {
        match self {
            Self::Lease => format!("get the Lease {}", names::LEASE),
            Self::Ca => format!("get the ConfigMap {}", names::CA_CONFIG_MAP),
            Self::Token => format!("create a token of the ServiceAccount {}", names::VIEWER),
            Self::Forward => "forward ports of pods".to_owned(),
            Self::Read => "get the policy".to_owned(),
            Self::RollBack => "patch the policy".to_owned(),
        }
    }

    /// The object that is missing, and what to do about it.
    fn missing(self) -> Option<(String, &'static str)> {
        let outdated = "upgrade the chart, or create the account with roles.create=true";
        match self {
            Self::Lease => Some((
                format!("the Lease {}", names::LEASE),
                "is Assent installed there? Name its namespace with --assent-namespace",
            )),
            Self::Ca => Some((
                format!("the ConfigMap {}", names::CA_CONFIG_MAP),
                "check the control plane's log",
            )),
            Self::Token => Some((format!("the ServiceAccount {}", names::VIEWER), outdated)),
            Self::Forward => Some((
                "the leader's pod".to_owned(),
                "another replica takes over within moments: try again",
            )),
            Self::Read | Self::RollBack => None,
        }
    }
}

// === impl Error ===

impl Error {
    /// What a failed request means.
    pub(super) fn of(step: Step, namespace: &str, error: kube::Error) -> Self {
        let namespace = namespace.to_owned();
        match (code(&error), step.missing()) {
            (Some(403), _) => Self::Forbidden {
                right: step.right(),
                remedy: remedy(step, &namespace),
                namespace,
            },
            (Some(404), Some((object, remedy))) => Self::Missing {
                object,
                namespace,
                remedy,
            },
            _ => Self::Request(step.attempt(), Box::new(error)),
        }
    }
}

/// The HTTP status of a refusal.
fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

fn remedy(step: Step, namespace: &str) -> String {
    match step {
        Step::Read | Step::RollBack => {
            "ask for the role that permits to edit policies (see docs/install.md, roles)".to_owned()
        }
        _ => format!(
            "an administrator grants it with: kubectl create rolebinding NAME -n {namespace} --role={} --user=YOU",
            names::CONNECT_ROLE
        ),
    }
}
