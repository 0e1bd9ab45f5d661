//! Leads whenever the election says so.

use anyhow::Context as _;
use assent_grpc::{ControlPlane, Serving};
use assent_k8s::{lease::Role, webhook::Site, workload};
use assent_modules::pull;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    args::ClusterArgs, chores::Chores, http::Readiness, machine::Options, site::excluded,
    term::Office, warm,
};

/// Leads whenever the election says so.
pub(super) struct Terms {
    pub(super) office: Office,
    pub(super) chores: Chores,
    pub(super) role: watch::Receiver<Role>,
    pub(super) readiness: watch::Sender<Readiness>,
    pub(super) args: ClusterArgs,
    pub(super) site: Site,
    pub(super) workload: workload::Options,
}

/// Modules come from public addresses, and from what PolicyServers declare.
pub(super) const REACH: pull::Reach = pull::Reach::PUBLIC;

// === impl Terms ===

impl Terms {
    pub(super) async fn run(mut self, resign: CancellationToken) -> anyhow::Result<()> {
        while !resign.is_cancelled() {
            let role = self.role.borrow_and_update().clone();
            match role {
                Role::Leader { transitions } => self.term(transitions, &resign).await,
                Role::Follower { leader } => {
                    let leader = leader.map(|l| l.address).filter(|a| !a.is_empty());
                    self.office.hub.set_serving(Serving::Standby { leader });
                    let namespace = &self.args.namespace;
                    let warm = warm::stay(&self.office.client, namespace, &self.office.store);
                    tokio::select! {
                        () = resign.cancelled() => {}
                        () = warm => {}
                        changed = self.role.changed() => changed.context("the election ended")?,
                    }
                }
            }
        }
        Ok(())
    }

    async fn term(&mut self, transitions: u64, resign: &CancellationToken) {
        let hub = self.office.hub.clone();
        hub.reset();
        hub.set_control_plane(ControlPlane {
            id: self.office.identity.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            lease_transitions: transitions,
        });
        hub.set_serving(Serving::Leader);
        self.office.metrics.leader.set(1);
        let over = CancellationToken::new();
        let ended = lost(self.role.clone(), transitions, resign.clone());
        let options = self.options();
        let begun = follow_begin(
            self.office.synced.subscribe(),
            self.chores.asked.subscribe(),
            self.readiness.clone(),
        );
        let lead = self.office.lead(options, over.clone());
        let chores = self.chores.clone().run();
        tokio::select! {
            () = lead => {}
            () = chores => {}
            () = begun => {}
            () = ended => {}
        }
        over.cancel();
        self.office.metrics.leader.set(0);
        self.readiness.send_modify(|ready| ready.beginning = false);
        // Whoever leads next is not known yet: streams come back when it is.
        hub.set_serving(Serving::Standby { leader: None });
        hub.reset();
    }

    fn options(&self) -> Options {
        Options {
            namespace: self.args.namespace.clone(),
            parse: assent_api::Options {
                standalone: false,
                excluded_namespaces: excluded(&self.args),
            },
            site: Site {
                ca_bundle: self.office.ca_bundle.borrow().clone(),
                ..self.site.clone()
            },
            base_url: self.args.webhook_base_url.clone(),
            drain: self.args.drain_seconds,
            workload: Some(self.workload.clone()),
            reach: REACH,
        }
    }
}

/// Ends when the term does.
async fn lost(mut role: watch::Receiver<Role>, transitions: u64, resign: CancellationToken) {
    let term = Role::Leader { transitions };
    tokio::select! {
        () = resign.cancelled() => {}
        _ = role.wait_for(|role| *role != term) => {}
    }
}

/// A leader is ready when it has read everything and our own webhooks are asked.
async fn follow_begin(
    mut synced: watch::Receiver<bool>,
    mut asked: watch::Receiver<bool>,
    readiness: watch::Sender<Readiness>,
) {
    loop {
        let beginning = !(*synced.borrow_and_update() && *asked.borrow_and_update());
        readiness.send_if_modified(|r| std::mem::replace(&mut r.beginning, beginning) != beginning);
        let changed = tokio::select! {
            changed = synced.changed() => changed,
            changed = asked.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
