//! Bodies as documents show them: JSON, forms and multipart forms. Others, gRPC messages among them, stay raw.

use std::{borrow::Cow, collections::BTreeMap};

use assent_proto::envoy::service::auth::v3::attribute_context::HttpRequest;
use bytes::Bytes;
use futures::{FutureExt as _, stream};
use serde_json::value::RawValue;

use super::path;

/// A body as far as it could be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedBody {
    /// None if there is nothing to parse.
    pub(super) json: Option<String>,
    /// Whether Envoy sent a part of the body only.
    pub(super) truncated: bool,
}

/// Why a body can't be parsed: the request is answered with 400.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the header content-length is not a number")]
    Length,
    #[error("the body is not JSON: {0}")]
    Json(String),
    #[error("the body nests deeper than {} levels", MAX_DEPTH)]
    Depth,
    #[error("the body is not a form")]
    Form,
    #[error("the body is not a multipart form: {0}")]
    Multipart(String),
}

/// The document adds one level to the body.
const MAX_DEPTH: usize = assent_wasm::json::MAX_DEPTH - 1;

/// Set by Envoy to say whether it sent a part of the body only.
const PARTIAL: &str = "x-envoy-auth-partial-body";

// === impl ParsedBody ===

impl ParsedBody {
    pub(super) fn parse(http: &HttpRequest) -> Result<Self, Error> {
        let header = |name: &str| http.headers.get(name).map(String::as_str);
        let body = match http.body.is_empty() {
            true => http.raw_body.clone(),
            false => Bytes::copy_from_slice(http.body.as_bytes()),
        };
        let kind = header("content-type").unwrap_or_default();
        let parse: fn(&str, Bytes) -> Result<Option<String>, Error> =
            if kind.contains("application/json") {
                |_, body| json(&body).map(Some)
            } else if kind.contains("application/grpc") {
                return Ok(Self::default());
            } else if kind.contains("application/x-www-form-urlencoded") {
                |_, body| form(&body).map(Some)
            } else if kind.contains("multipart/form-data") {
                multipart
            } else {
                return Ok(Self::default());
            };
        if body.is_empty() {
            return Ok(Self::default());
        }
        if is_truncated(header("content-length"), header(PARTIAL), body.len())? {
            return Ok(Self {
                json: None,
                truncated: true,
            });
        }
        Ok(Self {
            json: parse(kind, body)?,
            truncated: false,
        })
    }
}

fn is_truncated(
    announced: Option<&str>,
    partial: Option<&str>,
    length: usize,
) -> Result<bool, Error> {
    let announced = announced.map(|text| text.parse::<i64>().map_err(|_| Error::Length));
    let announced = announced.transpose()?.unwrap_or(-1);
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    Ok(announced > length || partial == Some("true"))
}

/// The text as it is: numbers keep their digits.
fn json(body: &[u8]) -> Result<String, Error> {
    let bad = |error: serde_json::Error| Error::Json(error.to_string());
    if !assent_wasm::json::within_depth(body, MAX_DEPTH) {
        return Err(Error::Depth);
    }
    let text = std::str::from_utf8(body).map_err(|error| Error::Json(error.to_string()))?;
    let value: &RawValue = serde_json::from_str(text).map_err(bad)?;
    Ok(value.get().to_owned())
}

fn form(body: &[u8]) -> Result<String, Error> {
    let text = String::from_utf8_lossy(body);
    let form = path::form(&text).ok_or(Error::Form)?;
    Ok(serde_json::to_string(&form).expect("a form must be representable as JSON"))
}

