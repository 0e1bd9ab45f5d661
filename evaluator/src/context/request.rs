//! The payloads of host calls, as the SDKs write them: options are null (Rust) or absent (Go).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Which kind is read, and which part of its objects.
#[derive(Debug, Deserialize)]
pub(super) struct List {
    pub(super) api_version: String,
    pub(super) kind: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) label_selector: Option<String>,
    #[serde(default)]
    pub(super) field_selector: Option<String>,
    #[serde(default)]
    pub(super) field_masks: Option<Vec<String>>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// One object.
#[derive(Debug, Deserialize)]
pub(super) struct Get {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) disable_cache: Option<bool>,
    #[serde(default)]
    pub(super) field_masks: Option<Vec<String>>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// Whether a subject may do something.
#[derive(Debug, Deserialize)]
pub(super) struct CanI {
    pub(super) subject_access_review: AccessReview,
    #[serde(default)]
    pub(super) disable_cache: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AccessReview {
    #[serde(default)]
    pub(super) groups: Option<Vec<String>>,
    #[serde(alias = "resourceAttributes")]
    pub(super) resource_attributes: ResourceAttributes,
    pub(super) user: String,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(super) struct ResourceAttributes {
    pub(super) group: Option<String>,
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) resource: String,
    pub(super) subresource: Option<String>,
    pub(super) verb: String,
    pub(super) version: Option<String>,
}

/// The status of a SubjectAccessReview.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccessReply<'a> {
    pub(super) allowed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) denied: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) evaluation_error: &'a str,
}

pub(super) fn list(payload: &[u8]) -> Result<List, String> {
    let list: List = read(payload)?;
    known(&list.rest)?;
    Ok(list)
}

pub(super) fn get(payload: &[u8]) -> Result<Get, String> {
    let get: Get = read(payload)?;
    known(&get.rest)?;
    Ok(get)
}

pub(super) fn can_i(payload: &[u8]) -> Result<CanI, String> {
    read(payload)
}

/// Whether a read must not be answered from memory. A payload that can't be read waits for nothing.
pub(super) fn is_live(payload: &[u8]) -> bool {
    get(payload).is_ok_and(|get| get.disable_cache == Some(true))
}

fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("failed to read the request: {error}"))
}

/// An option that this host does not know might narrow the answer: an answer without it would be another one.
fn known(rest: &BTreeMap<String, Value>) -> Result<(), String> {
    match rest.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(format!(
            "the option {name:?} is not known to this evaluator"
        )),
        None => Ok(()),
    }
}
