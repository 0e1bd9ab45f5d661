//! Puts values of Secrets into settings.
//!
//! Errors never contain a value, nor the message of a parser that may quote one.

use serde_json::{Map, Value};

use super::{MAX_VALUE_BYTES, SettingsSource};
use crate::{canonical, json, yaml};

/// How much longer settings may become.
const MAX_GROWTH: usize = 2 * MAX_VALUE_BYTES;

/// Why values cannot be put into settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.settingsFrom[{index}]: {problem}")]
pub struct MergeError {
    index: usize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("spec.settings is not an object")]
    Settings,
    #[error("the value is not UTF-8 text")]
    NotText,
    #[error(
        "the value is not one YAML or JSON object; set path to use it as a string, or correct the Secret"
    )]
    NotAnObject,
    #[error("a setting is given twice: by this entry, and by spec.settings or an earlier entry")]
    Twice,
    #[error("the path leads through a setting that is not an object")]
    Blocked,
    #[error("the values of all entries together are larger than {MAX_VALUE_BYTES} bytes")]
    TooLarge,
}

/// The canonical JSON of `settings` with the value of each source in its place. There is a
/// value for each source.
pub fn merge(
    settings: &[u8],
    sources: &[SettingsSource],
    values: &[Vec<u8>],
) -> Result<Vec<u8>, MergeError> {
    let parsed = json::from_str(&String::from_utf8_lossy(settings));
    let Ok(Value::Object(mut merged)) = parsed else {
        return Err(MergeError {
            index: 0,
            problem: Problem::Settings,
        });
    };
    let mut left = MAX_VALUE_BYTES;
    for (index, (source, value)) in sources.iter().zip(values).enumerate() {
        let error = |problem| MergeError { index, problem };
        left = left
            .checked_sub(value.len())
            .ok_or(error(Problem::TooLarge))?;
        let text = std::str::from_utf8(value).map_err(|_| error(Problem::NotText))?;
        let placed = match &source.path {
            Some(path) => place(&mut merged, path, text),
            None => add_fields(&mut merged, text),
        };
        placed.map_err(error)?;
    }
    let merged = canonical::to_vec(&Value::Object(merged));
    // Escapes, and aliases of YAML, make text longer.
    match merged.len() > settings.len() + MAX_GROWTH {
        true => Err(MergeError {
            index: sources.len().saturating_sub(1),
            problem: Problem::TooLarge,
        }),
        false => Ok(merged),
    }
}

fn place(settings: &mut Map<String, Value>, path: &str, text: &str) -> Result<(), Problem> {
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = settings;
    for name in parents.split('.').filter(|name| !name.is_empty()) {
        let child = at.entry(name).or_insert_with(|| Value::Object(Map::new()));
        at = child.as_object_mut().ok_or(Problem::Blocked)?;
    }
    match at.insert(last.to_owned(), text.into()) {
        None => Ok(()),
        Some(_) => Err(Problem::Twice),
    }
}

fn add_fields(settings: &mut Map<String, Value>, text: &str) -> Result<(), Problem> {
    let mut documents = yaml::load(text).into_iter();
    let (Some(document), None) = (documents.next(), documents.next()) else {
        return Err(Problem::NotAnObject);
    };
    let Ok(Value::Object(fields)) = document.value else {
        return Err(Problem::NotAnObject);
    };
    for (name, value) in fields {
        if settings.insert(name, value).is_some() {
            return Err(Problem::Twice);
        }
    }
    Ok(())
}
