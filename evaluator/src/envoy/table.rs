//! The policies that decide about requests at Envoy, as part of the set in place.

use std::{collections::BTreeMap, sync::Arc};

use assent_core::{
    Mode, PolicyKey,
    policy::{RequestScope, is_for_requests},
};
use assent_proto::envoy::service::auth::v3::attribute_context::HttpRequest;

use super::{
    matching::{Facts, Matcher, normal_host},
    path::{self, Target},
};
use crate::{
    evaluation::{LoadedPolicy, Route},
    plan::{RevisionName, RoutingTable, Row},
};

/// The policies whose routes are active, in the order in which they are asked.
#[derive(Default)]
pub(crate) struct RequestTable {
    policies: Vec<Candidate>,
    matcher: Matcher,
    /// Whether any of them denies what it does not like.
    protects: bool,
}

/// One policy of the table.
struct Candidate {
    key: PolicyKey,
    answer: Answer,
}

enum Answer {
    Loaded(Arc<LoadedPolicy>, Arc<Route>),
    /// The reason.
    NotLoaded(Arc<str>),
}

/// Whose policies decide about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Workloads {
    /// Those of every namespace: the server is the only one, or belongs to one team.
    #[default]
    All,
    /// Those of one namespace, and cluster-wide ones: the evaluator runs beside a workload of that namespace.
    Namespace(String),
}

/// The policies that decide about one request.
pub(crate) enum Selection {
    Route(Arc<Route>),
    /// No policy matches the request, or not every reading of its path.
    Unmatched,
    /// One that matches is not loaded, and why.
    NotLoaded(String),
}

// === impl RequestTable ===

impl RequestTable {
    /// `loaded` finds revisions; `rows` is the whole routing table.
    pub(crate) fn new(
        table: &RoutingTable,
        loaded: impl Fn(&Row) -> Result<Arc<LoadedPolicy>, Arc<str>>,
    ) -> Self {
        let everything = Arc::new(RequestScope::default());
        let mut found = Vec::new();
        for (path, row) in &table.rows {
            if row.state != assent_core::RouteState::Active || !is_for_requests(path) {
                continue;
            }
            let key = RevisionName::parse(path).and_then(|name| PolicyKey::parse(name.policy));
            let Some(key) = key else { continue };
            let (scope, answer) = match loaded(row) {
                Ok(policy) => {
                    let scope = policy.policy.content.requests.clone();
                    let route = Route::new(vec![policy.clone()]).expect("one policy is a route");
                    (scope, Answer::Loaded(policy, Arc::new(route)))
                }
                // If nothing is known of a policy that is not loaded, it may match every request.
                Err(why) => (row.requests.clone(), Answer::NotLoaded(why)),
            };
            let scope = scope.unwrap_or_else(|| everything.clone());
            found.push((scope, Candidate { key, answer }));
        }
        found.sort_by(|(a, one), (b, other)| (a.order, &one.key).cmp(&(b.order, &other.key)));
        Self {
            matcher: Matcher::new(found.iter().map(|(scope, _)| &**scope)),
            protects: found.iter().any(|(_, candidate)| candidate.protects()),
            policies: found.into_iter().map(|(_, candidate)| candidate).collect(),
        }
    }

    /// Whether no policy here would deny anything.
    pub(crate) fn only_monitors(&self) -> bool {
        !self.protects
    }

    /// The policies that decide about a request. If servers may read its path in several ways, those of all readings
    /// decide, and each reading must be matched.
    pub(crate) fn select(
        &self,
        http: &HttpRequest,
        headers: &BTreeMap<String, String>,
        workloads: &Workloads,
    ) -> Result<Selection, path::Error> {
        let facts = Facts {
            host: normal_host(&http.host),
            method: &http.method,
            headers,
        };
        let mut found: Vec<usize> = Vec::new();
        let mut complete = true;
        for reading in Target::split(&http.path).readings()? {
            let mut matched = self.matcher.find(&facts, &reading);
            matched.retain(|number| workloads.include(&self.policies[*number].key));
            complete &= !matched.is_empty();
            found.extend(matched);
        }
        if !complete {
            return Ok(Selection::Unmatched);
        }
        found.sort_unstable();
        found.dedup();
        Ok(self.route(&found))
    }

    fn route(&self, found: &[usize]) -> Selection {
        let mut policies = Vec::with_capacity(found.len());
        for number in found {
            match &self.policies[*number].answer {
                Answer::Loaded(_, route) if found.len() == 1 => {
                    return Selection::Route(route.clone());
                }
                Answer::Loaded(policy, _) => policies.push(policy.clone()),
                Answer::NotLoaded(why) => return Selection::NotLoaded(why.to_string()),
            }
        }
        Route::new(policies).map_or(Selection::Unmatched, |route| {
            Selection::Route(Arc::new(route))
        })
    }
}

// === impl Candidate ===

impl Candidate {
    fn protects(&self) -> bool {
        match &self.answer {
            Answer::Loaded(policy, _) => policy.policy.content.mode == Mode::Protect,
            Answer::NotLoaded(_) => true,
        }
    }
}

// === impl Workloads ===

impl Workloads {
    fn include(&self, key: &PolicyKey) -> bool {
        match (self, key.namespace()) {
            (Self::Namespace(own), Some(namespace)) => own == namespace,
            _ => true,
        }
    }
}
