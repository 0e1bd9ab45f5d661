//! Compares what came out with what a case expects.

use assent_wasm::{Review, Verdict};
use serde_json::Value;

use crate::{case::Expect, run::operations};

/// What differs, one line each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences(pub(super) Vec<String>);

/// Compares the verdict about a request.
pub(super) fn verdict(expect: &Expect, verdict: &Verdict, review: &Review<'_>) -> Differences {
    let mut differences = Differences::default();
    let message = verdict.message.as_deref().unwrap_or_default();
    let expected = expect.allowed.unwrap_or_default();
    if verdict.allowed != expected {
        let name = |allowed| if allowed { "allowed" } else { "denied" };
        let why = if message.is_empty() { "" } else { ": " };
        let (expected, got) = (name(expected), name(verdict.allowed));
        differences.add(format!("expected {expected}, got {got}{why}{message}"));
        return differences;
    }
    differences.message(expect, message);
    if let Some(code) = expect.code
        && verdict.code != Some(code)
    {
        let got = verdict.code.map_or("none".into(), |code| code.to_string());
        differences.add(format!("expected code {code}, got {got}"));
    }
    if let Some(warnings) = &expect.warnings
        && *warnings != verdict.warnings
    {
        let got = &verdict.warnings;
        differences.add(format!("expected the warnings {warnings:?}, got {got:?}"));
    }
    differences.patch(expect, verdict, review);
    differences
}

/// Compares the answer about settings; `refused` is the message of a refusal.
pub(super) fn settings(expect: &Expect, refused: Option<&str>) -> Differences {
    let mut differences = Differences::default();
    match (expect.valid.unwrap_or_default(), refused) {
        (true, Some(message)) => {
            differences.add(format!("expected valid settings, got: {message}"));
        }
        (false, None) => differences.add("expected invalid settings, but they are valid".into()),
        (_, message) => differences.message(expect, message.unwrap_or_default()),
    }
    differences
}

// === impl Differences ===

impl Differences {
    fn add(&mut self, line: String) {
        self.0.push(line);
    }

    fn message(&mut self, expect: &Expect, got: &str) {
        if let Some(message) = &expect.message
            && message != got
        {
            self.add(format!("expected the message {message:?}, got {got:?}"));
        }
        if let Some(part) = &expect.message_contains
            && !got.contains(part.as_str())
        {
            self.add(format!("expected a message with {part:?}, got {got:?}"));
        }
    }

    fn patch(&mut self, expect: &Expect, verdict: &Verdict, review: &Review<'_>) {
        let Some(bytes) = &verdict.patch else {
            if expect.patched.is_some() || expect.patch.is_some() {
                self.add("expected a patch, got none".into());
            }
            return;
        };
        if expect.patched.is_none() && expect.patch.is_none() {
            let got = operations(bytes).join("; ");
            self.add(format!("expected no patch, got {got}"));
        }
        if let Some(patch) = &expect.patch {
            let got: Value = serde_json::from_slice(bytes).unwrap_or_default();
            if got != *patch {
                self.add(format!("expected the patch {patch}, got {got}"));
            }
        }
        if let Some(expected) = &expect.patched {
            match patched(bytes, review) {
                Err(error) => self.add(format!("failed to apply the patch: {error}")),
                Ok(got) if got == *expected => {}
                Ok(got) => {
                    let missing = json_patch::diff(&got, expected).to_string();
                    let missing = operations(missing.as_bytes()).join("; ");
                    self.add(format!("the changed object would also need: {missing}"));
                }
            }
        }
    }
}

/// The object after the patch; for raw policies the whole document.
fn patched(patch: &[u8], review: &Review<'_>) -> anyhow::Result<Value> {
    let object = match (review.raw, review.object) {
        (true, _) | (_, None) => review.request,
        (false, Some(object)) => object.get(),
    };
    let mut object: Value = serde_json::from_str(object)?;
    let patch: json_patch::Patch = serde_json::from_slice(patch)?;
    json_patch::patch(&mut object, &patch)?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{json, value::RawValue};

    use super::*;

    fn compare(expect: Value, got: &Verdict) -> Vec<String> {
        let expect: Expect = serde_json::from_value(expect).unwrap();
        let request = RawValue::from_string(r#"{"object":{"a":1}}"#.into()).unwrap();
        verdict(&expect, got, &Review::admission(&request).unwrap()).0
    }

    fn denial() -> Verdict {
        Verdict {
            message: Some("no such thing".into()),
            code: Some(403),
            warnings: vec!["w".into()],
            ..Verdict::default()
        }
    }

    fn change() -> Verdict {
        Verdict {
            allowed: true,
            patch: Some(br#"[{"op":"add","path":"/b","value":2}]"#.to_vec()),
            ..Verdict::default()
        }
    }

    #[test]
    fn matching_verdicts_have_no_differences() {
        let all = json!({"allowed": false, "message": "no such thing", "messageContains": "such", "code": 403, "warnings": ["w"]});
        assert!(compare(all, &denial()).is_empty());
        assert!(
            compare(
                json!({"allowed": true, "patched": {"a": 1, "b": 2}}),
                &change()
            )
            .is_empty()
        );
        let patch = json!([{"op": "add", "path": "/b", "value": 2}]);
        assert!(compare(json!({"allowed": true, "patch": patch}), &change()).is_empty());
    }

    #[test]
    fn every_difference_is_named() {
        #[track_caller]
        fn check(found: Vec<String>, part: &str) {
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(part), "{found:?}");
        }
        check(
            compare(json!({"allowed": true}), &denial()),
            "got denied: no such thing",
        );
        check(
            compare(json!({"allowed": false, "message": "no"}), &denial()),
            "\"no such thing\"",
        );
        check(
            compare(json!({"allowed": false, "messageContains": "x"}), &denial()),
            "with \"x\"",
        );
        check(
            compare(json!({"allowed": false, "code": 400}), &denial()),
            "code 400, got 403",
        );
        check(
            compare(json!({"allowed": false, "warnings": []}), &denial()),
            "warnings",
        );
        check(
            compare(json!({"allowed": true}), &change()),
            "expected no patch, got add /b 2",
        );
        check(
            compare(json!({"allowed": true, "patched": {"a": 1}}), &change()),
            "remove /b",
        );
        check(
            compare(json!({"allowed": true, "patch": []}), &change()),
            "expected the patch []",
        );
        let plain = Verdict {
            allowed: true,
            ..Verdict::default()
        };
        check(
            compare(json!({"allowed": true, "patched": {"a": 1}}), &plain),
            "got none",
        );
    }

    #[test]
    fn settings_are_compared() {
        let check = |expect: Value, refused: Option<&str>| {
            settings(&serde_json::from_value(expect).unwrap(), refused)
                .0
                .len()
        };
        assert_eq!(check(json!({"valid": true}), None), 0);
        assert_eq!(check(json!({"valid": true}), Some("bad")), 1);
        assert_eq!(check(json!({"valid": false}), None), 1);
        assert_eq!(
            check(
                json!({"valid": false, "messageContains": "ba"}),
                Some("bad")
            ),
            0
        );
        assert_eq!(
            check(json!({"valid": false, "messageContains": "x"}), Some("bad")),
            1
        );
    }
}
