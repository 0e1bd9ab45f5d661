//! What the API server's webhook dispatch does: find the policies that match a request, call
//! them, and merge their responses.
//!
//! Mutating policies are called first, one after the other in order of their names, each seeing
//! what those before it changed; cluster policies a second time if another policy changed the
//! object after them. Then validating ones are called, all at once, and with them mutating cluster
//! policies: if one of these would still change the object, the request is denied.
//! `matchPolicy: Equivalent` is treated as `Exact`: without an API server nothing converts between
//! versions.

mod call;
mod condition;
mod matching;
mod review;
mod verdict;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use assent_api::{Parsed, rules::FailurePolicy, tenancy::NAMESPACE_NAME_LABEL};
use assent_core::Mode;
use bytes::Bytes;
use futures::future::join_all;
use tracing::warn;

pub use self::{
    condition::ConditionError,
    matching::{Matched, Request},
    review::ReviewError,
};
use call::Client;
use condition::Condition;
use review::Review;
use verdict::{Answer, Merged};

/// A policy that is enforced.
#[derive(Debug)]
pub struct Target {
    policy: Parsed,
    path: String,
    conditions: Vec<Condition>,
}

/// All policies that are enforced, in order of their names.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Arc<Target>>);

/// Addresses of evaluators and labels of namespaces.
pub trait Environment: Send + Sync {
    /// Base URLs of the evaluators of a PolicyServer, for example `http://127.0.0.1:8080`.
    fn endpoints(&self, policy_server: &str) -> Vec<String>;

    /// Labels of a namespace. `kubernetes.io/metadata.name` is added to what this gives.
    fn namespace_labels(&self, _namespace: &str) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// How an evaluator is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// For the verdict, which may be a change.
    Validate,
    /// Whether the policy would still change the object, which is a denial.
    Confirm,
}

/// Calls policies.
#[derive(Debug)]
pub struct Dispatcher<S> {
    environment: S,
    client: Client,
    /// Counts calls, so that each replica gets its turn.
    turn: AtomicUsize,
}

// === impl Target ===

impl Target {
    /// A policy whose active revision answers at `path`, the path below `/validate/`. Fails
    /// if a match condition is not CEL.
    pub fn new(policy: Parsed, path: impl Into<String>) -> Result<Self, ConditionError> {
        let conditions = condition::compile(&policy.match_conditions)?;
        Ok(Self {
            policy,
            path: path.into(),
            conditions,
        })
    }

    /// The policy.
    pub fn policy(&self) -> &Parsed {
        &self.policy
    }

    /// The policy's name in messages, with its namespace if it has one.
    pub fn name(&self) -> String {
        match self.policy.key.namespace() {
            Some(namespace) => format!("{namespace}/{}", self.policy.key.name()),
            None => self.policy.key.name().to_owned(),
        }
    }

    fn is_cluster(&self) -> bool {
        self.policy.key.namespace().is_none()
    }

    /// How the policy is asked when objects are validated; `None` if it is not.
    fn validation(&self) -> Option<Call> {
        match self.policy.mutating {
            false => Some(Call::Validate),
            true => {
                (self.is_cluster() && self.policy.mode == Mode::Protect).then_some(Call::Confirm)
            }
        }
    }

    /// Whether a request concerns the policy, as the API server would see it.
    pub fn matches(
        &self,
        request: &Request,
        namespace_labels: &BTreeMap<String, String>,
    ) -> Matched {
        if !matching::concerns(&self.policy, request, namespace_labels) {
            return Matched::No;
        }
        condition::check(&self.conditions, request, self.policy.failure_policy)
    }
}

// === impl Call ===

impl Call {
    fn endpoint(self) -> &'static str {
        match self {
            Call::Validate => "validate",
            Call::Confirm => "confirm",
        }
    }
}

/// Checks the match conditions of a policy, so that it is rejected before it is enforced.
pub fn check_conditions(policy: &Parsed) -> Result<(), ConditionError> {
    condition::compile(&policy.match_conditions).map(|_| ())
}

// === impl Table ===

impl Table {
    /// Sorts policies by name.
    pub fn new(targets: impl IntoIterator<Item = Arc<Target>>) -> Self {
        let mut targets: Vec<_> = targets.into_iter().collect();
        targets.sort_by(|a, b| a.policy.key.cmp(&b.policy.key));
        Self(targets)
    }

