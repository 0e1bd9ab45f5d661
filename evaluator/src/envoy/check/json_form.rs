//! A CheckRequest written as JSON, for people: protobuf's JSON, or the document that policies get.

use std::collections::BTreeMap;

use assent_proto::envoy::{
    config::core::v3::{
        Address, Metadata, SocketAddress, address::Address as Kind, socket_address::PortSpecifier,
    },
    service::auth::v3::{
        AttributeContext, CheckRequest,
        attribute_context::{HttpRequest, Peer, Request, TlsSession},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_types::{Struct, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::envoy::response::structure;

/// Why a text is no CheckRequest.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Malformed, or with a field that is not known.
    #[error("failed to read the CheckRequest: {0}")]
    Json(#[from] serde_json::Error),
    /// `rawBody` is not base64.
    #[error("attributes.request.http.rawBody is not base64: {0}")]
    RawBody(base64::DecodeError),
    /// A time of another form.
    #[error("attributes.request.time is not a time such as 2026-01-31T12:00:00Z: {0:?}")]
    Time(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    attributes: Attributes,
    // The document that policies get has these beside the request; they are made again.
    #[serde(default, rename = "parsed_path")]
    _parsed_path: Value,
    #[serde(default, rename = "parsed_query")]
    _parsed_query: Value,
    #[serde(default, rename = "parsed_body")]
    _parsed_body: Value,
    #[serde(default, rename = "truncated_body")]
    _truncated_body: Value,
    #[serde(default, rename = "version")]
    _version: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[derive(Default)]
struct Attributes {
    source: Option<JsonPeer>,
    destination: Option<JsonPeer>,
    request: JsonRequest,
    context_extensions: BTreeMap<String, String>,
    metadata_context: Option<JsonMetadata>,
    route_metadata_context: Option<JsonMetadata>,
    tls_session: Option<JsonTls>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonPeer {
    address: Option<JsonAddress>,
    service: String,
    labels: BTreeMap<String, String>,
    principal: String,
    certificate: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JsonAddress {
    socket_address: JsonSocket,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonSocket {
    address: String,
    port_value: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonRequest {
    time: Option<JsonTime>,
    http: JsonHttp,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonTime {
    Text(String),
    Parts {
        #[serde(default)]
        seconds: i64,
        #[serde(default)]
        nanos: i32,
    },
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonHttp {
    id: String,
    method: String,
    headers: BTreeMap<String, String>,
    path: String,
    host: String,
    scheme: String,
    query: String,
    fragment: String,
    size: Option<JsonInteger>,
    protocol: String,
    body: String,
    raw_body: String,
}

/// Protobuf writes 64 bits as text.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct JsonInteger(i64);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonMetadata {
    filter_metadata: BTreeMap<String, Map<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonTls {
    sni: String,
}

/// Reads a CheckRequest. A field that is not known is an error: a misspelt one would not be seen by the policy.
pub fn parse(text: &[u8]) -> Result<CheckRequest, JsonError> {
    let Check {
        attributes: all, ..
    } = serde_json::from_slice(text)?;
    let time = all.request.time.map(time).transpose()?;
    let request = Request {
        time,
        http: Some(http(all.request.http)?),
    };
    Ok(CheckRequest {
        attributes: Some(AttributeContext {
            source: all.source.map(peer),
            destination: all.destination.map(peer),
            request: Some(request),
            context_extensions: all.context_extensions,
            metadata_context: all.metadata_context.map(metadata),
            route_metadata_context: all.route_metadata_context.map(metadata),
            tls_session: all.tls_session.map(|tls| TlsSession { sni: tls.sni }),
        }),
    })
}

fn time(time: JsonTime) -> Result<Timestamp, JsonError> {
    match time {
        JsonTime::Parts { seconds, nanos } => Ok(Timestamp { seconds, nanos }),
        JsonTime::Text(text) => text.parse().map_err(|_| JsonError::Time(text)),
    }
}

fn http(http: JsonHttp) -> Result<HttpRequest, JsonError> {
    let raw = BASE64_STANDARD.decode(&http.raw_body);
    Ok(HttpRequest {
        id: http.id,
        method: http.method,
        headers: http.headers,
        path: http.path,
        host: http.host,
        scheme: http.scheme,
        query: http.query,
        fragment: http.fragment,
        size: http.size.map_or(0, |size| size.0),
        protocol: http.protocol,
        body: http.body,
        raw_body: raw.map_err(JsonError::RawBody)?.into(),
        header_map: None,
    })
}

fn peer(peer: JsonPeer) -> Peer {
    let address = peer.address.map(|address| {
        let socket = SocketAddress {
            address: address.socket_address.address,
            port_specifier: address
                .socket_address
                .port_value
                .map(PortSpecifier::PortValue),
            ..SocketAddress::default()
        };
        Address {
            address: Some(Kind::SocketAddress(socket)),
        }
    });
    Peer {
        address,
        service: peer.service,
        labels: peer.labels,
        principal: peer.principal,
        certificate: peer.certificate,
    }
}

fn metadata(metadata: JsonMetadata) -> Metadata {
    let filters = metadata.filter_metadata.into_iter();
    let filters: BTreeMap<String, Struct> = filters
        .map(|(name, fields)| (name, structure(fields)))
        .collect();
    Metadata {
        filter_metadata: filters,
        ..Metadata::default()
    }
}

// === impl JsonInteger ===

impl TryFrom<Value> for JsonInteger {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = match &value {
            Value::String(text) => text.parse().ok(),
            other => other.as_i64(),
        };
        number
            .map(Self)
            .ok_or_else(|| format!("{value} is not an integer"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn document_can_be_read_again() {
        let text = br#"{"attributes": {
            "source": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 1}}, "principal": "p"},
            "request": {"time": "2020-11-20T09:47:47.722473Z", "http": {
                "method": "POST", "path": "/a/b?c=d", "host": "h", "size": "3",
                "headers": {"content-type": "application/json"}, "body": "{\"x\":1}"}},
            "contextExtensions": {"k": "v"},
            "metadataContext": {"filterMetadata": {"f": {"n": 1}}}}}"#;
        let check = parse(text).unwrap();
        let document = crate::envoy::check::document(&check, true).unwrap();
        let again = parse(document.as_bytes()).unwrap();
        assert_eq!(check, again);
        let value: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(value["parsed_body"]["x"], 1);
        assert_eq!(value["attributes"]["request"]["time"]["nanos"], 722_473_000);
    }

    #[test]
    fn misspelt_fields_are_errors() {
        for text in [
            "{}",
            r#"{"attributes": {"request": {"http": {"Path": "/"}}}}"#,
            r#"{"attributes": {"request": {"time": "yesterday"}}}"#,
            r#"{"attributes": {"request": {"http": {"rawBody": "?"}}}}"#,
            r#"{"attributes": {"request": {"http": {"size": "x"}}}}"#,
            "not JSON",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
