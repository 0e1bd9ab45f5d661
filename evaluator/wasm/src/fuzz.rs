//! Entry points for fuzzing: whatever the bytes, these return.

use serde_json::value::RawValue;

use crate::{Review, answer, inspect, metadata::Metadata, opa};

/// A module, or something that claims to be one.
pub fn module(bytes: &[u8]) {
    let _ = inspect(bytes);
    let _ = opa::own_memory(bytes);
}

/// The metadata section of a module.
pub fn metadata(bytes: &[u8]) {
    let _ = Metadata::parse(bytes);
}

/// A guest's answers, in all forms.
pub fn answers(bytes: &[u8]) {
    let request = RawValue::from_string(r#"{"object":{"metadata":{}}}"#.to_owned())
        .expect("the request must be JSON");
    let review = Review::admission(&request).expect("the request must be an object");
    let _ = answer::validation(bytes, &review, true);
    let _ = answer::settings(bytes);
    opa::fuzz(bytes, &review);
}

/// An admission request, as the host looks at it.
pub fn request(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<&RawValue>(bytes) else {
        return;
    };
    let _ = Review::admission(request);
    let _ = crate::json::payload(request, b"{}");
    let _ = crate::json::within_depth(bytes, crate::json::MAX_DEPTH);
}
