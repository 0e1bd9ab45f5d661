//! Where policies live in a test.

use assent_controller::{Action, Backend, Change, Config, Controller, Now};
use assent_core::PolicyKey;
use serde_json::Value;

/// Policies that a namespace may have.
pub(crate) const QUOTA: usize = 3;

/// The changes that a watch would report.
pub(crate) type Changes<W> = Vec<Change<<<W as World>::Backend as Backend>::Existing>>;

/// The key of a policy that tests call `name`, or `namespace/name`.
pub(crate) fn policy_key(policy: &str) -> PolicyKey {
    match policy.split_once('/') {
        Some((namespace, name)) => PolicyKey::namespaced(namespace, name),
        None => PolicyKey::cluster(policy),
    }
}

/// A place for policies, PolicyServers, revisions and routes that accepts everything at once.
pub(crate) trait World: Sized {
    type Backend: Backend;

    /// Whether the next process finds whole statuses, or only the times of their conditions.
    const STORES_STATUSES: bool;

    /// A world with the PolicyServer `default` and these replicas.
    fn with_replicas(replicas: &[&str]) -> Self;

    fn backend(&self) -> Self::Backend;

    fn config(&self) -> Config;

    /// Everything that a process finds when it starts.
    fn list(&mut self) -> Changes<Self>;

    /// The same world for the next process.
    fn restart(self) -> Self;

    /// Creates a policy, or changes its spec, which makes another generation.
    fn put_policy(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self>;

    /// A user deletes a policy.
    fn delete_policy(&mut self, name: &str) -> Changes<Self>;

    /// Creates a PolicyServer, or changes its spec.
    fn put_server(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self>;

    /// A user deletes a PolicyServer.
    fn delete_server(&mut self, name: &str) -> Changes<Self>;

    /// Performs an action as a backend would that has nothing against it, and reports the
    /// outcome and what a watch would see.
    fn perform(
        &mut self,
        controller: &mut Controller<Self::Backend>,
        now: Now,
        action: Action<Self::Backend>,
    );

    /// Makes everything durable, then publishes.
    fn publish(
        &mut self,
        controller: &mut Controller<Self::Backend>,
        now: Now,
    ) -> Vec<Action<Self::Backend>>;

    /// The spec that a policy has now.
    fn spec(&self, policy: &str) -> Option<Value>;

    /// The generation of the policy object.
    fn generation(&self, policy: &str) -> Option<i64>;

    /// The uid of the policy object; empty if there is none.
    fn uid(&self, policy: &str) -> String;

    /// The generation of the revision that the policy's route names.
    fn routed(&self, policy: &str) -> Option<i64>;

    /// Removes the policy's route behind the controller's back, before the next process starts.
    fn lose_route(&mut self, policy: &str);

    /// Generation and phase of every stored revision, `1 Active`, oldest first.
    fn phases(&self, policy: &str) -> Vec<String>;
}
