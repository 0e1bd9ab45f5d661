//! Templates and constraints of Gatekeeper: each constraint becomes a policy with the Rego text of its template.

use anyhow::bail;
use serde_json::{Map, Value, json};

use super::{Converted, shown};
use crate::request::kinds::{self, Kind};

pub(super) const TEMPLATES: &str = "templates.gatekeeper.sh";
pub(super) const CONSTRAINTS: &str = "constraints.gatekeeper.sh";

/// Calls and data that only Gatekeeper has.
const FOREIGN: [(&str, &str); 2] = [
    (
        "data.inventory",
        "reads other objects through data.inventory: a policy here declares contextAwareResources and asks for them",
    ),
    (
        "external_data(",
        "calls external data providers, which do not exist here",
    ),
];

pub(super) fn convert(documents: &[Value]) -> anyhow::Result<Converted> {
    let of = |group: &'static str| {
        let mine = move |one: &&Value| super::group_of(one) == group;
        documents.iter().filter(mine)
    };
    let mut converted = Converted::default();
    for constraint in of(CONSTRAINTS) {
        let kind = &constraint["kind"];
        let mut templates = of(TEMPLATES);
        let template = templates.find(|one| one["spec"]["crd"]["spec"]["names"]["kind"] == *kind);
        let Some(template) = template else {
            bail!(
                "{} has no template: pass the ConstraintTemplate of its kind too",
                shown(constraint)
            );
        };
        policy(template, constraint, &mut converted)?;
    }
    for template in of(TEMPLATES) {
        let kind = &template["spec"]["crd"]["spec"]["names"]["kind"];
        if !of(CONSTRAINTS).any(|constraint| constraint["kind"] == *kind) {
            converted.lose(
                template,
                "no constraint uses it, so that it applies to nothing",
            );
        }
    }
    Ok(converted)
}

fn policy(template: &Value, constraint: &Value, converted: &mut Converted) -> anyhow::Result<()> {
    let rego = rego(template)?;
    for (word, why) in FOREIGN {
        if rego.contains(word) {
            bail!("{} {why}", shown(template));
        }
    }
    let spec = &constraint["spec"];
    let matches = spec["match"].as_object().cloned().unwrap_or_default();
    let mut policy = Map::new();
    policy.insert("source".to_owned(), json!({ "rego": rego }));
    policy.insert("rules".to_owned(), rules(constraint, &matches, converted));
    if let Some(parameters) = spec.get("parameters") {
        policy.insert("settings".to_owned(), parameters.clone());
    }
    match spec["enforcementAction"].as_str() {
        None | Some("deny") => {}
        Some("dryrun") => drop(policy.insert("mode".to_owned(), json!("monitor"))),
        Some(other) => {
            policy.insert("mode".to_owned(), json!("monitor"));
            converted.lose(
                constraint,
                format_args!(
                    "enforcementAction {other} has no counterpart; the policy only monitors"
                ),
            );
        }
    }
    if let Some(selector) = matches.get("labelSelector") {
        policy.insert("objectSelector".to_owned(), selector.clone());
    }
    if let Some(selector) = namespaces(constraint, &matches, converted) {
        policy.insert("namespaceSelector".to_owned(), selector);
    }
    for name in matches.keys() {
        let known = [
            "kinds",
            "labelSelector",
            "namespaceSelector",
            "namespaces",
            "excludedNamespaces",
            "scope",
        ];
        if !known.contains(&name.as_str()) {
            converted.lose(
                constraint,
                format_args!("spec.match.{name} has no counterpart"),
            );
        }
    }
    converted.push("ClusterAdmissionPolicy", constraint, Value::Object(policy));
    Ok(())
}

/// The text of a template. Gatekeeper's dialect is Rego before version 1 unless it says otherwise.
fn rego(template: &Value) -> anyhow::Result<String> {
    let target = &template["spec"]["targets"][0];
    let code = target["code"].as_array().into_iter().flatten();
    let source = code
        .filter(|one| one["engine"] == "Rego")
        .map(|one| &one["source"])
        .next();
    let source = source.unwrap_or(target);
    let Some(text) = source["rego"].as_str() else {
        bail!(
            "{} has no Rego: CEL of a template is a ValidatingAdmissionPolicy, convert that",
            shown(template)
        );
    };
    if source["libs"]
        .as_array()
        .is_some_and(|libs| !libs.is_empty())
    {
        bail!(
            "{} has libs: move their rules into the text of the template first",
            shown(template)
        );
    }
    let is_v1 = source["version"] == "v1" || text.contains("import rego.v1");
    Ok(match is_v1 {
        true => text.to_owned(),
        false => format!("# rego.v0\n{text}"),
    })
}

fn rules(constraint: &Value, matches: &Map<String, Value>, converted: &mut Converted) -> Value {
    let scope = matches.get("scope").cloned().unwrap_or_else(|| json!("*"));
    let rule = |groups: Value, resources: Vec<String>| {
        json!({
            "apiGroups": groups, "apiVersions": ["*"], "resources": resources,
            "operations": ["CREATE", "UPDATE"], "scope": scope,
        })
    };
    let kinds = matches.get("kinds").and_then(Value::as_array);
    let Some(kinds) = kinds.filter(|kinds| !kinds.is_empty()) else {
        return json!([rule(json!(["*"]), vec!["*".to_owned()])]);
    };
    let mut rules = Vec::new();
    for entry in kinds {
        let groups = entry["apiGroups"].as_array().cloned().unwrap_or_default();
        let names = entry["kinds"].as_array().into_iter().flatten();
        let mut resources = Vec::new();
        for kind in names.filter_map(Value::as_str) {
            let group = |group: &Value| Kind::find(group.as_str().unwrap_or_default(), kind);
            resources.push(match groups.iter().find_map(group) {
                Some(known) => known.resource.to_owned(),
                None if kind == "*" => "*".to_owned(),
                None => {
                    let guess = kinds::guess_resource(kind);
                    let why = format_args!(
                        "the resource of the kind {kind} was guessed: check that it is {guess}"
                    );
                    converted.lose(constraint, why);
                    guess
                }
            });
        }
        rules.push(rule(Value::Array(groups), resources));
    }
    Value::Array(rules)
}

/// Namespaces by name become a selector on the label that every namespace has.
fn namespaces(
    constraint: &Value,
    matches: &Map<String, Value>,
    converted: &mut Converted,
) -> Option<Value> {
    let mut selector = matches.get("namespaceSelector").cloned();
    for (field, operator) in [("namespaces", "In"), ("excludedNamespaces", "NotIn")] {
        let names = matches.get(field).and_then(Value::as_array);
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            continue;
        };
        let has_pattern = |name: &Value| name.as_str().is_some_and(|name| name.contains('*'));
        if names.iter().any(has_pattern) {
            let why = format_args!(
                "spec.match.{field} has patterns, for which there is no selector: list the namespaces"
            );
            converted.lose(constraint, why);
        }
        let plain: Vec<&Value> = names.iter().filter(|name| !has_pattern(name)).collect();
        // Nothing selected is not everything selected.
        if plain.is_empty() && operator == "NotIn" {
            continue;
        }
        let selector = selector.get_or_insert_with(|| json!({}));
        let expression = json!({
            "key": "kubernetes.io/metadata.name", "operator": operator, "values": plain,
        });
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(expression),
            None => selector["matchExpressions"] = json!([expression]),
        }
    }
    selector
}
