//! What the authors of PolicyServers and policies must be allowed to do.
//!
//! A PolicyServer becomes pods in the control plane's namespace. Its author must not get more
//! by it than by creating those pods himself, so the webhook asks the API server whether he may.
//! Only what the request changes is asked for: whoever may scale a PolicyServer or edit its limits
//! needs no permission for the image that somebody else chose.
//!
//! The author of a policy whose settings come from Secrets must be allowed to read these, whatever
//! he changes: a policy can disclose its settings, and he may have changed its module.

use std::collections::BTreeSet;

use assent_api::{
    Parsed, PolicyServerSpec,
    parse::{self, Manifest},
    tenancy::{Reference, ReferenceKind},
};
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec},
    core::v1::{AppArmorProfile, SeccompProfile, WindowsSecurityContextOptions},
};
use serde_json::Value;

use super::{
    review::{Operation, Request},
    validate::{is_terminating, is_untouched},
};

/// Fields that shape the pods of a PolicyServer. `replicas` is not among them: it is what
/// autoscalers change.
const POD_FIELDS: &[&str] = &[
    "affinity",
    "annotations",
    "env",
    "image",
    "imagePullSecret",
    "imagePullSecrets",
    "labels",
    "nodeSelector",
    "priorityClassName",
    "resources",
    "securityContexts",
    "serviceAccountName",
    "storage",
    "tolerations",
    "topologySpreadConstraints",
];

/// Beyond so many objects of one kind, the permission for all of them is asked for: each review
/// is a request.
const MAX_NAMED: usize = 8;

/// Annotations that take a pod's confinement away.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Something that the author must be allowed to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The fields that it is needed for.
    pub fields: String,
    /// The verb.
    pub verb: &'static str,
    /// API group; empty is the core group.
    pub group: &'static str,
    /// `pods`, or `policyservers/privileged`.
    pub resource: &'static str,
    /// Empty if it is not in a namespace.
    pub namespace: String,
    /// Empty for all objects.
    pub name: String,
    /// What follows from the object.
    pub why: &'static str,
}

const POD_REASON: &str = "pods of the PolicyServer run there";
const SETTINGS_REASON: &str = "the policy can disclose its settings";

/// Everything that the author of the object in `request` must be allowed to do; empty for
/// invalid objects, which are refused anyway.
pub fn required(request: &Request, namespace: &str, options: &assent_api::Options) -> Vec<Access> {
    let written = matches!(request.operation, Operation::Create | Operation::Update);
    if !written || !request.sub_resource.is_empty() || is_terminating(&request.object) {
        return Vec::new();
    }
    let new = match parse::manifest(&request.object, options) {
        Ok(Manifest::Server(new)) => new,
        Ok(Manifest::Policy(policy)) if !is_untouched(request) => {
            return settings_secrets(&policy, namespace);
        }
        _ => return Vec::new(),
    };
    // An old object that is not valid never took effect.
    let old = match parse::manifest(&request.old_object, options) {
        Ok(Manifest::Server(old)) => old.spec,
        _ => PolicyServerSpec::default(),
    };
    let mut all = Vec::new();
    let changed = changed_fields(&old, &new.spec);
    if !changed.is_empty() {
        all.push(Access {
            fields: changed.join(", "),
            verb: "create",
            group: "",
            resource: "pods",
            namespace: namespace.to_owned(),
            name: String::new(),
            why: POD_REASON,
        });
    }
    all.extend(references(&old, &new.spec, namespace));
    // Also for another image in a pod that is privileged already.
    let privileged = privileged(&new.spec);
    if !changed.is_empty() && !privileged.is_empty() {
        all.push(Access {
            fields: privileged.join(", "),
            verb: "use",
            group: assent_api::GROUP,
            resource: "policyservers/privileged",
            namespace: String::new(),
            name: new.name.clone(),
            why: POD_REASON,
        });
    }
    all
}

/// Pod fields that the new spec has and the old one has not, or has otherwise.
fn changed_fields(old: &PolicyServerSpec, new: &PolicyServerSpec) -> Vec<String> {
    let value = |spec: &PolicyServerSpec| serde_json::to_value(spec).unwrap_or_default();
    let (old, new) = (value(old), value(new));
    let get = |spec: &Value, field: &str| spec.get(field).filter(|v| !v.is_null()).cloned();
    let fields = POD_FIELDS.iter().filter(|field| {
        let wanted = get(&new, field);
        wanted.is_some() && wanted != get(&old, field)
    });
    fields.map(|field| format!("spec.{field}")).collect()
}

/// Objects of the namespace that the spec hands to its pods or to the control plane.
fn references(old: &PolicyServerSpec, new: &PolicyServerSpec, namespace: &str) -> Vec<Access> {
    let known = old.references();
    let is_known = |found: &Reference| {
        let same = |old: &Reference| {
            (old.kind, &old.name, &old.key) == (found.kind, &found.name, &found.key)
        };
        known.iter().any(same)
    };
    let added: Vec<Reference> = new
        .references()
        .into_iter()
        .filter(|r| !is_known(r))
        .collect();
    let mut all = Vec::new();
    for (kind, verb, resource) in [
        (ReferenceKind::Secret, "get", "secrets"),
        (ReferenceKind::ConfigMap, "get", "configmaps"),
        // Kubernetes' verb for acting as somebody else.
        (
            ReferenceKind::ServiceAccount,
            "impersonate",
            "serviceaccounts",
        ),
    ] {
        let own = added.iter().filter(|r| r.kind == kind);
        let own: Vec<_> = own.map(|r| (r.name.as_str(), r.path.as_str())).collect();
        let access = Access {
            fields: String::new(),
            verb,
            group: "",
            resource,
            namespace: namespace.to_owned(),
            name: String::new(),
            why: POD_REASON,
        };
        all.extend(named(&own, &access));
    }
    all
}

