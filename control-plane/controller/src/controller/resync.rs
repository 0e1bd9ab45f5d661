//! Looking at all objects: once when a process begins to lead, and regularly after that.

use std::collections::BTreeSet;

use assent_core::PolicyKey;
use tracing::info;

use super::Controller;
use crate::{backend::Backend, view::Now};

// === impl Controller ===

impl<B: Backend> Controller<B> {
    /// Continues from the stored objects, once all were listed.
    pub(super) fn restore(&mut self, now: Now) {
        let servers: Vec<String> = self
            .objects
            .servers()
            .map(|s| s.meta.name.clone())
            .collect();
        for server in &servers {
            self.observe_server(now, server);
        }
        let policies: Vec<PolicyKey> = self.objects.policies().map(|p| p.key.clone()).collect();
        for key in &policies {
            self.observe_policy(now, key);
        }
        let namespaces: BTreeSet<&str> = policies.iter().filter_map(|k| k.namespace()).collect();
        for namespace in namespaces {
            self.recheck_quota(now, namespace);
        }
        self.restored = true;
        info!(
            policies = policies.len(),
            servers = servers.len(),
            "read all objects"
        );
        self.begin_startup(now);
        let routed: BTreeSet<PolicyKey> =
            self.objects.all_routes().map(|r| r.key.clone()).collect();
        for key in &routed {
            self.remove_orphans(key);
        }
        self.check_all_revisions();
        self.check_all_routes(now);
        self.fetch_missing_modules();
        self.dirty.policies.extend(policies);
        // The first statuses must count the replicas that are known by their pods.
        self.dirty.replicas.extend(servers.iter().cloned());
        self.dirty.servers.extend(servers);
    }

    /// Looks at everything again and repairs what was missed or edited.
    pub fn resync(&mut self, now: Now) {
        if !self.restored {
            return;
        }
        self.check_all_revisions();
        self.check_all_routes(now);
        self.check_all_settings();
        let servers: Vec<String> = self
            .objects
            .servers()
            .map(|s| s.meta.name.clone())
            .collect();
        for server in servers {
            self.apply_server(&server, true);
            self.dirty.servers.insert(server.clone());
            self.dirty.replicas.insert(server);
        }
        let policies = self.objects.policies().map(|p| p.key.clone());
        self.dirty.policies.extend(policies);
    }

    /// What the backend makes of routes has changed (its certificates, say): all are checked.
    pub fn check_all_routes(&mut self, now: Now) {
        let living = self.plane.rollouts().filter(|(_, r)| !r.is_deleting());
        let keys: Vec<PolicyKey> = living.map(|(_, r)| r.id().key.clone()).collect();
        for key in keys {
            self.check_route(now, &key);
        }
    }
}
