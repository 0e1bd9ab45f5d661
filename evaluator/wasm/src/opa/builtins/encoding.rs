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

/// OPA reads YAML with the library that `kubectl` uses.
fn unmarshal(text: &str) -> Result<Option<Value>, TooMuch> {
    match assent_yaml::load_first(text) {
        Ok(document) => Ok(Some(Value::from(document))),
        Err(error) if error.reason.is_limit() => Err(TooMuch),
        Err(_) => Ok(None),
    }
}

fn marshal(args: &[Value]) -> Option<Value> {
    let json = args.first()?.to_json_str().ok()?;
    let document: serde_json::Value = serde_json::from_str(&json).ok()?;
    Some(Value::from(assent_yaml::emit(&document)))
}
