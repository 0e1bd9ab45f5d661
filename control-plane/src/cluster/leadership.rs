//! Leads while the election says so, and prefetches modules otherwise.

use anyhow::Context as _;
use assent_controller::Config;
use assent_grpc::{ControlPlane, Serving, hub};
use assent_k8s::{
    Cluster, config_maps::ConfigMapPolicies, lease::Role, own_objects::OwnObjects, standby,
    watch as watches, webhook::WebhookDefaults, workload,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    args::ClusterArgs, http::Readiness, leader::LeaderContext, prefetch::Prefetch, settings::quota,
};
use crate::vetting::COLLECT_EVERY;

/// Leads while the election says so.
pub(super) struct Leadership {
    pub(super) context: LeaderContext,
    pub(super) own_objects: OwnObjects,
    pub(super) role: watch::Receiver<Role>,
    pub(super) readiness: watch::Sender<Readiness>,
    pub(super) args: ClusterArgs,
    pub(super) defaults: WebhookDefaults,
    pub(super) workload: workload::Options,
    pub(super) parse: assent_api::Options,
}

// === impl Leadership ===

impl Leadership {
    pub(super) async fn run(mut self, resign: CancellationToken) -> anyhow::Result<()> {
        while !resign.is_cancelled() {
            let role = self.role.borrow_and_update().clone();
            match role {
                Role::Leader { transitions } => self.lead(transitions, &resign).await,
                Role::Follower { leader } => {
                    let leader = leader.map(|l| l.address).filter(|a| !a.is_empty());
                    self.context.hub.set_serving(Serving::Standby { leader });
                    let modules = Prefetch {
                        client: self.context.client.clone(),
                        namespace: self.args.namespace.clone(),
                        policy_namespaces: self.args.policy_namespaces.clone(),
                        artefacts: self.context.artefacts.clone(),
                    };
                    let prefetch = standby::prefetch(
                        &modules.client,
                        &modules.namespace,
                        self.parse.clone(),
                        &modules,
                        COLLECT_EVERY,
                        (&self.context.follower, &mut self.context.context_events),
                    );
                    tokio::select! {
                        () = resign.cancelled() => {}
                        () = prefetch => {}
                        changed = self.role.changed() => changed.context("the election ended")?,
                    }
                }
            }
        }
        Ok(())
    }

    async fn lead(&mut self, transitions: u64, resign: &CancellationToken) {
        let hub = self.context.hub.clone();
        hub.reset();
        hub.set_control_plane(ControlPlane {
            id: self.context.identity.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            lease_transitions: transitions,
        });
        hub.set_serving(Serving::Leader);
        self.context.metrics.leader.set(1);
        let (cluster, config) = self.settings();
        let readiness = follow_readiness(
            self.context.synced.subscribe(),
            self.own_objects.webhooks_written.subscribe(),
            self.readiness.clone(),
        );
        let config_maps = ConfigMapPolicies {
            client: self.context.client.clone(),
            namespaces: self.args.policy_namespaces.clone(),
            identity: self.context.identity.clone(),
        };
        // Whatever ends first cuts off the others.
        tokio::select! {
            () = self.context.lead(cluster, config) => {}
            () = self.own_objects.clone().run() => {}
            () = config_maps.run() => {}
            () = readiness => {}
            () = lost(self.role.clone(), transitions, resign.clone()) => {}
        }
        info!("this process no longer leads");
        self.context.synced.send_replace(false);
        self.context.metrics.leader.set(0);
        self.readiness.send_modify(|ready| ready.beginning = false);
        // The next leader is not known yet: streams come back when it is.
        hub.set_serving(Serving::Standby { leader: None });
        hub.reset();
    }

    fn settings(&self) -> (Cluster, Config) {
        let cluster = Cluster {
            defaults: WebhookDefaults {
                ca_bundle: self.context.ca_bundle.borrow().clone(),
                ..self.defaults.clone()
            },
            base_url: self.args.webhook_base_url.clone(),
            workload: Some(self.workload.clone()),
        };
        let config = Config {
            parse: self.parse.clone(),
            kinds: watches::ALL.to_vec(),
            drain: self.args.drain_seconds,
            grace: self.args.replica_grace,
            max_policies_per_namespace: quota(self.args.max_policies_per_namespace),
            no_context: None,
            // Streams are held for as long.
            sync_deadline: hub::Config::default().sync_deadline,
        };
        (cluster, config)
    }
}

/// Returns when this process no longer leads.
async fn lost(mut role: watch::Receiver<Role>, transitions: u64, resign: CancellationToken) {
    let own = Role::Leader { transitions };
    tokio::select! {
        () = resign.cancelled() => {}
        _ = role.wait_for(|role| *role != own) => {}
    }
}

/// A leader is ready when it has read all objects and the control plane's own webhooks exist.
async fn follow_readiness(
    mut synced: watch::Receiver<bool>,
    mut webhooks_written: watch::Receiver<bool>,
    readiness: watch::Sender<Readiness>,
) {
    loop {
        let beginning = !(*synced.borrow_and_update() && *webhooks_written.borrow_and_update());
        readiness.send_if_modified(|r| std::mem::replace(&mut r.beginning, beginning) != beginning);
        let changed = tokio::select! {
            changed = synced.changed() => changed,
            changed = webhooks_written.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
