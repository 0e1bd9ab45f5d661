//! Names of everything that the control plane writes into a cluster.

use assent_core::PolicyKey;
use sha2::{Digest as _, Sha256};

/// Whose fields they are, in server-side apply.
pub const FIELD_MANAGER: &str = "assent-control-plane";

/// Keeps a policy or a PolicyServer until what was made for it is gone, and a PolicyRevision
/// until it is no longer served.
pub const FINALIZER: &str = "policies.assent.dev/cleanup";

/// On a pod: asks for an evaluator of this PolicyServer. On Assent's own objects: which server
/// they are for.
pub const SERVER_LABEL: &str = "policies.assent.dev/policy-server";

/// On every object that the control plane creates.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "assent");

/// On a webhook configuration or a revision: the policy's kind, namespace and name as one
/// digest, since a label's value is short and has no slashes.
pub const POLICY_LABEL: &str = "policies.assent.dev/policy";

/// On a webhook configuration: the policy that it is for, in full.
pub const POLICY_ANNOTATION: &str = "policies.assent.dev/policy";

/// On a webhook configuration: the uid of the policy that it is for.
pub const POLICY_UID_ANNOTATION: &str = "policies.assent.dev/policy-uid";

/// On a webhook configuration: what the revision that it names consists of besides the policy's
/// spec, as JSON. The next leader makes a lost revision again from it.
pub const REVISION_ANNOTATION: &str = "policies.assent.dev/revision";

/// On the `default` PolicyServer: `false` while the chart is installed.
pub const ALLOW_DELETE_ANNOTATION: &str = "policies.assent.dev/allow-delete";

/// On a pod template: hash of the resolved evaluator container.
pub const TEMPLATE_HASH_ANNOTATION: &str = "policies.assent.dev/evaluator-hash";

/// On a StatefulSet: hash of what an API server does not let anybody change in it.
pub const FIXED_HASH_ANNOTATION: &str = "policies.assent.dev/fixed-hash";

/// On everything of a PolicyServer, and on its own pods: pods of others that have an evaluator
/// beside them carry [`SERVER_LABEL`] too.
pub const SERVER_COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "policy-server");

/// The ConfigMap with the certificates that the control plane's is checked with.
pub const CA_CONFIG_MAP: &str = "assent-ca";

/// The key in it.
pub const CA_KEY: &str = "ca.crt";

/// The audience that a replica's token must have.
pub const TOKEN_AUDIENCE: &str = "assent-control-plane";

/// The Service before the discovery ports of the control plane.
pub const DISCOVERY_SERVICE: &str = "assent-discovery";

/// The service account whose token the command line asks for: it may look, and nothing else.
pub const VIEWER: &str = "assent-viewer";

/// The Role that permits people to ask for it and to reach the leader.
pub const CONNECT_ROLE: &str = "assent-connect";

/// The Lease that control-plane replicas elect their leader by.
pub const LEASE: &str = "assent-control-plane";

/// On that Lease: where the leader's discovery endpoint is.
pub const LEADER_ADDRESS_ANNOTATION: &str = "policies.assent.dev/leader-address";

/// The Secret with the certificate authority, and the ConfigMap with the CA bundle.
pub const CA: &str = "assent-ca";

/// The Secret that records which authorities cert-manager has provided.
pub const CA_RECORD: &str = "assent-ca-record";

/// The Secret, which an administrator may create, with the key that authenticates what evaluators keep on disk.
pub const STATE_KEY: &str = "assent-state-key";

/// The Secret with the key that encrypts settings that come from Secrets.
pub const SETTINGS_KEY: &str = "assent-settings-key";

/// The certificates to trust, in that ConfigMap.
pub const CA_BUNDLE_KEY: &str = "ca.crt";

/// On the Secret: any value that was not there before asks for a new authority.
pub const ROTATE_ANNOTATION: &str = "policies.assent.dev/rotate";

/// On the Secret: the value that was answered last.
pub const ROTATED_ANNOTATION: &str = "policies.assent.dev/rotated";

/// On the Secret: since when the current authority signs.
pub const SIGNING_SINCE_ANNOTATION: &str = "policies.assent.dev/signing-since";

