//! Small tools for JSON that is passed through rather than taken apart.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::review::Review;

/// Whether arrays and objects nest at most `max` deep.
///
/// Only brackets are counted: the text must be known to be JSON, or be parsed afterwards. Most documents
/// have fewer brackets than the limit and are done after one fast pass.
pub fn within_depth(json: &[u8], max: usize) -> bool {
    memchr::memchr2_iter(b'{', b'[', json).nth(max).is_none() || deepest(json) <= max
}

/// Depth limit of requests, answers and settings.
pub const MAX_DEPTH: usize = crate::limits::JSON_DEPTH;

fn deepest(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut at) = (0_usize, 0, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = string_end(json, at + 1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// The position of the quote that ends a string whose text begins at `at`.
fn string_end(json: &[u8], mut at: usize) -> usize {
    while let Some(next) = json
        .get(at..)
        .and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
    {
        at += next;
        if json[at] == b'"' {
            return at;
        }
        at += 2;
    }
    json.len()
}

/// The request as guests get it: as sent, but without a null `options`, which guests written with the Rust
/// SDK can't read. A raw document is never changed.
pub(crate) fn for_guest<'a>(review: &Review<'a>) -> Cow<'a, [u8]> {
    if review.raw {
        Cow::Borrowed(review.request.as_bytes())
    } else {
        without_null_options(review.request)
    }
}

fn without_null_options(request: &str) -> Cow<'_, [u8]> {
    let text = request.as_bytes();
    if !mentions_null_options(text) {
        return Cow::Borrowed(text);
    }
    strip_null_options(request).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// `{"request": …, "settings": …}` with both as they are.
pub(crate) fn payload(review: &Review<'_>, settings: &[u8]) -> Vec<u8> {
    const PARTS: [&[u8]; 3] = [b"{\"request\":", b",\"settings\":", b"}"];
    let request = for_guest(review);
    let fixed: usize = PARTS.iter().map(|part| part.len()).sum();
    let mut payload = Vec::with_capacity(fixed + request.len() + settings.len());
    for part in [PARTS[0], &request, PARTS[1], settings, PARTS[2]] {
        payload.extend_from_slice(part);
    }
    payload
}

fn mentions_null_options(text: &[u8]) -> bool {
    const KEY: &[u8] = b"\"options\"";
    memchr::memmem::find_iter(text, KEY).any(|at| {
        let rest = text[at + KEY.len()..].trim_ascii_start();
        rest.strip_prefix(b":")
            .is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
    })
}

/// Writes the top-level fields again, each as it was, except for a null `options`.
fn strip_null_options(text: &str) -> Option<Vec<u8>> {
    let Fields(fields) = serde_json::from_str(text).ok()?;
    let mut out = Vec::with_capacity(text.len());
    out.push(b'{');
    for (name, value) in fields {
        if name == "options" && value.get() == "null" {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        serde_json::to_writer(&mut out, &name).ok()?;
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    }
    out.push(b'}');
    Some(out)
}

/// The fields of an object in their order, values unread.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Fields<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert!(within_depth(br#"{"a":[{"b":"[[[[[[[[\"{{{{"}]}"#, 3));
        assert!(!within_depth(br#"{"a":[{"b":[]}]}"#, 3));
        assert!(!within_depth("[".repeat(129).as_bytes(), 128));
        assert!(within_depth("[]".repeat(500).as_bytes(), 1));
        assert!(within_depth(b"\"unfinished \\", 0));
    }

    #[test]
    fn only_a_null_options_at_the_top_is_removed() {
        let gone = raw(
            r#"{"uid":"1", "options" : null,"big":12345678901234567890123,"object":{"options":null}}"#,
        );
        assert_eq!(
            without_null_options(gone.get()).as_ref(),
            br#"{"uid":"1","big":12345678901234567890123,"object":{"options":null}}"#
        );
        for kept in [
            r#"{"options":{}, "x": 1.10}"#,
            r#"{"object":{"note":"\"options\":null"}}"#,
            "[null]",
        ] {
            assert_eq!(without_null_options(kept).as_ref(), kept.as_bytes());
        }
    }

    #[test]
    fn a_raw_document_keeps_its_null_options() {
        let document = raw(r#"{"options":null}"#);
        let whole = br#"{"request":{"options":null},"settings":{}}"#;
        assert_eq!(payload(&Review::raw(&document), b"{}"), whole);
        let admission = Review::admission(&document).unwrap();
        assert_eq!(
            payload(&admission, b"{}"),
            br#"{"request":{},"settings":{}}"#
        );
    }

    #[test]
    fn nested_null_options_alone_change_nothing_that_matters() {
        let request = raw(r#"{"object":{"options":null}}"#);
        assert_eq!(
            without_null_options(request.get()).as_ref(),
            request.get().as_bytes()
        );
    }
}
