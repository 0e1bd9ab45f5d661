//! What an admission request is about, for the decision log.

use std::borrow::Cow;

use assent_wasm::Review;
use serde::{Deserialize, Serialize};

use crate::decision_log::{Subject, as_log_text};

/// The fields of a line that come from the request. None of them is a part of the object.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionSubject<'a> {
    #[serde(serialize_with = "as_log_text")]
    uid: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    user: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    operation: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    group: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    version: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    kind: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    sub_resource: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    namespace: Cow<'a, str>,
    #[serde(serialize_with = "as_log_text")]
    name: Cow<'a, str>,
    dry_run: bool,
}

/// Parsed a second time, and only for requests that are logged.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request<'a> {
    #[serde(borrow)]
    user_info: User<'a>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    kind: Kind<'a>,
    #[serde(borrow)]
    sub_resource: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    dry_run: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User<'a> {
    #[serde(borrow)]
    username: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kind<'a> {
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

// === impl AdmissionSubject ===

impl<'a> AdmissionSubject<'a> {
    /// Of a request. A request of another form, which only raw policies get, has no more than its uid.
    pub(super) fn of(review: &Review<'a>, uid: &'a str) -> Self {
        let uid = Cow::Borrowed(uid);
        let request = (!review.raw).then(|| serde_json::from_str(review.request).ok());
        let Some(request) = request.flatten() else {
            return Self {
                uid,
                ..Self::default()
            };
        };
        let request: Request<'a> = request;
        Self {
            uid,
            user: request.user_info.username,
            operation: request.operation,
            group: request.kind.group,
            version: request.kind.version,
            kind: request.kind.kind,
            sub_resource: request.sub_resource,
            namespace: request.namespace,
            name: request.name,
            dry_run: request.dry_run.unwrap_or_default(),
        }
    }
}

impl Subject for AdmissionSubject<'_> {
    /// As `kubectl` names kinds: `Deployment.apps`.
    fn kind(&self) -> String {
        match self.group.is_empty() {
            true => self.kind.clone().into_owned(),
            false => format!("{}.{}", self.kind, self.group),
        }
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{json, value::RawValue};

    use super::*;

    #[test]
    fn subject_has_no_part_of_the_object() {
        let request = json!({
            "uid": "u", "operation": "CREATE", "name": "db", "namespace": "shop", "dryRun": true,
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "userInfo": {"username": "al\u{1b}ice", "groups": ["staff"]},
            "object": {"data": {"password": "c2VjcmV0"}}, "oldObject": null, "options": null,
        });
        let request = RawValue::from_string(request.to_string()).unwrap();
        let review = Review::admission(&request).unwrap();
        let subject = AdmissionSubject::of(&review, "u");
        assert_eq!(subject.kind(), "Deployment.apps");
        let expect = json!({
            "uid": "u", "user": "al\\u{1b}ice", "operation": "CREATE", "group": "apps", "version": "v1",
            "kind": "Deployment", "subResource": "", "namespace": "shop", "name": "db", "dryRun": true,
        });
        assert_eq!(serde_json::to_value(subject).unwrap(), expect);
    }

    #[test]
    fn raw_document_has_no_more_than_its_uid() {
        let request = RawValue::from_string(r#"{"kind":{"kind":"x"},"name":"n"}"#.into()).unwrap();
        let subject = AdmissionSubject::of(&Review::raw(&request), "r");
        assert_eq!((subject.uid.as_ref(), subject.name.as_ref()), ("r", ""));
    }
}
