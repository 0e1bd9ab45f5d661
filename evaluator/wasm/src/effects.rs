//! What a policy at Envoy decides besides yes or no: the optional fields of its result, as OPA's Envoy plugin
//! documents them.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, value::SeqAccessDeserializer},
};
use serde_json::{Map, Value, value::RawValue};

use crate::policy::EvalError;

mod rules;

/// Changes to a request that is allowed, or the response to one that is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RequestEffects {
    /// Headers for the upstream if the request is allowed, for the client if it is denied.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    /// Headers for the client of a request that is allowed.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub response_headers_to_add: Headers,
    /// Headers that the upstream does not get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request_headers_to_remove: Vec<String>,
    /// Query parameters for the upstream.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub query_parameters_to_set: Headers,
    /// Query parameters that the upstream does not get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub query_parameters_to_remove: Vec<String>,
    /// For filters and access logs of Envoy.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub dynamic_metadata: Map<String, Value>,
    /// The body of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The status of a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}

/// Names with their values: `{"a": "1", "b": ["2", "3"]}`, or a list of such objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, Vec<String>)>);

/// The result of a Rego policy: a boolean or an object.
#[derive(Deserialize)]
struct Decision {
    allowed: bool,
}

/// One value or many.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Many(Vec<String>),
}

/// Status codes that Envoy knows; it refuses others.
const STATUSES: &[std::ops::RangeInclusive<u16>] = &[
    200..=208,
    226..=226,
    300..=305,
    307..=308,
    400..=417,
    421..=424,
    426..=426,
    428..=429,
    431..=431,
    500..=508,
    510..=511,
];

// === impl RequestEffects ===

impl RequestEffects {
    /// Parses the optional fields. Unknown fields are ignored: Rego's results often carry more.
    pub(crate) fn parse(text: &RawValue) -> Result<Self, EvalError> {
        let bad = |error: serde_json::Error| EvalError::BadAnswer(error.to_string());
        let effects: Self = serde_json::from_str(text.get()).map_err(bad)?;
        if let Some(status) = effects.http_status {
            check_status(status)?;
        }
        let refused = |refused: rules::Refused| EvalError::BadAnswer(refused.to_string());
        rules::check(&effects).map_err(refused)?;
        Ok(effects)
    }

    /// Parses what a Rego policy decided: whether the request is allowed, and its effects.
    pub(crate) fn parse_decision(text: &RawValue) -> Result<(bool, Self), EvalError> {
        match text.get() {
            "true" => return Ok((true, Self::default())),
            "false" => return Ok((false, Self::default())),
            _ => {}
        }
        let bad = |error: serde_json::Error| {
            EvalError::BadAnswer(format!(
                "the result must be a boolean or an object with `allowed`: {error}"
            ))
        };
        let decision: Decision = serde_json::from_str(text.get()).map_err(bad)?;
        Ok((decision.allowed, Self::parse(text)?))
    }

    /// Adds those of a policy that is asked later: what it says about a name replaces what was said before.
    pub fn merge(&mut self, later: Self) {
        let Self {
            headers,
            response_headers_to_add,
            request_headers_to_remove,
            query_parameters_to_set,
            query_parameters_to_remove,
            dynamic_metadata,
            body,
            http_status,
        } = later;
        let (set, remove) = (&mut self.headers, &mut self.request_headers_to_remove);
        merge(set, remove, headers, request_headers_to_remove, |a, b| {
            a.eq_ignore_ascii_case(b)
        });
        let mut none = Vec::new();
        let set = &mut self.response_headers_to_add;
        merge(
            set,
            &mut none,
            response_headers_to_add,
            Vec::new(),
            |a, b| a.eq_ignore_ascii_case(b),
        );
        let set = &mut self.query_parameters_to_set;
        let remove = &mut self.query_parameters_to_remove;
        let (to_set, to_remove) = (query_parameters_to_set, query_parameters_to_remove);
        merge(set, remove, to_set, to_remove, |a, b| a == b);
        self.dynamic_metadata.extend(dynamic_metadata);
        self.body = body.or(self.body.take());
        self.http_status = http_status.or(self.http_status);
    }
}

fn merge(
    set: &mut Headers,
    remove: &mut Vec<String>,
    to_set: Headers,
    to_remove: Vec<String>,
    same: fn(&str, &str) -> bool,
) {
    for (name, values) in to_set.0 {
        remove.retain(|other| !same(other, &name));
        set.0.retain(|(other, _)| !same(other, &name));
        set.0.push((name, values));
    }
    for name in to_remove {
        set.0.retain(|(other, _)| !same(other, &name));
        if !remove.iter().any(|other| same(other, &name)) {
            remove.push(name);
        }
    }
}

pub(crate) fn check_status(status: u16) -> Result<(), EvalError> {
    if STATUSES.iter().any(|range| range.contains(&status)) {
        return Ok(());
    }
    Err(EvalError::BadAnswer(format!(
        "Envoy can't answer with the status {status}"
    )))
}

// === impl Headers ===

impl Headers {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, values)| (name, values)))
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadersVisitor)
    }
}

struct HeadersVisitor;

impl<'de> de::Visitor<'de> for HeadersVisitor {
    type Value = Headers;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of strings or lists of strings, or a list of such objects")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
        let mut headers = Vec::new();
        while let Some((name, values)) = map.next_entry::<String, Values>()? {
            headers.push((name, values.into()));
        }
        Ok(Headers(headers))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Headers, A::Error> {
        let lists: Vec<Headers> = Vec::deserialize(SeqAccessDeserializer::new(seq))?;
        let mut all = Headers::default();
        for (name, values) in lists.into_iter().flat_map(|list| list.0) {
            // A name in two objects has the values of both.
            match all.0.iter_mut().find(|(other, _)| *other == name) {
                Some((_, before)) => before.extend(values),
                None => all.0.push((name, values)),
            }
        }
        Ok(all)
    }
}

impl From<Values> for Vec<String> {
    fn from(values: Values) -> Self {
        match values {
            Values::One(value) => vec![value],
            Values::Many(values) => values,
        }
    }
}

#[cfg(test)]
mod tests;
