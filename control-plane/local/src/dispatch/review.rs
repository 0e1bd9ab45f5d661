//! An AdmissionReview as it was received. Unknown fields are passed on unchanged.

use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::Request;

/// Reviews of another version have other fields.
const API_VERSION: &str = "admission.k8s.io/v1";

/// Why a body is no AdmissionReview.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Not JSON of the right form.
    #[error("failed to read AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// Another kind or version.
    #[error("failed to read AdmissionReview: must be {API_VERSION} AdmissionReview, not {0} {1}")]
    Kind(String, String),
    /// A field that must be there.
    #[error("failed to read AdmissionReview: request.{0} is missing")]
    Missing(&'static str),
}

/// A review whose object may change.
pub(super) struct Review {
    uid: String,
    /// Fields of `request` in their order, as they were written.
    fields: Fields,
    request: Request,
    body: Bytes,
    changes: usize,
}

/// Fields of an object in their order, values not taken apart.
struct Fields(Vec<(String, Box<RawValue>)>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Incoming {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Fields>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'a> {
    api_version: &'a str,
    kind: &'a str,
    request: &'a Fields,
}

// === impl Review ===

impl Review {
    pub(super) fn read(body: &[u8]) -> Result<Self, ReviewError> {
        let incoming: Incoming = serde_json::from_slice(body)?;
        if (incoming.api_version.as_str(), incoming.kind.as_str())
            != (API_VERSION, "AdmissionReview")
        {
            return Err(ReviewError::Kind(incoming.api_version, incoming.kind));
        }
        let fields = incoming.request.ok_or(ReviewError::Missing("uid"))?;
        let uid: String = fields.get("uid")?.ok_or(ReviewError::Missing("uid"))?;
        let request = read_request(&fields)?;
        let mut review = Self {
            uid,
            fields,
            request,
            body: Bytes::new(),
            changes: 0,
        };
        review.encode();
        Ok(review)
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// The review as the next policy must see it.
    pub(super) fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// How often the object was changed.
    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// Replaces the object with a changed one.
    pub(super) fn set_object(&mut self, object: Value) {
        self.changes += 1;
        let raw = serde_json::value::to_raw_value(&object).expect("a value must be JSON");
        for (name, value) in &mut self.fields.0 {
            if name == "object" {
                value.clone_from(&raw);
            }
        }
        self.request.object = object;
        self.encode();
    }

    fn encode(&mut self) {
        let outgoing = Outgoing {
            api_version: API_VERSION,
            kind: "AdmissionReview",
            request: &self.fields,
        };
        self.body = serde_json::to_vec(&outgoing)
            .expect("a review must be JSON")
            .into();
    }
}

fn read_request(fields: &Fields) -> Result<Request, ReviewError> {
    let mut rest = serde_json::Map::new();
    for (name, value) in &fields.0 {
        if !matches!(name.as_str(), "object" | "oldObject") {
            rest.insert(name.clone(), serde_json::from_str(value.get())?);
        }
    }
    let rest = Value::Object(rest);
    let text = |pointer: &str| {
        rest.pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    Ok(Request {
        group: text("/resource/group").unwrap_or_default(),
        version: text("/resource/version").ok_or(ReviewError::Missing("resource.version"))?,
        resource: text("/resource/resource").ok_or(ReviewError::Missing("resource.resource"))?,
        subresource: text("/subResource").unwrap_or_default(),
        operation: text("/operation").ok_or(ReviewError::Missing("operation"))?,
        namespace: text("/namespace").unwrap_or_default(),
        object: fields.get("object")?.unwrap_or_default(),
        old_object: fields.get("oldObject")?.unwrap_or_default(),
        rest,
    })
}

// === impl Fields ===

impl Fields {
    fn get<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Result<Option<T>, serde_json::Error> {
        let field = self.0.iter().find(|(field, _)| field == name);
        field.map_or(Ok(None), |(_, value)| serde_json::from_str(value.get()))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}
