//! What the author of a policy must be allowed to read.
//!
//! A policy shows its author what it reads: by what it allows, denies and says. So whoever
//! writes one must be allowed to list what it declares, as for the parameters of a
//! ValidatingAdmissionPolicy. Only what a request adds is asked for.

use assent_api::{
    Manifest,
    parse::{self},
};
use assent_controller::contexts::KindRef;
use assent_core::policy::ContextResource;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec},
};
use kube::Client;

use super::{
    authorizer::Permission,
    review::{Operation, Request},
    validate::is_terminating,
};

/// Finds the resource of a kind.
pub trait KindFinder: Send + Sync + 'static {
    /// The plural name of a kind; none if it is not served. An error if that is not known now.
    fn find(&self, kind: KindRef) -> BoxFuture<'_, Result<Option<String>, String>>;
}

/// Asks the API server.
pub struct ApiKinds(pub Client);

/// A list that the author must be allowed to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    kind: KindRef,
    /// `*` for a kind that is not served: nobody knows which resource it will be.
    plural: String,
    /// Empty for all namespaces.
    namespace: String,
}

/// The declarations that a request adds to its policy; empty for other requests, and for invalid
/// objects, which are refused anyway.
pub(super) fn added(request: &Request, options: &assent_api::Options) -> Vec<ContextResource> {
    let written = matches!(request.operation, Operation::Create | Operation::Update);
    if !written || !request.sub_resource.is_empty() || is_terminating(&request.object) {
        return Vec::new();
    }
    let Ok(Manifest::Policy(new)) = parse::manifest(&request.object, options) else {
        return Vec::new();
    };
    let old = match parse::manifest(&request.old_object, options) {
        Ok(Manifest::Policy(old)) => old.context_resources,
        _ => Vec::new(),
    };
    let news = new.context_resources.into_iter();
    news.filter(|resource| !old.iter().any(|old| covers(old, resource)))
        .collect()
}

/// The lists that the author must be allowed to make; an error if a kind could not be looked up.
pub(super) async fn required(
    declared: Vec<ContextResource>,
    kinds: &dyn KindFinder,
) -> Result<Vec<Reading>, String> {
    let mut all = Vec::new();
    for resource in declared {
        let kind = KindRef::of(&resource);
        let plural = kinds.find(kind.clone()).await?;
        let plural = plural.unwrap_or_else(|| "*".to_owned());
        let namespaces = match resource.namespaces.is_empty() {
            true => vec![String::new()],
            false => resource.namespaces,
        };
        all.extend(namespaces.into_iter().map(|namespace| Reading {
            kind: kind.clone(),
            plural: plural.clone(),
            namespace,
        }));
    }
    Ok(all)
}

/// Whether `old` shows everything that `new` shows.
fn covers(old: &ContextResource, new: &ContextResource) -> bool {
    let includes = |old: &[String], new: &[String]| {
        old.is_empty() || !new.is_empty() && new.iter().all(|item| old.contains(item))
    };
    (&old.api_version, &old.kind) == (&new.api_version, &new.kind)
        && includes(&old.namespaces, &new.namespaces)
}

// === impl ApiKinds ===

impl KindFinder for ApiKinds {
    fn find(&self, kind: KindRef) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(async move {
            let found = crate::context::find_kind(&self.0, &kind).await;
            let found = found.map_err(|error| error.to_string())?;
            Ok(found.map(|(plural, _)| plural))
        })
    }
}

// === impl Reading ===

impl Permission for Reading {
    fn review(&self, user: &UserInfo) -> SubjectAccessReviewSpec {
        let namespace = Some(self.namespace.clone()).filter(|namespace| !namespace.is_empty());
        SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                verb: Some("list".to_owned()),
                group: Some(self.kind.group().to_owned()),
                version: Some(self.kind.version().to_owned()),
                resource: Some(self.plural.clone()),
                namespace,
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }

    fn refusal(&self, user: &UserInfo) -> String {
        let user = user.username.as_deref().unwrap_or_default();
        let kind = &self.kind;
        let place = match self.namespace.as_str() {
            "" => "in all namespaces".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        if self.plural == "*" {
            let group = match kind.group() {
                "" => "the core group",
                group => group,
            };
            return format!(
                "spec.contextAwareResources: the API server does not serve {kind}, so {user:?} needs the permission to \
                 list every resource of {group:?} {place}; install its CustomResourceDefinition first, or ask an \
                 administrator"
            );
        }
        let dot = if kind.group().is_empty() { "" } else { "." };
        format!(
            "spec.contextAwareResources: {user:?} needs the permission to list {}{dot}{} {place}, because the policy \
             reads {kind}; ask an administrator for it, or remove the kind",
            self.plural,
            kind.group()
        )
    }
}

#[cfg(test)]
mod tests;