/// Fields by name, each with all of its values. A field of type JSON is parsed.
fn multipart(kind: &str, body: Bytes) -> Result<Option<String>, Error> {
    let bad = |error: multer::Error| Error::Multipart(error.to_string());
    let boundary = match multer::parse_boundary(kind) {
        Ok(boundary) => boundary,
        Err(multer::Error::NoBoundary) => return Ok(None),
        Err(error) => return Err(bad(error)),
    };
    let all = stream::iter([Ok::<_, std::convert::Infallible>(body)]);
    let mut parts = multer::Multipart::new(all, boundary);
    let mut fields: BTreeMap<String, Vec<Box<RawValue>>> = BTreeMap::new();
    let read = async {
        while let Some(part) = parts.next_field().await.map_err(bad)? {
            let Some(name) = part.name().filter(|name| !name.is_empty()) else {
                continue;
            };
            let name = name.to_owned();
            let is_json = part
                .content_type()
                .is_some_and(|kind| kind.essence_str() == "application/json");
            let value = part.bytes().await.map_err(bad)?;
            let text: Cow<'_, str> = match is_json {
                true => json(&value)?.into(),
                false => {
                    let text = String::from_utf8_lossy(&value);
                    serde_json::to_string(&text)
                        .map_err(|e| Error::Json(e.to_string()))?
                        .into()
                }
            };
            let value = RawValue::from_string(text.into_owned());
            let value = value.map_err(|error| Error::Json(error.to_string()))?;
            fields.entry(name).or_default().push(value);
        }
        Ok(())
    };
    // Everything is in memory: reading never waits.
    let read = read.now_or_never();
    read.unwrap_or_else(|| Err(Error::Multipart("it does not end".into())))?;
    let text = serde_json::to_string(&fields).expect("fields must be representable as JSON");
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn mk(kind: &str, body: &str, more: &[(&str, &str)]) -> HttpRequest {
        let mut http = HttpRequest {
            body: body.into(),
            ..HttpRequest::default()
        };
        let headers = [("content-type", kind)].into_iter();
        for (name, value) in headers.chain(more.iter().copied()) {
            http.headers.insert(name.into(), value.into());
        }
        http
    }

    #[track_caller]
    fn check(http: &HttpRequest, expected: Option<Value>, truncated: bool) {
        let parsed = ParsedBody::parse(http).unwrap();
        let json = parsed.json.map(|text| serde_json::from_str(&text).unwrap());
        assert_eq!((json, parsed.truncated), (expected, truncated));
    }

    #[test]
    fn bodies_are_parsed_by_type() {
        let json = "application/json; charset=utf-8";
        check(
            &mk(json, r#" {"a":[1]} "#, &[]),
            Some(json!({"a": [1]})),
            false,
        );
        check(&mk(json, "", &[]), None, false);
        check(&mk("text/plain", "{}", &[]), None, false);
        check(&mk("application/grpc", "\0\0", &[]), None, false);
        let form = "application/x-www-form-urlencoded";
        check(
            &mk(form, "a=1&a=2+3", &[]),
            Some(json!({"a": ["1", "2 3"]})),
            false,
        );
        let mut raw = mk(json, "", &[]);
        raw.raw_body = b"[true]".as_slice().into();
        check(&raw, Some(json!([true])), false);
        check(
            &HttpRequest {
                body: "{}".into(),
                ..HttpRequest::default()
            },
            None,
            false,
        );
    }

    #[test]
    fn multipart_fields_are_parsed_by_name() {
        let body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
            --x\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Type: application/json\r\n\r\n{\"b\":2}\r\n\
            --x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"n\"\r\n\r\nfile\r\n--x--\r\n";
        let kind = "multipart/form-data; boundary=x";
        let expected = json!({"a": ["one", {"b": 2}], "f": ["file"]});
        check(&mk(kind, body, &[]), Some(expected), false);
        check(&mk("multipart/form-data", body, &[]), None, false);
    }

    #[test]
    fn parts_of_bodies_are_not_parsed() {
        let json = "application/json";
        check(
            &mk(json, r#"{"a"#, &[("content-length", "100")]),
            None,
            true,
        );
        check(&mk(json, r#"{"a"#, &[(PARTIAL, "true")]), None, true);
        check(
            &mk(json, "{}", &[("content-length", "2"), (PARTIAL, "false")]),
            Some(json!({})),
            false,
        );
    }

    #[test]
    fn bodies_that_do_not_parse_are_errors() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for http in [
            mk("application/json", "{", &[]),
            mk("application/json", "{} x", &[]),
            mk("application/json", &deep, &[]),
            mk("application/json", "{}", &[("content-length", "x")]),
            mk("application/x-www-form-urlencoded", "a=%zz", &[]),
            mk("multipart/form-data; boundary=x", "--x\r\nbroken", &[]),
        ] {
            assert!(ParsedBody::parse(&http).is_err(), "{http:?}");
        }
    }
}
