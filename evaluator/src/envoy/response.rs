//! Decisions as Envoy reads them, and what a policy may not do to a request.

use assent_proto::{
    envoy::{
        config::core::v3::{HeaderValue, HeaderValueOption, QueryParameter},
        service::auth::v3::{
            CheckResponse, DeniedHttpResponse, OkHttpResponse, check_response::HttpResponse,
        },
        r#type::v3::HttpStatus,
    },
    google::rpc::Status,
};
use assent_wasm::{Headers, RequestEffects};
use prost_types::{Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

/// The status that a denial has by default, and that of a request that can't be parsed.
pub(super) const FORBIDDEN: u16 = 403;
pub(super) const BAD_REQUEST: u16 = 400;

/// gRPC's codes: the wire has numbers.
const OK: i32 = 0;
const PERMISSION_DENIED: i32 = 7;

/// The request is allowed.
pub(super) fn allowed(effects: &RequestEffects, metadata: Map<String, Json>) -> CheckResponse {
    let ok = OkHttpResponse {
        headers: options(&effects.headers, |n| n > 0),
        headers_to_remove: effects.request_headers_to_remove.clone(),
        response_headers_to_add: options(&effects.response_headers_to_add, |n| n > 0),
        query_parameters_to_set: parameters(&effects.query_parameters_to_set),
        query_parameters_to_remove: effects.query_parameters_to_remove.clone(),
    };
    CheckResponse {
        status: status(OK),
        http_response: Some(HttpResponse::OkResponse(ok)),
        dynamic_metadata: Some(structure(metadata)),
    }
}

/// The request is denied.
pub(super) fn denied(effects: &RequestEffects, metadata: Map<String, Json>) -> CheckResponse {
    let denied = DeniedHttpResponse {
        status: Some(HttpStatus {
            code: effects.http_status.unwrap_or(FORBIDDEN).into(),
        }),
        // Envoy adds them all to its own response, but those that say "append".
        headers: options(&effects.headers, |_| false),
        body: effects.body.clone().unwrap_or_default(),
    };
    CheckResponse {
        status: status(PERMISSION_DENIED),
        http_response: Some(HttpResponse::DeniedResponse(denied)),
        dynamic_metadata: Some(structure(metadata)),
    }
}

fn status(code: i32) -> Option<Status> {
    Some(Status {
        code,
        ..Status::default()
    })
}

/// One option for each value; `append` says whether the value of that number is added to those before it, or
/// replaces what is there.
fn options(headers: &Headers, append: fn(usize) -> bool) -> Vec<HeaderValueOption> {
    let all = headers.0.iter();
    let all = all.flat_map(|(name, values)| {
        values
            .iter()
            .enumerate()
            .map(|(n, value)| HeaderValueOption {
                header: Some(HeaderValue {
                    key: name.clone(),
                    value: value.clone(),
                    ..HeaderValue::default()
                }),
                append: Some(append(n)),
                ..HeaderValueOption::default()
            })
    });
    all.collect()
}

fn parameters(parameters: &Headers) -> Vec<QueryParameter> {
    let all = parameters.0.iter();
    let all = all.flat_map(|(name, values)| {
        values.iter().map(|value| QueryParameter {
            key: name.clone(),
            value: value.clone(),
        })
    });
    all.collect()
}

pub(super) fn structure(fields: Map<String, Json>) -> Struct {
    let fields = fields.into_iter().map(|(name, one)| (name, value(one)));
    Struct {
        fields: fields.collect(),
    }
}

fn value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(value),
        // All numbers of a Struct are floating point.
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(prost_types::ListValue {
            values: items.into_iter().map(value).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(structure(fields)),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_values_of_a_name_are_appended() {
        let two = Headers(vec![("a".into(), vec!["1".into(), "2".into()])]);
        let append: Vec<_> = options(&two, |n| n > 0)
            .into_iter()
            .map(|one| one.append)
            .collect();
        assert_eq!(append, [Some(false), Some(true)]);
    }
}
