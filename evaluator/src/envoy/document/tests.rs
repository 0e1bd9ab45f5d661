#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use assent_proto::envoy::config::core::v3::{HeaderValue, SocketAddress};
use prost_types::{Any, ListValue, Timestamp};
use serde_json::json;

use super::*;

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

fn mk_value(kind: ValueKind) -> Value {
    Value { kind: Some(kind) }
}

fn mk_peer(address: &str, port: u32) -> Peer {
    let socket = SocketAddress {
        address: address.into(),
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    };
    Peer {
        address: Some(Address {
            address: Some(Kind::SocketAddress(socket)),
        }),
        ..Peer::default()
    }
}

#[test]
fn document_has_every_attribute() {
    let fields = [
        (
            "list".to_owned(),
            mk_value(ValueKind::ListValue(ListValue {
                values: vec![
                    mk_value(ValueKind::NumberValue(1.0)),
                    mk_value(ValueKind::NumberValue(0.5)),
                    mk_value(ValueKind::BoolValue(true)),
                    mk_value(ValueKind::NullValue(0)),
                ],
            })),
        ),
        (
            "a".to_owned(),
            mk_value(ValueKind::StringValue("b\"".into())),
        ),
        ("nan".to_owned(), mk_value(ValueKind::NumberValue(f64::NAN))),
    ];
    let jwt = Struct {
        fields: fields.into(),
    };
    let any = Any {
        type_url: "type.example/T".into(),
        value: b"\x00\x01".to_vec(),
    };
    let http = HttpRequest {
        id: "13359530607844510314".into(),
        method: "GET".into(),
        headers: texts(&[(":path", "/api?a=b"), ("x", "é\u{1}")]),
        path: "/api?a=b".into(),
        host: "example.com:8080".into(),
        scheme: "http".into(),
        query: "q".into(),
        fragment: "f".into(),
        size: -1,
        protocol: "HTTP/1.1".into(),
        body: "text".into(),
        raw_body: b"raw".as_slice().into(),
        header_map: Some(HeaderMap {
            headers: vec![HeaderValue {
                key: "x".into(),
                raw_value: b"\xff".to_vec(),
                ..HeaderValue::default()
            }],
        }),
    };
    let mut source = mk_peer("10.0.0.7", 36472);
    source.principal = "spiffe://cluster.local/ns/a/sa/b".into();
    source.service = "client".into();
    source.labels = texts(&[("app", "client")]);
    let check = CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(source),
            destination: Some(mk_peer("10.0.0.8", 0)),
            request: Some(Request {
                time: Some(Timestamp {
                    seconds: 1_605_865_667,
                    nanos: 722_473_000,
                }),
                http: Some(http),
            }),
            context_extensions: texts(&[("k", "v")]),
            metadata_context: Some(Metadata {
                filter_metadata: [("jwt".to_owned(), jwt)].into(),
                typed_filter_metadata: [("typed".to_owned(), any)].into(),
            }),
            route_metadata_context: Some(Metadata::default()),
            tls_session: Some(
                assent_proto::envoy::service::auth::v3::attribute_context::TlsSession {
                    sni: "example.com".into(),
                },
            ),
        }),
    };
    let query = Parameters::from([("a".to_owned(), vec!["b".to_owned()])]);
    let body = ParsedBody {
        json: Some(r#"{"n":12345678901234567890}"#.into()),
        truncated: false,
    };
    let written = write(&check, &["api".into()], &query, Some(&body));
    assert!(written.contains("12345678901234567890"));
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    let expected = json!({
        "attributes": {
            "source": {
                "address": {"socketAddress": {"address": "10.0.0.7", "portValue": 36472}},
                "service": "client",
                "labels": {"app": "client"},
                "principal": "spiffe://cluster.local/ns/a/sa/b",
            },
            "destination": {"address": {"socketAddress": {"address": "10.0.0.8", "portValue": 0}}},
            "request": {
                "time": {"seconds": 1_605_865_667, "nanos": 722_473_000},
                "http": {
                    "id": "13359530607844510314",
                    "method": "GET",
                    "headers": {":path": "/api?a=b", "x": "é\u{1}"},
                    "path": "/api?a=b",
                    "host": "example.com:8080",
                    "scheme": "http",
                    "query": "q",
                    "fragment": "f",
                    "size": -1,
                    "protocol": "HTTP/1.1",
                    "body": "text",
                    "rawBody": "cmF3",
                    "headerMap": {"headers": [{"key": "x", "rawValue": "/w=="}]},
                },
            },
            "contextExtensions": {"k": "v"},
            "metadataContext": {
                "filterMetadata": {"jwt": {"a": "b\"", "list": [1, 0.5, true, null], "nan": "NaN"}},
                "typedFilterMetadata": {"typed": {"typeUrl": "type.example/T", "value": "AAE="}},
            },
            "routeMetadataContext": {},
            "tlsSession": {"sni": "example.com"},
        },
        "parsed_path": ["api"],
        "parsed_query": {"a": ["b"]},
        "parsed_body": written["parsed_body"],
        "truncated_body": false,
        "version": {"encoding": "protojson", "ext_authz": "v3"},
    });
    assert_eq!(written, expected);
}

#[test]
fn defaults_are_left_out() {
    let check = CheckRequest {
        attributes: Some(AttributeContext {
            request: Some(Request {
                http: Some(HttpRequest::default()),
                ..Request::default()
            }),
            ..AttributeContext::default()
        }),
    };
    let written = write(&check, &[String::new()], &Parameters::new(), None);
    let expected = r#"{"attributes":{"request":{"http":{}}},"parsed_path":[""],"parsed_query":{},"version":{"encoding":"protojson","ext_authz":"v3"}}"#;
    assert_eq!(written, expected);
}
