//! Reads a policy that is written as text in its own manifest.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::reader::Node;
use crate::{canonical, policy::Source};

/// The largest text: it is kept in the policy and in each of its revisions.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// The source as it is written, and the URL that contains it.
pub(super) fn read(node: &Node<'_>) -> Option<(Source, String)> {
    let mut f = node.fields();
    let (rego, cel) = (f.get("rego"), f.get("cel"));
    f.close();
    let (source, file, text) = match (rego, cel) {
        (Some(rego), None) => {
            let text = rego.string()?;
            let source = Source {
                rego: Some(text.clone()),
                cel: None,
            };
            (source, "policy.rego", text)
        }
        (None, Some(cel)) => {
            let Value::Object(fields) = cel.value else {
                cel.error("must be a map with validations");
                return None;
            };
            let text = canonical::to_vec(cel.value);
            let source = Source {
                rego: None,
                cel: Some(fields.clone()),
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            (source, "policy.cel.json", text)
        }
        _ => {
            node.error("must have either rego or cel");
            return None;
        }
    };
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES {
        node.error(format!(
            "must have a text of at most {MAX_TEXT_BYTES} bytes; put a larger one into a module with `assent build`"
        ));
        return None;
    }
    let text = BASE64_STANDARD.encode(text);
    Some((source, format!("inline:{file};base64,{text}")))
}
