//! Evaluators in this process, over the real protocol on loopback.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use assent_core::{fleet::Name, policy::DEFAULT_SERVER};
use assent_evaluator::{
    Config, DecisionLogConfig, DecisionLogTarget, Evaluator, Handle, RegistryAccess, Timings,
    args::authz::AuthzArgs,
};
use assent_oci::AddressPolicy;

/// What embedded evaluators need to connect.
pub(super) struct Embedded {
    pub(super) discovery: SocketAddr,
    pub(super) token_file: Option<PathBuf>,
    pub(super) state: PathBuf,
    pub(super) replicas: u16,
    pub(super) authz: Option<AuthzArgs>,
    pub(super) decision_log: Option<PathBuf>,
}

/// One of so many allowed requests is logged, as evaluators in pods do by default.
const ALLOWS: u64 = 100;

/// Names of embedded evaluators.
pub(super) fn names(replicas: u16) -> Vec<Name> {
    (0..replicas)
        .map(|n| format!("evaluator-{n}").into())
        .collect()
}

// === impl Embedded ===

impl Embedded {
    /// Starts them. They share one engine, so that a module's code is in memory once.
    pub(super) async fn start(self) -> anyhow::Result<Vec<Handle>> {
        if self.replicas == 0 {
            return Ok(Vec::new());
        }
        let engine = assent_evaluator::shared_engine().context("failed to start the engine")?;
        let mut handles = Vec::new();
        let decision_log = DecisionLogConfig {
            target: self
                .decision_log
                .map_or(DecisionLogTarget::Off, DecisionLogTarget::File),
            allows: ALLOWS,
        };
        let mut authz = self.authz.and_then(AuthzArgs::config);
        for name in names(self.replicas) {
            let uri = format!("http://{}", self.discovery).parse();
            let config = Config {
                policy_server: DEFAULT_SERVER.into(),
                state: Some(self.state.join("evaluators").join(&*name)),
                token_file: self.token_file.clone(),
                engine: Some(engine.clone()),
                // One port has one owner; all of them acknowledge the policies.
                requests: authz.take(),
                decision_log: decision_log.clone(),
                // As for pulling modules: the author of a policy owns the machine.
                registries: RegistryAccess {
                    addresses: AddressPolicy::LOCAL,
                    ..RegistryAccess::default()
                },
                timings: Timings {
                    // Only the local dispatch calls them, and it stops first.
                    drain: Duration::ZERO,
                    ..Timings::default()
                },
                ..Config::loopback(uri.context("failed to form the discovery address")?, &*name)
            };
            let handle = Evaluator::start(config).await;
            handles.push(handle.with_context(|| format!("failed to start {name}"))?);
        }
        Ok(handles)
    }
}
