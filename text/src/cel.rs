//! The document of a policy in CEL.

use serde_json::{Map, Value};

use crate::{Error, problem, vap};

/// The fields of the document; everything else about a policy is in its manifest.
pub(crate) const FIELDS: [&str; 5] = [
    "variables",
    "matchConditions",
    "validations",
    "annotations",
    "auditAnnotations",
];

/// Whether a document changes objects.
pub(crate) fn is_mutating(text: &str) -> bool {
    let document = assent_yaml::load_first(text);
    document.is_ok_and(|document| document.get("annotations").is_some())
}

/// What the interpreter gets: the document, or the expressions of a ValidatingAdmissionPolicy.
pub(crate) fn document(file: &str, text: &str) -> Result<Value, Error> {
    let document = assent_yaml::load_first(text).map_err(|error| {
        let shown = text.lines().nth(error.line - 1).unwrap_or_default();
        let reason = error.reason.to_string();
        Error::Text(problem::render(
            file,
            error.line,
            shown,
            error.column,
            &reason,
        ))
    })?;
    let wrong = |why: String| Error::Text(format!("{file}: {why}"));
    if vap::is_validating_admission_policy(&document) {
        return vap::expressions(&document).map_err(wrong);
    }
    let Value::Object(fields) = document else {
        return Err(wrong("must be a map with validations".to_owned()));
    };
    check(&fields).map_err(wrong)?;
    Ok(Value::Object(fields))
}

fn check(fields: &Map<String, Value>) -> Result<(), String> {
    match fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        Some(unknown) => Err(format!(
            "unknown field {unknown:?}: a policy in CEL has {}; rules and settings are in the manifest",
            FIELDS.join(", ")
        )),
        None => Ok(()),
    }
}
