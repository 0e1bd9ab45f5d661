//! Answers to `validate`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A verdict in the form of the guest protocol.
#[derive(Debug, Default, Serialize)]
pub struct Answer {
    /// Whether the request is allowed.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The object as it is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutated_object: Option<Box<RawValue>>,
    /// For the audit log.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub audit_annotations: BTreeMap<String, String>,
    /// For whoever made the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Answer {
    /// The request is allowed.
    pub fn allow() -> Self {
        Self {
            accepted: true,
            ..Self::default()
        }
    }

    /// The request is denied.
    pub fn deny(message: impl Into<String>) -> Self {
        Self {
            message: Some(message.into()),
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The object of a request with more annotations; its own of the same name are replaced. Everything else stays
/// as it is written, numbers included.
pub fn annotated(
    request: &RawValue,
    annotations: &BTreeMap<String, String>,
) -> Result<Box<RawValue>, String> {
    let failed = |error: serde_json::Error| error.to_string();
    let request: Request<'_> = serde_json::from_str(request.get()).map_err(failed)?;
    let object = request
        .object
        .ok_or("it annotates a request that has no object")?;
    let mut object: Fields<'_> = serde_json::from_str(object.get()).map_err(failed)?;
    let mut metadata: Fields<'_> = read(object.get("metadata"))?;
    let mut merged: BTreeMap<String, serde_json::Value> = read(metadata.get("annotations"))?;
    for (key, value) in annotations {
        merged.insert(key.clone(), value.as_str().into());
    }
    let merged = to_raw_value(&merged).map_err(failed)?;
    metadata.insert("annotations".to_owned(), &merged);
    let metadata = to_raw_value(&metadata).map_err(failed)?;
    object.insert("metadata".to_owned(), &metadata);
    to_raw_value(&object).map_err(failed)
}

/// A map; an empty one if it is absent or null.
fn read<'a, T: Deserialize<'a> + Default>(raw: Option<&&'a RawValue>) -> Result<T, String> {
    let Some(raw) = raw else {
        return Ok(T::default());
    };
    let value: Option<T> = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
    Ok(value.unwrap_or_default())
}
