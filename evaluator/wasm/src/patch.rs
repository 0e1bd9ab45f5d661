//! From a mutated object to a JSON patch.

use serde_json::{Value, value::RawValue};

/// Why no patch can be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to parse the mutated object: {0}")]
    Mutated(serde_json::Error),
    #[error("failed to parse the object of the request: {0}")]
    Original(serde_json::Error),
    #[error("failed to write the patch: {0}")]
    Write(serde_json::Error),
}

/// The RFC 6902 patch that leads from `original` to `mutated`; none if they are equal.
pub(crate) fn between(original: &str, mutated: &RawValue) -> Result<Option<Vec<u8>>, Error> {
    if original == mutated.get() {
        return Ok(None);
    }
    let mutated = serde_json::from_str(mutated.get()).map_err(Error::Mutated)?;
    let original = serde_json::from_str(original).map_err(Error::Original)?;
    of_values(&original, &mutated)
}

/// As [`between`], of values that are parsed already.
pub(crate) fn of_values(original: &Value, mutated: &Value) -> Result<Option<Vec<u8>>, Error> {
    let patch = json_patch::diff(original, mutated);
    if patch.0.is_empty() {
        return Ok(None);
    }
    serde_json::to_vec(&patch).map(Some).map_err(Error::Write)
}