/// The image of an evaluator container that the injector is to fill in.
pub const PLACEHOLDER_IMAGE: &str = "assent.invalid/auto";

/// The name of the evaluator's container.
pub const EVALUATOR_CONTAINER: &str = "evaluator";

/// Where evaluators answer reviews.
pub const EVALUATOR_PORT: i32 = 8443;

/// Where evaluators answer probes and metrics.
pub const EVALUATOR_ADMIN_PORT: i32 = 8081;

/// The longest name of an object.
const MAX_NAME: usize = 253;

/// Name of the webhook configuration of a policy. A namespace has no dots, so that no two
/// policies share a name.
pub fn webhook_configuration(policy: &PolicyKey) -> String {
    bounded(&dotted(policy, "assent."), MAX_NAME)
}

/// Name of the one webhook in it: fully qualified, as the API server demands.
pub fn webhook(policy: &PolicyKey) -> String {
    const DOMAIN: &str = ".policies.assent.dev";
    let name = bounded(&dotted(policy, ""), MAX_NAME - DOMAIN.len());
    format!("{name}{DOMAIN}")
}

/// Value of [`POLICY_LABEL`].
pub fn policy_label(policy: &PolicyKey) -> String {
    digest(policy.as_str(), 32)
}

/// Name of the stored revision `<generation>-<uid8>` of a policy. The policy's name is part
/// of it for people; the uid keeps kinds and lives apart.
pub fn revision(policy: &PolicyKey, short: &str) -> String {
    let room = MAX_NAME - short.len() - 1;
    format!("{}-{short}", bounded(policy.name(), room))
}

/// Name of everything that is made for a PolicyServer: StatefulSet, Service, and so on.
pub fn server(name: &str) -> String {
    // A StatefulSet's pods carry it as a label with a hash behind it: 52 characters.
    bounded(&format!("policy-server-{name}"), 52)
}

/// What a follower, an evaluator in somebody else's pod, is called on the wire. A namespace
/// has no dots, so that no two share a name.
pub fn follower(pod: &str, namespace: &str) -> String {
    format!("{pod}.{namespace}")
}

/// Name of the headless Service of a PolicyServer's StatefulSet.
pub fn headless(name: &str) -> String {
    format!("{}-headless", server(name))
}

fn dotted(policy: &PolicyKey, prefix: &str) -> String {
    match policy.namespace() {
        Some(namespace) => format!("{prefix}namespaced.{namespace}.{}", policy.name()),
        None => format!("{prefix}cluster.{}", policy.name()),
    }
}

/// `text`, or if it is too long, its beginning and a digest of the whole.
fn bounded(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let digest = digest(text, 10);
    let head = text.get(..max - digest.len() - 1).unwrap_or_default();
    format!("{}-{digest}", head.trim_end_matches(['-', '.']))
}

fn digest(text: &str, length: usize) -> String {
    let mut digest = hex::encode(Sha256::digest(text.as_bytes()));
    digest.truncate(length);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_policies_never_collide() {
        let one = PolicyKey::namespaced("a", "b.c");
        let other = PolicyKey::namespaced("a-b", "c");
        assert_eq!(webhook_configuration(&one), "assent.namespaced.a.b.c");
        assert_ne!(webhook_configuration(&one), webhook_configuration(&other));
        let cluster = PolicyKey::cluster("namespaced.a.b.c");
        assert_ne!(webhook_configuration(&cluster), webhook_configuration(&one));
        assert_eq!(webhook(&one), "namespaced.a.b.c.policies.assent.dev");
    }

    #[test]
    fn long_names_are_shortened_and_stay_distinct() {
        let long = |end: &str| PolicyKey::cluster(&format!("{}{end}", "a".repeat(252)));
        let (x, y) = (webhook(&long("x")), webhook(&long("y")));
        assert_ne!(x, y);
        assert!(x.len() <= MAX_NAME && x.ends_with(".policies.assent.dev"));
        assert!(webhook_configuration(&long("x")).len() <= MAX_NAME);
        assert!(revision(&long("x"), "12-5f2a9c1e").len() <= MAX_NAME);
        assert!(headless(&"s".repeat(253)).len() <= 63);
    }
}
