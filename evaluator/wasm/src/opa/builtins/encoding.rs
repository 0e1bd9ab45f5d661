//! YAML, with a bound on the expansion of aliases.

use regorus::Value;

use super::{Bounded, TooMuch, string};

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "yaml.marshal" => |args| Ok(marshal(args)),
        "yaml.unmarshal" => |args| string(args, 0).map_or(Ok(None), unmarshal),
        "yaml.is_valid" => |args| {
            let document = string(args, 0).map_or(Ok(None), unmarshal)?;
            Ok(Some(Value::Bool(document.is_some())))
        },
        _ => return None,
    })
}

/// The reader counts nodes and aliases, and gives up on documents that expand without end.
fn unmarshal(text: &str) -> Result<Option<Value>, TooMuch> {
    match serde_saphyr::from_str::<serde_json::Value>(text) {
        Ok(document) => Ok(Some(Value::from(document))),
        Err(error) if gave_up(&error) => Err(TooMuch),
        Err(_) => Ok(None),
    }
}

/// Inside of an alias the kind of the error is lost, but not its message.
fn gave_up(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error;
    let error = error.without_snippet();
    let limit = matches!(
        error,
        Error::Budget { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. }
            | Error::AliasReplayStackDepthExceeded { .. }
    );
    limit || error.to_string().starts_with("budget breached")
}

fn marshal(args: &[Value]) -> Option<Value> {
    let json = args.first()?.to_json_str().ok()?;
    let document: serde_json::Value = serde_json::from_str(&json).ok()?;
    serde_saphyr::to_string(&document).ok().map(Value::from)
}
