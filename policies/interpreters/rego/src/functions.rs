//! Builtin functions beside those of `regorus`.

use std::{cell::Cell, net::IpAddr};

use ipnet::IpNet;
use regorus::{Engine, Value};

/// The functions of this file. Two take the place of those of `regorus`: its `count` of a string is that of UTF-16 units,
/// and its `strings.count` has overlaps.
pub(crate) const NAMES: [&str; 5] = [
    "count",
    "net.cidr_contains",
    "net.cidr_is_valid",
    "strings.count",
    "time.now_ns",
];

/// Functions of OPA that a policy can not have, with the reason.
const REFUSED: [(&str, &str); 7] = [
    ("http.send", "a policy has no network"),
    ("net.lookup_ip_addr", "a policy has no network"),
    (
        "opa.runtime",
        "there is no OPA whose environment could be read",
    ),
    ("rand.intn", "equal requests must get equal verdicts"),
    ("uuid.rfc4122", "equal requests must get equal verdicts"),
    ("rego.metadata.chain", "annotations are not kept"),
    ("rego.metadata.rule", "annotations are not kept"),
];

thread_local! {
    /// `time.now_ns` is one value per evaluation.
    static NOW: Cell<Option<i64>> = const { Cell::new(None) };
}

pub(crate) fn add(engine: &mut Engine) -> Result<(), String> {
    let mut add = |name: &str, arguments, function: fn(&[Value]) -> Result<Value, String>| {
        let extension = move |values: Vec<Value>| function(&values).map_err(Message);
        let added = engine.add_extension(
            name.to_owned(),
            arguments,
            Box::new(move |values| Ok(extension(values)?)),
        );
        added.map_err(|error| error.to_string())
    };
    add("count", 1, |values| count(&values[0]))?;
    add("strings.count", 2, |values| {
        let (text, part) = (text(&values[0])?, text(&values[1])?);
        Ok(Value::from(text.matches(part).count()))
    })?;
    add("time.now_ns", 0, |_| Ok(Value::from(now())))?;
    add("net.cidr_is_valid", 1, |values| {
        Ok(Value::from(text(&values[0])?.parse::<IpNet>().is_ok()))
    })?;
    add("net.cidr_contains", 2, |values| {
        let (net, other) = (network(text(&values[0])?)?, text(&values[1])?);
        let contains = match other.parse::<IpAddr>() {
            Ok(address) => net.contains(&address),
            Err(_) => net.contains(&network(other)?),
        };
        Ok(Value::from(contains))
    })
}

/// An error with a message.
#[derive(Debug)]
struct Message(String);

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Message {}

fn text(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("a string is expected, not {other}")),
    }
}

fn count(value: &Value) -> Result<Value, String> {
    Ok(Value::from(match value {
        Value::Array(array) => array.len(),
        Value::Set(set) => set.len(),
        Value::Object(object) => object.len(),
        Value::String(text) => text.chars().count(),
        other => {
            return Err(format!(
                "count takes a string, an array, a set or an object, not {other}"
            ));
        }
    }))
}

fn network(text: &str) -> Result<IpNet, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a network"))
}

/// Forgets the time of the last evaluation.
pub(crate) fn reset() {
    NOW.set(None);
}

fn now() -> i64 {
    let now = NOW.get().unwrap_or_else(interpreter_guest::now_ns);
    NOW.set(Some(now));
    now
}

/// Why a function can not be called.
pub(crate) fn missing(name: &str) -> String {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, why)) => format!("{name} is not available: {why}"),
        None => format!(
            "there is no function {name} in policies written as text: define it, or compile the policy with `opa build`"
        ),
    }
}