    /// The policies in order of their names.
    pub fn targets(&self) -> &[Arc<Target>] {
        &self.0
    }
}

// === impl Dispatcher ===

impl<S: Environment> Dispatcher<S> {
    /// A dispatcher that keeps connections to evaluators open between requests.
    pub fn new(environment: S) -> Self {
        Self {
            environment,
            client: Client::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Answers an AdmissionReview with an AdmissionReview. Fails only if `body` is not one.
    pub async fn admit(&self, table: &Table, body: &[u8]) -> Result<Bytes, ReviewError> {
        let mut review = Review::read(body)?;
        let mut merged = Merged::new();
        if self.mutate(table, &mut review, &mut merged).await {
            self.validate(table, &review, &mut merged).await;
        }
        Ok(merged.respond(review.uid()))
    }

    /// Calls mutating policies; false if one denied the request.
    async fn mutate(&self, table: &Table, review: &mut Review, merged: &mut Merged) -> bool {
        // The changes that each policy has seen.
        let mut seen = Vec::new();
        for target in table.0.iter().filter(|target| target.policy.mutating) {
            let answer = self.ask(target, Call::Validate, review).await;
            if !merged.add(&target.name(), answer, Some(review)) {
                return false;
            }
            seen.push((target, review.changes()));
        }
        let again = seen.into_iter().filter(|(target, _)| target.is_cluster());
        for (target, seen) in again {
            if seen == review.changes() {
                continue;
            }
            let answer = self.ask(target, Call::Validate, review).await;
            if !merged.add(&target.name(), answer, Some(review)) {
                return false;
            }
        }
        true
    }

    /// Calls validating policies in parallel; the first denial by name decides.
    async fn validate(&self, table: &Table, review: &Review, merged: &mut Merged) {
        let calls = || {
            let calls = table.0.iter().map(|target| (target, target.validation()));
            calls.filter_map(|(target, call)| Some((target, call?)))
        };
        let answers = calls().map(|(target, call)| self.ask(target, call, review));
        let answers = join_all(answers).await;
        for ((target, _), answer) in calls().zip(answers) {
            merged.add(&target.name(), answer, None);
        }
    }

    async fn ask(&self, target: &Target, call: Call, review: &Review) -> Answer {
        let labels = self.labels(review.request());
        match target.matches(review.request(), &labels) {
            Matched::No => return Answer::NotAsked,
            Matched::Yes => {}
            Matched::Error(why) => return Answer::Broken(why),
        }
        let answer = self.call(target, call, review).await;
        let verdict = answer.and_then(|answer| verdict::read(&answer, review.uid()));
        verdict.map_or_else(|why| failed(target, why), Answer::Given)
    }

    /// Calls one replica after the other until one answers.
    async fn call(&self, target: &Target, call: Call, review: &Review) -> Result<Bytes, String> {
        let endpoints = self.environment.endpoints(&target.policy.server);
        if endpoints.is_empty() {
            return Err(format!(
                "no evaluator of PolicyServer {} is there",
                target.policy.server
            ));
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let seconds = target.policy.timeout_seconds;
        let body = review.body();
        let attempts = async {
            let mut last = String::new();
            for i in 0..endpoints.len() {
                let endpoint = &endpoints[first.wrapping_add(i) % endpoints.len()];
                let (base, endpoint) = (endpoint.trim_end_matches('/'), call.endpoint());
                let url = format!("{base}/{endpoint}/{}", target.path);
                match self.client.post(&url, body.clone()).await {
                    Ok(response) => return Ok(response),
                    Err(error) if error.may_retry() => last = error.to_string(),
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err(last)
        };
        let deadline = Duration::from_secs(seconds.into());
        tokio::time::timeout(deadline, attempts)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {seconds} s")))
    }

    fn labels(&self, request: &Request) -> BTreeMap<String, String> {
        let mut labels = self.environment.namespace_labels(&request.namespace);
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), request.namespace.clone());
        labels
    }
}

/// Applies `failurePolicy` to a policy that could not be called.
fn failed(target: &Target, why: String) -> Answer {
    warn!(policy = %target.policy.key, error = %why, failure_policy = ?target.policy.failure_policy, "failed to ask a policy");
    match target.policy.failure_policy {
        FailurePolicy::Ignore => Answer::NotAsked,
        FailurePolicy::Fail => Answer::Failed(why),
    }
}

#[cfg(test)]
mod tests;
