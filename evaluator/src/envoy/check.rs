//! One call of `Check`: its document, and what its policies decide. `assent run --check` uses the same.

use std::collections::BTreeMap;

use assent_core::Mode;
use assent_proto::envoy::service::auth::v3::{
    CheckRequest, CheckResponse, attribute_context::HttpRequest,
};
use assent_wasm::{RequestEffects, Review, Verdict};
use serde_json::{Map, Value, json};

use super::{
    document,
    handler::Decided,
    parsed_body::ParsedBody,
    path::{self, Target},
    response,
};
use crate::evaluation::{Decision, Evaluation, LoadedPolicy, Query};

mod json_form;

pub use json_form::{JsonError, parse};

/// A call that is being decided.
pub(super) struct Call {
    check: CheckRequest,
    /// Names the decision in logs and metadata.
    id: String,
}

/// Why there is no decision.
pub(super) enum Failed {
    /// Another replica may have room.
    Overloaded,
    /// A policy gave no verdict.
    NoVerdict {
        /// The reason.
        why: String,
        /// The policy and its revision; empty if none was asked.
        policy: String,
        revision: String,
    },
}

/// Why a request can't be shown to policies: it is answered with 400.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadRequest(String);

/// The document that policies get of a request. With `reads_body`, the body is parsed.
pub fn document(check: &CheckRequest, reads_body: bool) -> Result<String, BadRequest> {
    let bad = |error: path::Error| BadRequest(error.to_string());
    let http = http_of(check).ok_or_else(|| BadRequest(NO_HTTP.into()))?;
    let target = Target::split(&http.path);
    let segments = target.segments().map_err(bad)?;
    let body = reads_body.then(|| ParsedBody::parse(http)).transpose();
    let body = body.map_err(|error| BadRequest(error.to_string()))?;
    let query = path::query(target.query);
    Ok(document::write(check, &segments, &query, body.as_ref()))
}

/// Envoy's response to a verdict of a single policy.
pub fn respond(verdict: &Verdict) -> CheckResponse {
    let effects = verdict.effects.as_deref().cloned().unwrap_or_default();
    let metadata = effects.dynamic_metadata.clone();
    match verdict.allowed {
        true => response::allowed(&effects, metadata),
        false => response::denied(&effects, metadata),
    }
}

const NO_HTTP: &str = "the request has no attributes.request.http";

/// The key of dynamic metadata that names the decision.
const METADATA: &str = "assent";

// === impl Failed ===

impl Failed {
    fn no_verdict(why: String, policy: Option<&LoadedPolicy>) -> Self {
        let (policy, revision) = names(policy);
        Self::NoVerdict {
            why,
            policy,
            revision,
        }
    }
}

// === impl Call ===