/// Access to each object of a list of names and fields.
fn named(objects: &[(&str, &str)], access: &Access) -> Vec<Access> {
    let names: BTreeSet<&str> = objects.iter().map(|(name, _)| *name).collect();
    let names: Vec<&str> = match names.len() {
        0..=MAX_NAMED => names.into_iter().collect(),
        _ => vec![""],
    };
    let of = |name: &str| {
        let fields = objects.iter();
        let fields = fields.filter(|(of, _)| name.is_empty() || *of == name);
        let fields: Vec<&str> = fields.map(|(_, path)| *path).take(MAX_NAMED).collect();
        Access {
            fields: fields.join(", "),
            name: name.to_owned(),
            ..access.clone()
        }
    };
    names.into_iter().map(of).collect()
}

/// Secrets that the settings of a policy come from.
fn settings_secrets(policy: &Parsed, namespace: &str) -> Vec<Access> {
    let paths = (0..policy.settings_from.len()).map(|n| format!("spec.settingsFrom[{n}]"));
    let paths: Vec<String> = paths.collect();
    let names = policy.settings_from.iter();
    let names = names.map(|source| source.secret_key_ref.name.as_str());
    let secrets: Vec<_> = names.zip(paths.iter().map(String::as_str)).collect();
    let access = Access {
        fields: String::new(),
        verb: "get",
        group: "",
        resource: "secrets",
        namespace: policy.key.namespace().unwrap_or(namespace).to_owned(),
        name: String::new(),
        why: SETTINGS_REASON,
    };
    named(&secrets, &access)
}

/// Settings that reach beyond the pod: what the Baseline Pod Security Standard restricts.
fn privileged(spec: &PolicyServerSpec) -> Vec<String> {
    let contexts = spec.security_contexts.clone().unwrap_or_default();
    let mut all = Vec::new();
    let mut add = |is: bool, path: &str| all.extend(is.then(|| format!("spec.{path}")));
    let container = contexts.container.unwrap_or_default();
    let path = |field: &str| format!("securityContexts.container.{field}");
    let added = container
        .capabilities
        .and_then(|c| c.add)
        .unwrap_or_default();
    add(container.privileged == Some(true), &path("privileged"));
    add(
        added
            .iter()
            .any(|capability| capability != "NET_BIND_SERVICE"),
        &path("capabilities.add"),
    );
    let unmasked = container.proc_mount.is_some_and(|mount| mount != "Default");
    add(unmasked, &path("procMount"));
    add(
        container.se_linux_options.is_some(),
        &path("seLinuxOptions"),
    );
    add(
        is_unconfined(container.seccomp_profile),
        &path("seccompProfile"),
    );
    add(
        is_exposed(container.app_armor_profile),
        &path("appArmorProfile"),
    );
    add(
        is_host_process(container.windows_options),
        &path("windowsOptions.hostProcess"),
    );
    let pod = contexts.pod.unwrap_or_default();
    let path = |field: &str| format!("securityContexts.pod.{field}");
    add(pod.se_linux_options.is_some(), &path("seLinuxOptions"));
    add(
        pod.sysctls.is_some_and(|list| !list.is_empty()),
        &path("sysctls"),
    );
    add(is_unconfined(pod.seccomp_profile), &path("seccompProfile"));
    add(is_exposed(pod.app_armor_profile), &path("appArmorProfile"));
    add(
        is_host_process(pod.windows_options),
        &path("windowsOptions.hostProcess"),
    );
    let mut names = spec.annotations.keys();
    add(
        names.any(|name| name.starts_with(APPARMOR_ANNOTATION)),
        "annotations",
    );
    all
}

fn is_unconfined(profile: Option<SeccompProfile>) -> bool {
    profile.is_some_and(|profile| profile.type_ == "Unconfined")
}

fn is_exposed(profile: Option<AppArmorProfile>) -> bool {
    profile.is_some_and(|profile| profile.type_ == "Unconfined")
}

fn is_host_process(options: Option<WindowsSecurityContextOptions>) -> bool {
    options.is_some_and(|options| options.host_process == Some(true))
}

// === impl Access ===

impl Access {
    /// The question whether `user` may do it.
    pub fn review(&self, user: &UserInfo) -> SubjectAccessReviewSpec {
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (self.resource, None),
        };
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                verb: given(self.verb),
                group: Some(self.group.to_owned()),
                resource: given(resource),
                subresource: subresource.map(ToOwned::to_owned),
                namespace: given(&self.namespace),
                name: given(&self.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }

    /// What a user is told who may not do it.
    pub fn refusal(&self, user: &UserInfo) -> String {
        let user = user.username.as_deref().unwrap_or_default();
        let Access {
            fields,
            verb,
            group,
            resource,
            why,
            ..
        } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let name = match self.name.as_str() {
            "" => String::new(),
            name => format!(" {name:?}"),
        };
        let place = match self.namespace.as_str() {
            "" => String::new(),
            namespace => format!(" in the namespace {namespace:?}"),
        };
        format!(
            "{fields}: {user:?} needs the permission to {verb} {resource}{dot}{group}{name}{place}, \
             because {why}; ask an administrator for it, or leave the fields out"
        )
    }
}

#[cfg(test)]
mod tests;
