//! ValidatingAdmissionPolicy: its expressions as a text, and the whole of it as a manifest of ours.
//!
//! What has no counterpart is refused by its name, so that nothing is enforced that means something else.

use serde_json::{Map, Value, json};

use crate::cel::FIELDS;

/// Fields of `spec` that are about which requests a policy sees, and what happens on errors: they are in the manifest.
const MANIFEST_FIELDS: [&str; 2] = ["matchConstraints", "failurePolicy"];

/// Whether a document is a ValidatingAdmissionPolicy.
pub fn is_validating_admission_policy(document: &Value) -> bool {
    has_kind(document, "ValidatingAdmissionPolicy")
}

fn has_kind(document: &Value, kind: &str) -> bool {
    document["kind"] == kind
        && document["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("admissionregistration.k8s.io/"))
}

/// The expressions, as the interpreter takes them.
pub(crate) fn expressions(policy: &Value) -> Result<Value, String> {
    let spec = map(&policy["spec"], "spec")?;
    let mut expressions = Map::new();
    for (name, value) in spec {
        match name.as_str() {
            "paramKind" => {
                return Err(
                    "spec.paramKind: parameters are settings of the policy here; remove paramKind, and give the \
                     values as spec.settings of the manifest"
                        .to_owned(),
                );
            }
            // A field of ours: a ValidatingAdmissionPolicy changes nothing.
            name if FIELDS.contains(&name) && name != "annotations" => {
                expressions.insert(name.to_owned(), value.clone());
            }
            name if MANIFEST_FIELDS.contains(&name) => {}
            name => return Err(format!("spec.{name}: this field is not known")),
        }
    }
    Ok(Value::Object(expressions))
}

/// A ValidatingAdmissionPolicy and its binding as a ClusterAdmissionPolicy with the text in it.
pub fn convert(documents: &[Value]) -> Result<Value, String> {
    let policy = one(documents, "ValidatingAdmissionPolicy")?
        .ok_or("there is no ValidatingAdmissionPolicy")?;
    let binding = one(documents, "ValidatingAdmissionPolicyBinding")?;
    let other = documents.iter().find(|document| {
        !is_validating_admission_policy(document)
            && !has_kind(document, "ValidatingAdmissionPolicyBinding")
    });
    if let Some(other) = other {
        return Err(format!("the kind {} can not be converted", other["kind"]));
    }
    let cel = expressions(policy)?;
    let spec = map(&policy["spec"], "spec")?;
    let mut converted = Map::new();
    converted.insert("source".into(), json!({ "cel": without_conditions(&cel) }));
    if let Some(conditions) = cel.get("matchConditions") {
        converted.insert("matchConditions".into(), conditions.clone());
    }
    if let Some(failure) = spec.get("failurePolicy") {
        converted.insert("failurePolicy".into(), failure.clone());
    }
    constraints(
        map(&policy["spec"]["matchConstraints"], "spec.matchConstraints")?,
        &mut converted,
    )?;
    if let Some(binding) = binding {
        bind(policy, binding, &mut converted)?;
    }
    Ok(json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "ClusterAdmissionPolicy",
        "metadata": { "name": policy["metadata"]["name"] },
        "spec": converted,
    }))
}

/// Match conditions are the API server's own in the manifest, before any evaluator is asked.
fn without_conditions(cel: &Value) -> Value {
    let mut cel = cel.clone();
    if let Some(fields) = cel.as_object_mut() {
        fields.remove("matchConditions");
    }
    cel
}

fn one<'a>(documents: &'a [Value], kind: &str) -> Result<Option<&'a Value>, String> {
    let mut found = documents.iter().filter(|document| has_kind(document, kind));
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        _ => Err(format!(
            "there are several of kind {kind}: convert them one by one"
        )),
    }
}

fn map<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, String> {
    value
        .as_object()
        .ok_or_else(|| format!("{path}: must be a map"))
}

/// `matchConstraints` as rules and selectors.
fn constraints(
    constraints: &Map<String, Value>,
    spec: &mut Map<String, Value>,
) -> Result<(), String> {
    for (name, value) in constraints {
        match name.as_str() {
            "resourceRules" => {
                let rules = value
                    .as_array()
                    .ok_or("spec.matchConstraints.resourceRules: must be a list")?;
                let rules: Vec<_> = rules.iter().map(rule).collect::<Result<_, _>>()?;
                spec.insert("rules".into(), Value::Array(rules));
            }
            "matchPolicy" | "namespaceSelector" | "objectSelector" => {
                let empty = value.as_object().is_some_and(Map::is_empty);
                if !empty {
                    spec.insert(name.clone(), value.clone());
                }
            }
            name => {
                return Err(format!(
                    "spec.matchConstraints.{name}: there is no counterpart; write it as a matchCondition"
                ));
            }
        }
    }
    if spec.contains_key("rules") {
        return Ok(());
    }
    Err("spec.matchConstraints.resourceRules: must be given".to_owned())
}

fn rule(rule: &Value) -> Result<Value, String> {
    let mut rule = map(rule, "spec.matchConstraints.resourceRules")?.clone();
    if rule.contains_key("resourceNames") {
        return Err(
            "spec.matchConstraints.resourceRules.resourceNames: there is no counterpart; write it as a matchCondition"
                .to_owned(),
        );
    }
    if rule.get("scope").is_some_and(|scope| scope == "*") {
        rule.remove("scope");
    }
    Ok(Value::Object(rule))
}

/// What the binding adds.
fn bind(policy: &Value, binding: &Value, spec: &mut Map<String, Value>) -> Result<(), String> {
    let name = &policy["metadata"]["name"];
    let bound = map(&binding["spec"], "spec of the binding")?;
    for (field, value) in bound {
        match field.as_str() {
            "policyName" if value == name => {}
            "policyName" => {
                return Err(format!("the binding is for the policy {value}, not {name}"));
            }
            "validationActions" => {
                let actions: Vec<_> = value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                spec.insert("mode".into(), mode(&actions)?.into());
            }
            "matchResources" => {
                let more = map(value, "spec.matchResources of the binding")?;
                selectors(more, spec)?;
            }
            field => {
                return Err(format!(
                    "spec.{field} of the binding: there is no counterpart"
                ));
            }
        }
    }
    Ok(())
}

fn mode(actions: &[&str]) -> Result<&'static str, String> {
    match actions {
        ["Deny"] | ["Deny", "Audit"] | ["Audit", "Deny"] => Ok("protect"),
        ["Audit"] => Ok("monitor"),
        actions => Err(format!(
            "spec.validationActions of the binding: {actions:?} has no counterpart; Deny is the mode protect, Audit the \
             mode monitor"
        )),
    }
}

/// A binding narrows what the policy matches; both at once would have to be joined.
fn selectors(more: &Map<String, Value>, spec: &mut Map<String, Value>) -> Result<(), String> {
    for (name, value) in more {
        let narrows = !value.as_object().is_some_and(Map::is_empty);
        match name.as_str() {
            "matchPolicy" => {
                spec.insert(name.clone(), value.clone());
            }
            "namespaceSelector" | "objectSelector" if !narrows => {}
            "namespaceSelector" | "objectSelector" if !spec.contains_key(name) => {
                spec.insert(name.clone(), value.clone());
            }
            "namespaceSelector" | "objectSelector" => {
                return Err(format!(
                    "spec.matchResources.{name} of the binding: the policy has one too; join them in the policy"
                ));
            }
            name => {
                return Err(format!(
                    "spec.matchResources.{name} of the binding: there is no counterpart; write it as a matchCondition"
                ));
            }
        }
    }
    Ok(())
}