impl Call {
    /// None if the call describes no HTTP request.
    pub(super) fn new(check: CheckRequest) -> Option<Self> {
        http_of(&check)?;
        let id = uuid::Uuid::new_v4().to_string();
        Some(Self { check, id })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn http(&self) -> &HttpRequest {
        http_of(&self.check).expect("a call must have an HTTP request")
    }

    /// The headers if Envoy sends them as a list; repeated ones are joined, as in the map.
    pub(super) fn raw_headers(&self) -> Option<BTreeMap<String, String>> {
        let list = self.http().header_map.as_ref()?;
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for header in &list.headers {
            let value = match header.raw_value.is_empty() {
                true => header.value.clone(),
                false => String::from_utf8_lossy(&header.raw_value).into_owned(),
            };
            headers
                .entry(header.key.to_ascii_lowercase())
                .and_modify(|all| {
                    all.push(',');
                    all.push_str(&value);
                })
                .or_insert(value);
        }
        Some(headers)
    }

    /// For fuzzing: makes the document, and checks that it is one.
    pub(super) fn document(&self) -> bool {
        let Ok(text) = document(&self.check, true) else {
            return false;
        };
        serde_json::from_str::<serde::de::IgnoredAny>(&text).expect("a document must be JSON");
        true
    }

    /// The server's default for requests that no policy matches.
    pub(super) fn default(&self, allowed: bool) -> Decided {
        let metadata = self.metadata(Map::new(), allowed, "default", None, Map::new());
        let effects = RequestEffects {
            body: (!allowed).then(|| "no policy allows this request\n".to_owned()),
            ..RequestEffects::default()
        };
        decided(allowed, &effects, metadata, None)
    }

    /// A request that can't be shown to policies.
    pub(super) fn refused(&self, why: &str, policy: Option<&LoadedPolicy>) -> Decided {
        let metadata = self.metadata(Map::new(), false, "malformed", policy, Map::new());
        let effects = RequestEffects {
            http_status: Some(response::BAD_REQUEST),
            body: Some(format!("{why}\n")),
            ..RequestEffects::default()
        };
        Decided {
            message: why.to_owned(),
            ..decided(false, &effects, metadata, policy)
        }
    }

    /// Asks the policies, on the thread that evaluates.
    pub(super) fn decide(&self, evaluation: &Evaluation) -> Result<Decided, Failed> {
        let policies = evaluation.route().policies();
        let reads = |one: &LoadedPolicy| {
            let scope = one.policy.content.requests.as_deref();
            scope.is_none_or(|scope| scope.reads_body)
        };
        let mut readers = policies.iter().filter(|one| reads(one)).peekable();
        let document = match document(&self.check, readers.peek().is_some()) {
            Ok(document) => document,
            Err(why) => match readers.find(|one| one.policy.content.mode == Mode::Protect) {
                Some(policy) => return Ok(self.refused(&why.to_string(), Some(policy))),
                // Policies that only count must not deny: they see the request without its body.
                None => {
                    document(&self.check, false).map_err(|why| Failed::no_verdict(why.0, None))?
                }
            },
        };
        let decision = evaluation.decide(&Query {
            review: Review::check(&document),
            monitor: true,
            join: |_, _| None,
        });
        self.decided(decision, policies)
    }

    fn decided(
        &self,
        decision: Decision<'_>,
        policies: &[std::sync::Arc<LoadedPolicy>],
    ) -> Result<Decided, Failed> {
        let Decision {
            verdict,
            policy,
            failed,
            overloaded,
            monitored,
            ..
        } = decision;
        if overloaded {
            return Err(Failed::Overloaded);
        }
        if failed {
            let why = verdict.message.unwrap_or_default();
            return Err(Failed::no_verdict(why, Some(policy)));
        }
        let asked = policies.iter().position(|one| std::ptr::eq(&**one, policy));
        let asked = policies
            .iter()
            .take(asked.map_or(policies.len(), |n| n + 1));
        let revisions = asked.map(|one| {
            let (key, revision) = (&one.policy.policy, one.policy.revision.short());
            (key.to_string(), Value::from(revision))
        });
        let revisions: Map<String, Value> = revisions.collect();
        let effects = verdict.effects.map(|effects| *effects).unwrap_or_default();
        let own = effects.dynamic_metadata.clone();
        let metadata = self.metadata(own, verdict.allowed, "policy", Some(policy), revisions);
        Ok(Decided {
            message: monitored.clone().or(verdict.message).unwrap_or_default(),
            monitored: monitored.is_some(),
            ..decided(verdict.allowed, &effects, metadata, Some(policy))
        })
    }

    /// What policies wrote, with the decision's own entries in place of theirs.
    fn metadata(
        &self,
        mut metadata: Map<String, Value>,
        allowed: bool,
        by: &str,
        policy: Option<&LoadedPolicy>,
        revisions: Map<String, Value>,
    ) -> Map<String, Value> {
        let mut own = json!({"allowed": allowed, "by": by});
        if let Some(policy) = policy {
            own["policy"] = policy.policy.policy.as_str().into();
            own["revision"] = policy.policy.revision.short().into();
        }
        if !revisions.is_empty() {
            own["revisions"] = revisions.into();
        }
        metadata.insert(METADATA.to_owned(), own);
        metadata.insert("decision_id".to_owned(), self.id.as_str().into());
        metadata
    }
}

fn decided(
    allowed: bool,
    effects: &RequestEffects,
    metadata: Map<String, Value>,
    policy: Option<&LoadedPolicy>,
) -> Decided {
    let (policy, revision) = names(policy);
    Decided {
        allowed,
        monitored: false,
        message: String::new(),
        code: match allowed {
            true => 200,
            false => effects.http_status.unwrap_or(response::FORBIDDEN),
        },
        policy,
        revision,
        response: match allowed {
            true => response::allowed(effects, metadata),
            false => response::denied(effects, metadata),
        },
    }
}

/// A policy and its revision, for logs.
fn names(policy: Option<&LoadedPolicy>) -> (String, String) {
    let name = |name: fn(&LoadedPolicy) -> &str| policy.map(name).unwrap_or_default().to_owned();
    (
        name(|one| one.policy.policy.as_str()),
        name(|one| one.policy.revision.as_str()),
    )
}

fn http_of(check: &CheckRequest) -> Option<&HttpRequest> {
    check.attributes.as_ref()?.request.as_ref()?.http.as_ref()
}
