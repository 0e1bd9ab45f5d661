//! Compares what is there with what must be.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::ResourceRule;
use serde_json::Value;

use super::{OLDEST_MINOR, Permission, Problem};

/// A rule of an authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// API groups that it is about.
    pub groups: Vec<String>,
    /// Resources that it is about.
    pub resources: Vec<String>,
    /// What it allows.
    pub verbs: Vec<String>,
    /// The names of the objects; all if it is empty.
    pub names: Vec<String>,
}

/// Whether the server is too old. Vendors put signs behind the number.
pub fn version(major: &str, minor: &str) -> Option<Problem> {
    let number = |text: &str| {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text.get(..end)?.parse::<u32>().ok()
    };
    let new_enough = (number(major)?, number(minor)?) >= (1, OLDEST_MINOR);
    (!new_enough).then(|| Problem::Version(format!("{major}.{minor}")))
}

/// Names of the definitions.
pub(super) fn names() -> Vec<String> {
    let name = |definition: &Value| text(definition, "/metadata/name").to_owned();
    assent_api::crd::all().iter().map(name).collect()
}

/// What is wrong with the definitions that are `served`, by name.
pub fn definitions(served: &BTreeMap<String, Value>) -> Vec<Problem> {
    let ours = assent_api::crd::all();
    let check = |ours| definition(ours, served.get(text(ours, "/metadata/name")));
    ours.iter().filter_map(check).collect()
}

fn definition(ours: &Value, served: Option<&Value>) -> Option<Problem> {
    let name = text(ours, "/metadata/name").to_owned();
    let Some(served) = served else {
        return Some(Problem::Definition(name));
    };
    let our_version = ours.pointer("/spec/versions/0")?;
    let version = text(our_version, "/name");
    let versions = served.pointer("/spec/versions").and_then(Value::as_array);
    let theirs = versions
        .into_iter()
        .flatten()
        .find(|theirs| text(theirs, "/name") == version && theirs["served"] == true);
    let Some(theirs) = theirs else {
        let version = version.to_owned();
        return Some(Problem::NotServed { name, version });
    };
    if let Some(why) = not_established(served) {
        return Some(Problem::NotEstablished { name, why });
    }
    let mut fields = Vec::new();
    let schema = "/schema/openAPIV3Schema";
    let (ours, theirs) = (our_version.pointer(schema)?, theirs.pointer(schema));
    lacking("", ours, theirs.unwrap_or(&Value::Null), &mut fields);
    (!fields.is_empty()).then_some(Problem::Outdated { name, fields })
}

/// Why the API server does not serve a definition.
fn not_established(served: &Value) -> Option<String> {
    let conditions = served
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    if conditions
        .clone()
        .any(|c| c["type"] == "Established" && c["status"] == "True")
    {
        return None;
    }
    let refused = conditions.find(|c| c["type"] == "NamesAccepted" && c["status"] == "False");
    let why = refused.map(|condition| text(condition, "/message"));
    Some(
        why.unwrap_or("the API server has not accepted it yet")
            .to_owned(),
    )
}

/// Fields that `ours` has and `theirs` has not; below one that is missing nothing is named.
fn lacking(path: &str, ours: &Value, theirs: &Value, fields: &mut Vec<String>) {
    let properties = ours.get("properties").and_then(Value::as_object);
    for (name, ours) in properties.into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{name}");
        match theirs.pointer("/properties").and_then(|all| all.get(name)) {
            Some(theirs) => lacking(&path, ours, theirs, fields),
            None => fields.push(path),
        }
    }
    if let (Some(ours), Some(theirs)) = (ours.get("items"), theirs.get("items")) {
        lacking(&format!("{path}[]"), ours, theirs, fields);
    }
}

/// Whether one of `rules` grants `verb`.
pub fn is_granted(rules: &[Rule], permission: &Permission, verb: &str) -> bool {
    let sub = permission
        .resource
        .split_once('/')
        .map(|(_, sub)| format!("*/{sub}"));
    rules.iter().any(|rule| {
        let has = |list: &[String], text: &str| list.iter().any(|item| item == text || item == "*");
        let names = permission.names;
        let named = !names.is_empty() && names.iter().all(|name| has(&rule.names, name));
        has(&rule.groups, permission.group)
            && (has(&rule.resources, permission.resource)
                || sub.as_ref().is_some_and(|sub| rule.resources.contains(sub)))
            && has(&rule.verbs, verb)
            && (rule.names.is_empty() || named)
    })
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

// === impl Rule ===

impl From<ResourceRule> for Rule {
    fn from(rule: ResourceRule) -> Self {
        Self {
            groups: rule.api_groups.unwrap_or_default(),
            resources: rule.resources.unwrap_or_default(),
            verbs: rule.verbs,
            names: rule.resource_names.unwrap_or_default(),
        }
    }
}
