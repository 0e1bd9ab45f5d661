//! What a policy decided, whatever its ABI.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::{effects::RequestEffects, patch, policy::EvalError, review::Review};

/// The decision about one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request may pass.
    pub allowed: bool,
    /// HTTP status for a denial, if the policy gave one.
    pub code: Option<u16>,
    /// For the user.
    pub message: Option<String>,
    /// An RFC 6902 patch, as JSON, not encoded further.
    pub patch: Option<Vec<u8>>,
    /// Warnings for the user of the API.
    pub warnings: Vec<String>,
    /// Entries for the API server's audit log.
    pub audit_annotations: BTreeMap<String, String>,
    /// The policy's own message if [`crate::PolicySpec::message`] replaced it.
    pub causes: Vec<String>,
    /// Of a policy at Envoy: what it decided besides yes or no.
    pub effects: Option<Box<RequestEffects>>,
}

/// A change that the policy asks for.
pub(crate) enum Mutation<'a> {
    None,
    /// The whole object, changed.
    Object(&'a RawValue),
    /// A finished patch.
    Patch(Vec<u8>),
}

/// Messages for rejected mutations.
const NOT_MUTATING: &str = "the policy tried to change the object, but it is not allowed to: set `mutating: true` to allow it";
const ON_DELETE: &str =
    "the policy tried to change the object of a DELETE request, which can't be changed";

/// An internal error: the fault is the policy's or its definition's, not the request's.
const MUTATION_CODE: u16 = 500;

// === impl Verdict ===

impl Verdict {
    pub(crate) fn allow() -> Self {
        Self {
            allowed: true,
            ..Self::default()
        }
    }

    pub(crate) fn deny(message: impl Into<String>) -> Self {
        Self {
            message: Some(message.into()),
            ..Self::default()
        }
    }

    /// Adds the mutation, or denies the request if the mutation is not allowed. A denied request is not mutated, and an
    /// object that is returned unchanged is not a mutation.
    pub(crate) fn with_mutation(
        mut self,
        mutation: Mutation<'_>,
        review: &Review<'_>,
        mutating: bool,
    ) -> Result<Self, EvalError> {
        if !self.allowed {
            return Ok(self);
        }
        let patch = match mutation {
            Mutation::None => None,
            Mutation::Patch(patch) => Some(patch),
            Mutation::Object(object) if review.operation == "DELETE" && !review.raw => {
                (object.get() != "null").then(Vec::new)
            }
            Mutation::Object(object) => compare(object, review)?,
        };
        if patch.is_some() && review.operation == "DELETE" && !review.raw {
            return Ok(self.denied(ON_DELETE));
        }
        if patch.is_some() && !mutating {
            return Ok(self.denied(NOT_MUTATING));
        }
        self.patch = patch;
        Ok(self)
    }

    /// Puts the user's message in place of the policy's, which moves to the causes.
    pub(crate) fn with_message(mut self, message: &str) -> Self {
        if !self.allowed && !message.is_empty() {
            self.causes
                .extend(self.message.take().filter(|own| !own.is_empty()));
            self.message = Some(message.to_owned());
        }
        self
    }

    /// Keeps annotations and warnings, which do not depend on the decision.
    fn denied(self, message: &str) -> Self {
        Self {
            allowed: false,
            code: Some(MUTATION_CODE),
            message: Some(message.to_owned()),
            patch: None,
            ..self
        }
    }
}

fn compare(object: &RawValue, review: &Review<'_>) -> Result<Option<Vec<u8>>, EvalError> {
    let Some(original) = review.subject() else {
        return Err(EvalError::BadAnswer(
            "it mutates a request that has no object".to_owned(),
        ));
    };
    patch::between(original, object).map_err(|error| EvalError::BadAnswer(error.to_string()))
}
