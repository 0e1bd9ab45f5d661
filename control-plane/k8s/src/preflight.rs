//! Checks before anything starts: the version of the API server, the definitions, and the
//! permissions. Everything that is missing is reported at once, with the remedy.

mod check;
mod required;

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    api::authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use serde_json::Value;

pub use self::{
    check::{Rule, definitions, is_granted, version},
    required::{Permission, REQUIRED, Scope},
};

/// Before 1.30 webhooks have no stable match conditions: what keeps a cluster from locking
/// itself out would be dropped without a word.
pub const OLDEST_MINOR: u32 = 30;

/// No namespace has a dot in its name: what is allowed there is allowed everywhere.
const NOWHERE: &str = "assent.invalid";

/// Everything that is missing; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<Problem>);

/// One thing that is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The server is too old.
    #[error("Kubernetes is {0}; upgrade it to 1.{OLDEST_MINOR} or newer")]
    Version(String),
    /// There is no such definition.
    #[error("the definition {0} is missing; apply the chart's crds/")]
    Definition(String),
    /// The definition has another version.
    #[error("the definition {name} does not serve {version}; apply the chart's crds/")]
    NotServed {
        /// Of the definition.
        name: String,
        /// The version that this build needs.
        version: String,
    },
    /// The API server does not serve it yet, or refused it.
    #[error("the definition {name} is not established: {why}")]
    NotEstablished {
        /// Of the definition.
        name: String,
        /// The error message of the API server.
        why: String,
    },
    /// The definition is older than this build.
    #[error(
        "the definition {name} is older than this control plane and does not know {}; apply the chart's crds/",
        .fields.join(", ")
    )]
    Outdated {
        /// Of the definition.
        name: String,
        /// Fields that it lacks.
        fields: Vec<String>,
    },
    /// A permission is missing.
    #[error("no permission to {} {resource}{place}; apply the chart's roles", .verbs.join(", "))]
    Permission {
        /// The verbs that are not allowed.
        verbs: Vec<String>,
        /// To what.
        resource: String,
        /// Where.
        place: String,
    },
}

/// Why nothing could start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A request failed.
    #[error("failed to ask the API server for {what}")]
    Ask {
        /// What was asked for.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Reports everything that is missing. `namespace` is the control plane's.
pub async fn run(client: &Client, namespace: &str) -> Result<(), Error> {
    let mut problems = Vec::new();
    problems.extend(server_version(client).await?.1);
    problems.extend(permissions(client, namespace).await?);
    let unreadable = problems.iter().any(is_about_definitions);
    if !unreadable {
        problems.extend(definitions(&served_definitions(client).await?));
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Missing(problems).into()),
    }
}

/// The version of the API server, and whether it is too old.
pub async fn server_version(client: &Client) -> Result<(String, Option<Problem>), Error> {
    let info = client.apiserver_version().await;
    let info = info.map_err(ask("its version"))?;
    let problem = version(&info.major, &info.minor);
    Ok((info.git_version, problem))
}

fn ask(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Ask {
        what,
        source: Box::new(source),
    }
}

/// Without that permission every definition would seem to be missing.
fn is_about_definitions(problem: &Problem) -> bool {
    match problem {
        Problem::Permission { resource, .. } => resource.starts_with("customresourcedefinitions"),
        _ => false,
    }
}

/// The definitions as the API server has them.
pub async fn served_definitions(client: &Client) -> Result<BTreeMap<String, Value>, Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut served = BTreeMap::new();
    for name in check::names() {
        let found = api
            .get_opt(&name)
            .await
            .map_err(ask("the CustomResourceDefinitions of Assent"))?;
        if let Some(definition) = found {
            let value = serde_json::to_value(definition).expect("a definition must be JSON");
            served.insert(name, value);
        }
    }
    Ok(served)
}

/// Permissions that the control plane lacks. One review lists the rules that apply to it; what they do not
/// grant is asked for one by one, since not every authorizer can list its rules.
async fn permissions(client: &Client, namespace: &str) -> Result<Vec<Problem>, Error> {
    let everywhere = rules(client, NOWHERE).await?;
    let here = rules(client, namespace).await?;
    let mut problems = Vec::new();
    for permission in REQUIRED {
        let rules = match permission.scope {
            Scope::Cluster => &everywhere,
            Scope::Namespace => &here,
        };
        let mut missing = Vec::new();
        for verb in permission.verbs {
            let granted = is_granted(rules, permission, verb)
                || asked(client, namespace, permission, verb, None).await?;
            if !granted {
                missing.push((*verb).to_owned());
            }
        }
        if !missing.is_empty() {
            problems.push(permission.problem(missing, namespace));
        }
    }
    Ok(problems)
}

/// Permissions that a service account of `namespace` lacks of those that the control plane needs.
/// Whoever asks must be allowed to create SubjectAccessReviews.
pub async fn account_permissions(
    client: &Client,
    namespace: &str,
    account: &str,
) -> Result<Vec<Problem>, Error> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let mut problems = Vec::new();
    for permission in REQUIRED {
        let mut missing = Vec::new();
        for verb in permission.verbs {
            if !asked(client, namespace, permission, verb, Some(&user)).await? {
                missing.push((*verb).to_owned());
            }
        }
        if !missing.is_empty() {
            problems.push(permission.problem(missing, namespace));
        }
    }
    Ok(problems)
}

/// Rules that hold in a namespace; those that hold everywhere are among them.
async fn rules(client: &Client, namespace: &str) -> Result<Vec<Rule>, Error> {
    let review = SelfSubjectRulesReview {
        metadata: ObjectMeta::default(),
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        status: None,
    };
    let api: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let answer = api
        .create(&PostParams::default(), &review)
        .await
        .map_err(ask("the permissions of the control plane"))?;
    let rules = answer.status.map(|status| status.resource_rules);
    Ok(rules
        .unwrap_or_default()
        .into_iter()
        .map(Rule::from)
        .collect())
}

/// Whether the control plane, or a service account, has a permission; for each name if there are names.
async fn asked(
    client: &Client,
    namespace: &str,
    permission: &Permission,
    verb: &str,
    user: Option<&str>,
) -> Result<bool, Error> {
    let names = permission.names.iter().copied().map(Some);
    let names: Vec<_> = match permission.names {
        [] => vec![None],
        _ => names.collect(),
    };
    for name in names {
        let attributes = attributes(namespace, permission, verb, name);
        if !is_allowed(client, attributes, user).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn attributes(
    namespace: &str,
    permission: &Permission,
    verb: &str,
    name: Option<&str>,
) -> ResourceAttributes {
    let (resource, subresource) = match permission.resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (permission.resource, None),
    };
    ResourceAttributes {
        group: Some(permission.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        name: name.map(str::to_owned),
        namespace: (permission.scope == Scope::Namespace).then(|| namespace.to_owned()),
        ..ResourceAttributes::default()
    }
}

/// Asks the API server about this process, or about a service account.
async fn is_allowed(
    client: &Client,
    attributes: ResourceAttributes,
    user: Option<&str>,
) -> Result<bool, Error> {
    let params = PostParams::default();
    let asking = ask("the permissions of the control plane");
    let Some(user) = user else {
        let review = SelfSubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            status: None,
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let answer = api.create(&params, &review).await.map_err(asking)?;
        return Ok(answer.status.is_some_and(|status| status.allowed));
    };
    // As the API server groups service accounts.
    let namespace = user.split(':').nth(2).unwrap_or_default();
    let groups = vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&params, &review).await.map_err(asking)?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

// === impl Missing ===

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cluster is not ready for Assent:")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
