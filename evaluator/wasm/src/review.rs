//! Requests that policies evaluate.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// One request for a verdict. The guest gets the bytes of the request unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Review<'a> {
    /// `AdmissionReview.request` as the API server sent it, or any document for raw policies: JSON.
    pub request: &'a str,
    /// `request.object`, against which a mutation is compared; for raw policies ignored.
    pub object: Option<&'a RawValue>,
    /// `request.operation`; empty for raw policies.
    pub operation: &'a str,
    /// Whether `request` is not an admission request: a mutation then replaces the whole request.
    pub raw: bool,
    /// Whether `request` describes a request at Envoy. Rego gets it as its whole input, and the result has the form
    /// of OPA's Envoy plugin.
    pub check: bool,
}

/// Why a request can't be evaluated.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the admission request: {0}")]
pub struct ReviewError(#[from] serde_json::Error);

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

// === impl Review ===

impl<'a> Review<'a> {
    /// Parses the fields of an admission request that the host needs.
    ///
    /// Callers that have parsed the request themselves fill in the fields instead.
    pub fn admission(request: &'a RawValue) -> Result<Self, ReviewError> {
        let head: Head<'a> = serde_json::from_str(request.get())?;
        // The API server's operations need no escapes; a text with escapes is no operation that matters here.
        let operation = if let Cow::Borrowed(operation) = head.operation {
            operation
        } else {
            ""
        };
        Ok(Self {
            request: request.get(),
            object: head.object,
            operation,
            raw: false,
            check: false,
        })
    }

    /// A document that is not an admission request.
    pub fn raw(request: &'a RawValue) -> Self {
        Self {
            request: request.get(),
            object: None,
            operation: "",
            raw: true,
            check: false,
        }
    }

    /// What Envoy asks about a request: JSON.
    pub fn check(document: &'a str) -> Self {
        Self {
            request: document,
            object: None,
            operation: "",
            raw: true,
            check: true,
        }
    }

    /// What a mutation is compared with.
    pub(crate) fn subject(&self) -> Option<&'a str> {
        if self.raw {
            Some(self.request)
        } else {
            self.object.map(RawValue::get).filter(|it| *it != "null")
        }
    }
}
