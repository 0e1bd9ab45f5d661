//! The table of reasons.

use super::{
    ConditionStatus::{self, False, True, Unknown},
    ConditionType::{self, Accepted, Enforced, Programmed, Ready},
    ConditionedObject::{self, Evaluator, Policy, PolicyReplica, PolicyServer},
    DocumentedReason, Reason,
};

/// Every reason that Assent writes, in the order of the documentation.
#[rustfmt::skip]
pub const REASONS: &[DocumentedReason] = &[
    row(Policy, Accepted, True, Reason::Accepted, "The module was pulled and checked, and it accepted the settings.", ""),
    row(Policy, Accepted, Unknown, Reason::Pending, "The module is being pulled and checked.", "Wait. Events of the policy report failed attempts."),
    row(Policy, Accepted, False, Reason::Invalid, "The spec, the module or the settings are not valid. The message has the original error.", "Correct the spec or the module."),
    row(Policy, Accepted, False, Reason::PullError, "The module cannot be pulled. The control plane retries.", "Check the URL, the registry and its credentials."),
    row(Policy, Accepted, False, Reason::SignatureRejected, "The PolicyServer requires a signature that the module does not have.", "Sign the module, or correct `spec.verification` of the PolicyServer."),
    row(Policy, Accepted, False, Reason::SettingsUnavailable, "A Secret of `spec.settingsFrom` cannot be read or used, or the module rejects the settings with its value. The control plane retries.", "Correct the Secret, or allow the control plane to read it."),
    row(Policy, Accepted, False, Reason::ContextForbidden, "The policy declares a kind that it may not read: its PolicyServer does not allow the kind, the control plane may not list and watch it, or the kind is outside of the policy's namespace. A revision that is already active stays enforced.", "The message names what is missing."),
    row(Policy, Accepted, False, Reason::ContextAbsent, "The policy declares a kind that the API server does not serve. A revision that is already active stays enforced, and reading the kind is an error.", "Install the CustomResourceDefinition, or correct `apiVersion` and `kind`. The policy is considered again when the kind appears."),
    row(Policy, Accepted, False, Reason::ContextTooLarge, "The objects that the policy declares do not fit into `spec.context.memoryLimit` of its PolicyServer. The message has their number and size. The control plane retries.", "Declare `fields`, `namespaces` or a `labelSelector`, or raise the limit."),
    row(Policy, Accepted, False, Reason::ContextUnavailable, "The policy must see other objects of the cluster and cannot: its module reads some and the policy declares no kind, or `assent up` runs without `--objects`. Without them it might allow everything.", "Declare the kinds in `spec.contextAwareResources`; start `assent up` with `--objects`."),
    row(Policy, Accepted, False, Reason::TargetNotFound, "The PolicyServer of the policy does not exist.", "Create the PolicyServer. `spec.policyServer` cannot be changed."),
    row(Policy, Accepted, False, Reason::NotAllowed, "The PolicyServer does not allow policies of this namespace. A revision that is already active stays enforced.", "Name another PolicyServer in a new policy, or add the namespace to `spec.allowedNamespaces` of the PolicyServer."),
    row(Policy, Accepted, False, Reason::QuotaExceeded, "The namespace has more policies than it may have, and this one is not among the oldest. A revision that is already active stays enforced.", "Delete policies of the namespace, or raise `--max-policies-per-namespace`."),
    row(Policy, Accepted, False, Reason::Conflicted, "Standalone only: two manifests define the same policy. The first one is used.", "Delete or rename one of them."),

    row(Policy, Programmed, True, Reason::Programmed, "Every required replica serves this generation.", ""),
    row(Policy, Programmed, Unknown, Reason::Pending, "This generation is not distributed: it is still being checked, or it was not accepted.", "See `Accepted`."),
    row(Policy, Programmed, False, Reason::Reconciling, "At least one required replica has not confirmed this generation yet.", "Wait. The message names the first such replica."),
    row(Policy, Programmed, False, Reason::Rejected, "At least one replica cannot load this generation. The message has its error.", "Correct the policy, or roll back."),
    row(Policy, Programmed, False, Reason::NoReplicas, "The PolicyServer has no replica that is connected or expected.", "Scale the PolicyServer up, or check its pods."),
    row(Policy, Programmed, False, Reason::Stalled, "Not every replica serves this generation within `spec.rollout.progressDeadlineSeconds`. The rollout continues.", "Check the replica that the message names."),
    row(Policy, Programmed, False, Reason::Uninstalled, "Assent was uninstalled.", "Install Assent, or delete the policy."),

    row(Policy, Enforced, True, Reason::Enforced, "Programmed, and the webhook calls this generation.", ""),
    row(Policy, Enforced, True, Reason::SignatureRejected, "The webhook calls this generation, but its module is not signed with a key that the PolicyServer has now. It stays enforced.", "Sign the module, correct `spec.verification` of the PolicyServer, or replace the policy."),
    row(Policy, Enforced, True, Reason::SettingsUnavailable, "The webhook calls this generation, but a Secret of `spec.settingsFrom` cannot be read or used now. The generation stays enforced with the values that it was made with.", "Correct the Secret, or allow the control plane to read it."),
    row(Policy, Enforced, Unknown, Reason::Pending, "This generation is still being checked.", "See `Accepted`."),
    row(Policy, Enforced, False, Reason::WebhookPending, "Every required replica serves this generation, and the webhook is being updated.", "Wait. If it lasts, check the control plane's permissions and logs."),
    row(Policy, Enforced, False, Reason::NotProgrammed, "This generation is not served by every required replica. An earlier generation stays enforced: see `Ready`.", "See `Programmed`."),
    row(Policy, Enforced, False, Reason::PartiallyEnforced, "The webhook calls this generation, but a replica that served it no longer does.", "Check the replica that the message names."),
    row(Policy, Enforced, False, Reason::Uninstalled, "Assent was uninstalled, and nothing enforces the policy.", "Install Assent, or delete the policy."),

    row(Policy, Ready, True, Reason::Current, "The newest generation is enforced.", ""),
    row(Policy, Ready, True, Reason::LastGood, "An earlier generation is enforced.", "See `Accepted` and `Programmed`."),
    row(Policy, Ready, Unknown, Reason::Pending, "No generation is enforced yet.", "See `Accepted`."),
    row(Policy, Ready, False, Reason::NotServed, "No generation is enforced, or a replica does not serve the active revision.", "See `Accepted` and `Programmed`."),
    row(Policy, Ready, False, Reason::Uninstalled, "Assent was uninstalled, and nothing enforces the policy.", "Install Assent, or delete the policy."),

    row(PolicyReplica, Ready, True, Reason::Applied, "The replica serves the revision.", ""),
    row(PolicyReplica, Ready, False, Reason::Behind, "The replica has not confirmed the revision yet.", "Wait. If it lasts, check the replica's logs."),
    row(PolicyReplica, Ready, False, Reason::SnapshotRefused, "The replica refused the whole snapshot. The message has its error.", "Check that the evaluator and the control plane are of the same version."),
    row(PolicyReplica, Ready, False, Reason::Rejected, "The replica cannot load the revision and did not report where loading failed.", "See the message."),
    row(PolicyReplica, Ready, False, Reason::FetchFailed, "The module could not be fetched from the control plane. The replica retries.", "Check the network between replica and control plane."),
    row(PolicyReplica, Ready, False, Reason::VerificationFailed, "The module does not match its digest.", "Check the disk of the control plane."),
    row(PolicyReplica, Ready, False, Reason::CompileFailed, "The module does not compile.", "Correct the module."),
    row(PolicyReplica, Ready, False, Reason::LinkFailed, "The module imports functions that the evaluator does not provide.", "Update the evaluator or correct the module."),
    row(PolicyReplica, Ready, False, Reason::InstantiationFailed, "The module cannot be instantiated within its limits.", "Raise `spec.limits` of the PolicyServer, or correct the module."),
    row(PolicyReplica, Ready, False, Reason::SettingsRejected, "The module rejects the settings.", "Correct `spec.settings`."),
    row(PolicyReplica, Ready, False, Reason::SelfTestFailed, "The module failed its first call.", "Correct the module."),
    row(PolicyReplica, Ready, False, Reason::SwapFailed, "The replica could not start to serve the loaded revision.", "Check the replica's logs."),
    row(PolicyReplica, Ready, False, Reason::RuntimeFailed, "The module failed repeatedly after it was loaded.", "Correct the module, or roll back."),
    row(PolicyReplica, Ready, False, Reason::ContextNotSynced, "The replica does not have all objects that the policy reads yet. It serves the revision as soon as it has them.", "Wait. The message names the kinds that are missing."),
    row(PolicyReplica, Ready, Unknown, Reason::Disconnected, "The replica is not connected.", "Check its pod."),

    row(PolicyServer, Ready, True, Reason::Ready, "Every replica is ready.", ""),
    row(PolicyServer, Ready, False, Reason::Progressing, "Not every replica is ready.", "Check the pods of its StatefulSet."),
    row(PolicyServer, Ready, False, Reason::Invalid, "The spec is not valid.", "Correct the spec."),
    row(PolicyServer, Ready, False, Reason::ApplyFailed, "One of its objects could not be written. The message has the original error.", "Check the control plane's permissions, quotas and admission webhooks."),

    row(Evaluator, Ready, True, Reason::Current, "The replica serves the whole snapshot.", ""),
    row(Evaluator, Ready, False, Reason::Behind, "The replica has not confirmed the snapshot yet.", "Wait. If it lasts, check the replica's logs."),
    row(Evaluator, Ready, False, Reason::Rejected, "The replica refused the snapshot or a part of it.", "See the status of the policies."),
    row(Evaluator, Ready, Unknown, Reason::Disconnected, "The replica is not connected.", "Check its pod."),
];

const fn row(
    object: ConditionedObject,
    kind: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    when: &'static str,
    remedy: &'static str,
) -> DocumentedReason {
    DocumentedReason {
        object,
        kind,
        status,
        reason,
        when,
        remedy,
    }
}
