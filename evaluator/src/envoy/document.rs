//! The document that policies get: the CheckRequest and what was parsed of it, as OPA's Envoy plugin writes it.
//! Fields with their default are left out; numbers are numbers, bytes are base64, a time has seconds and nanos.

use assent_proto::envoy::{
    config::core::v3::{
        Address, HeaderMap, Metadata, address::Address as Kind, socket_address::PortSpecifier,
    },
    service::auth::v3::{
        AttributeContext, CheckRequest,
        attribute_context::{HttpRequest, Peer, Request},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_types::{Struct, Value, value::Kind as ValueKind};

use super::{parsed_body::ParsedBody, path::Parameters};

/// An object that is being written.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

/// Writes the document. `body` is left out if no policy reads it.
pub(super) fn write(
    check: &CheckRequest,
    segments: &[String],
    query: &Parameters,
    body: Option<&ParsedBody>,
) -> String {
    let mut out = Vec::with_capacity(4 << 10);
    let mut document = Object::open(&mut out);
    if let Some(all) = &check.attributes {
        attributes(document.key("attributes"), all);
    }
    json(document.key("parsed_path"), segments);
    json(document.key("parsed_query"), query);
    if let Some(body) = body {
        let text = body.json.as_deref().unwrap_or("null");
        document
            .key("parsed_body")
            .extend_from_slice(text.as_bytes());
        json(document.key("truncated_body"), &body.truncated);
    }
    let version = br#"{"encoding":"protojson","ext_authz":"v3"}"#;
    document.key("version").extend_from_slice(version);
    document.close();
    String::from_utf8(out).expect("JSON of strings must be UTF-8")
}

fn attributes(out: &mut Vec<u8>, all: &AttributeContext) {
    let mut object = Object::open(out);
    for (name, value) in [("source", &all.source), ("destination", &all.destination)] {
        if let Some(value) = value {
            peer(object.key(name), value);
        }
    }
    if let Some(value) = &all.request {
        request(object.key("request"), value);
    }
    if !all.context_extensions.is_empty() {
        json(object.key("contextExtensions"), &all.context_extensions);
    }
    if let Some(value) = &all.metadata_context {
        metadata(object.key("metadataContext"), value);
    }
    if let Some(value) = &all.route_metadata_context {
        metadata(object.key("routeMetadataContext"), value);
    }
    if let Some(value) = &all.tls_session {
        let mut session = Object::open(object.key("tlsSession"));
        session.text("sni", &value.sni);
        session.close();
    }
    object.close();
}

fn peer(out: &mut Vec<u8>, value: &Peer) {
    let mut object = Object::open(out);
    if let Some(value) = &value.address {
        address(object.key("address"), value);
    }
    object.text("service", &value.service);
    if !value.labels.is_empty() {
        json(object.key("labels"), &value.labels);
    }
    object.text("principal", &value.principal);
    object.text("certificate", &value.certificate);
    object.close();
}

fn address(out: &mut Vec<u8>, value: &Address) {
    let mut object = Object::open(out);
    match &value.address {
        Some(Kind::SocketAddress(value)) => {
            let mut socket = Object::open(object.key("socketAddress"));
            socket.number("protocol", value.protocol.into());
            socket.text("address", &value.address);
            match &value.port_specifier {
                Some(PortSpecifier::PortValue(port)) => json(socket.key("portValue"), port),
                Some(PortSpecifier::NamedPort(name)) => json(socket.key("namedPort"), name),
                None => {}
            }
            socket.text("resolverName", &value.resolver_name);
            if value.ipv4_compat {
                json(socket.key("ipv4Compat"), &true);
            }
            socket.close();
        }
        Some(Kind::Pipe(value)) => {
            let mut pipe = Object::open(object.key("pipe"));
            pipe.text("path", &value.path);
            pipe.number("mode", value.mode.into());
            pipe.close();
        }
        Some(Kind::EnvoyInternalAddress(value)) => {
            let mut internal = Object::open(object.key("envoyInternalAddress"));
            internal.text("serverListenerName", &value.server_listener_name);
            internal.text("endpointId", &value.endpoint_id);
            internal.close();
        }
        None => {}
    }
    object.close();
}

fn request(out: &mut Vec<u8>, value: &Request) {
    let mut object = Object::open(out);
    if let Some(time) = &value.time {
        let mut stamp = Object::open(object.key("time"));
        stamp.number("seconds", time.seconds);
        stamp.number("nanos", time.nanos.into());
        stamp.close();
    }
    if let Some(value) = &value.http {
        http(object.key("http"), value);
    }
    object.close();
}

fn http(out: &mut Vec<u8>, value: &HttpRequest) {
    let mut object = Object::open(out);
    object.text("id", &value.id);
    object.text("method", &value.method);
    if !value.headers.is_empty() {
        json(object.key("headers"), &value.headers);
    }
    object.text("path", &value.path);
    object.text("host", &value.host);
    object.text("scheme", &value.scheme);
    object.text("query", &value.query);
    object.text("fragment", &value.fragment);
    object.number("size", value.size);
    object.text("protocol", &value.protocol);
    object.text("body", &value.body);
    object.bytes("rawBody", &value.raw_body);
    if let Some(HeaderMap { headers }) = &value.header_map {
        let mut map = Object::open(object.key("headerMap"));
        if !headers.is_empty() {
            let out = map.key("headers");
            list(out, headers, |out, header| {
                let mut object = Object::open(out);
                object.text("key", &header.key);
                object.text("value", &header.value);
                object.bytes("rawValue", &header.raw_value);
                object.close();
            });
        }
        map.close();
    }
    object.close();
}

fn metadata(out: &mut Vec<u8>, value: &Metadata) {
    let mut object = Object::open(out);
    if !value.filter_metadata.is_empty() {
        let mut filters = Object::open(object.key("filterMetadata"));
        for (name, fields) in &value.filter_metadata {
            structure(filters.key(name), fields);
        }
        filters.close();
    }
    if !value.typed_filter_metadata.is_empty() {
        let mut filters = Object::open(object.key("typedFilterMetadata"));
        for (name, any) in &value.typed_filter_metadata {
            let mut object = Object::open(filters.key(name));
            object.text("typeUrl", &any.type_url);
            object.bytes("value", &any.value);
            object.close();
        }
        filters.close();
    }
    object.close();
}

fn structure(out: &mut Vec<u8>, fields: &Struct) {
    let mut object = Object::open(out);
    for (name, value) in &fields.fields {
        any(object.key(name), value);
    }
    object.close();
}

/// Values nest as deep as the decoder of messages allows.
fn any(out: &mut Vec<u8>, value: &Value) {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => out.extend_from_slice(b"null"),
        Some(ValueKind::BoolValue(value)) => json(out, value),
        Some(ValueKind::StringValue(value)) => json(out, value),
        Some(ValueKind::NumberValue(value)) => number(out, *value),
        Some(ValueKind::StructValue(value)) => structure(out, value),
        Some(ValueKind::ListValue(value)) => list(out, &value.values, any),
    }
}

/// Whole numbers without a fraction; what JSON has no number for as text.
fn number(out: &mut Vec<u8>, value: f64) {
    /// Larger ones are not exact, and are written with an exponent.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !value.is_finite() {
        json(out, &value.to_string());
    } else if value.fract() == 0.0 && value.abs() < EXACT {
        out.extend_from_slice(format!("{value:.0}").as_bytes());
    } else {
        json(out, &value);
    }
}

fn list<T>(out: &mut Vec<u8>, items: &[T], write: fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("the value must be representable as JSON");
}

// === impl Object ===

impl<'a> Object<'a> {
    fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    fn key(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        json(self.out, name);
        self.out.push(b':');
        self.out
    }

    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            json(self.key(name), value);
        }
    }

    fn bytes(&mut self, name: &str, value: &[u8]) {
        if !value.is_empty() {
            json(self.key(name), &BASE64_STANDARD.encode(value));
        }
    }

    fn number(&mut self, name: &str, value: i64) {
        if value != 0 {
            json(self.key(name), &value);
        }
    }

    fn close(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests;
