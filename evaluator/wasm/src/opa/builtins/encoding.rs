//! YAML, with a bound on what aliases may blow up to.

use regorus::Value;

use super::{Own, string};

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "yaml.marshal" => marshal,
        "yaml.unmarshal" => |args| unmarshal(string(args, 0)?),
        "yaml.is_valid" => |args| {
            Some(Value::Bool(
                string(args, 0).is_some_and(|text| unmarshal(text).is_some()),
            ))
        },
        _ => return None,
    })
}

/// The reader counts nodes and aliases, and gives up on documents that expand without end.
fn unmarshal(text: &str) -> Option<Value> {
    let document: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    Some(Value::from(document))
}

fn marshal(args: &[Value]) -> Option<Value> {
    let json = args.first()?.to_json_str().ok()?;
    let document: serde_json::Value = serde_json::from_str(&json).ok()?;
    serde_saphyr::to_string(&document).ok().map(Value::from)
}
