//! Verdicts as text.

use std::fmt;

use assent_wasm::{RequestEffects, Verdict};
use serde_json::Value;

use crate::out::{clean, clean_lines};

/// A verdict, one property per line.
pub(crate) struct Text<'a>(pub(crate) &'a Verdict);

// === impl Text ===

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            allowed,
            code,
            message,
            patch,
            warnings,
            audit_annotations,
            causes,
            effects,
        } = self.0;
        f.write_str(if *allowed { "allowed" } else { "denied" })?;
        if let Some(message) = message {
            write!(f, ": {}", clean_lines(message))?;
        }
        writeln!(f)?;
        if let Some(code) = code {
            writeln!(f, "  code     {code}")?;
        }
        for cause in causes {
            writeln!(f, "  cause    {}", clean(cause))?;
        }
        for warning in warnings {
            writeln!(f, "  warning  {}", clean(warning))?;
        }
        for operation in operations(patch.as_deref().unwrap_or_default()) {
            writeln!(f, "  patch    {}", clean(&operation))?;
        }
        if let Some(effects) = effects {
            write_effects(f, effects)?;
        }
        for (key, value) in audit_annotations {
            writeln!(f, "  audit    {}: {}", clean(key), clean(value))?;
        }
        Ok(())
    }
}

/// What a policy at Envoy changes, or answers with.
fn write_effects(f: &mut fmt::Formatter<'_>, effects: &RequestEffects) -> fmt::Result {
    for (what, headers) in [
        ("header  ", &effects.headers),
        ("response", &effects.response_headers_to_add),
        ("query   ", &effects.query_parameters_to_set),
    ] {
        for (name, values) in &headers.0 {
            for value in values {
                writeln!(f, "  {what} {}: {}", clean(name), clean(value))?;
            }
        }
    }
    let removed = effects.request_headers_to_remove.iter();
    for name in removed.chain(&effects.query_parameters_to_remove) {
        writeln!(f, "  remove   {}", clean(name))?;
    }
    if !effects.dynamic_metadata.is_empty() {
        let metadata = Value::Object(effects.dynamic_metadata.clone());
        writeln!(f, "  metadata {}", clean(&metadata.to_string()))?;
    }
    Ok(())
}

/// The operations of a patch: `add /metadata/labels/team "shop"`.
pub(crate) fn operations(patch: &[u8]) -> Vec<String> {
    let steps: Vec<Value> = serde_json::from_slice(patch).unwrap_or_default();
    let text = |step: &Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
    let shown = |step: &Value| {
        let value = step.get("value").map(|value| format!(" {value}"));
        let from = step
            .get("from")
            .map(|_| format!(" from {}", text(step, "from")));
        let rest = value.or(from).unwrap_or_default();
        format!("{} {}{rest}", text(step, "op"), text(step, "path"))
    };
    steps.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_contains_every_property() {
        let verdict = Verdict {
            allowed: false,
            code: Some(403),
            message: Some("no\u{7}".into()),
            patch: Some(
                br#"[{"op":"add","path":"/a","value":1},{"op":"move","from":"/b","path":"/c"}]"#
                    .to_vec(),
            ),
            warnings: vec!["careful".into()],
            audit_annotations: [("k".into(), "v".into())].into(),
            causes: vec!["own words".into()],
            effects: None,
        };
        let expect = "denied: no \n  code     403\n  cause    own words\n  warning  careful\n  patch    add /a 1\n  patch    move /c from /b\n  audit    k: v\n";
        assert_eq!(Text(&verdict).to_string(), expect);
    }
}
