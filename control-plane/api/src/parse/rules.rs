//! Reads the parts of a policy that select requests, by the rules that an API server has for
//! webhook configurations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::reader::{Fields, Node};
use crate::rules::{
    LabelSelector, MAX_ITEMS, MatchCondition, Operation, Operator, Requirement, Rule, Scope,
};

/// Conditions that an API server takes.
const MAX_CONDITIONS: usize = 64;

/// Reads `rules`.
pub(super) fn read(f: &mut Fields<'_>, namespaced: bool) -> Vec<Rule> {
    let Some(node) = f.require(
        "rules",
        "at least one rule must select the requests that the policy evaluates",
    ) else {
        return Vec::new();
    };
    let items = node.items();
    if items.is_empty() && node.value.is_array() {
        node.error("must not be empty; at least one rule must select the requests that the policy evaluates");
    }
    bounded(&node, items.len());
    items.iter().map(|item| rule(item, namespaced)).collect()
}

fn rule(node: &Node<'_>, namespaced: bool) -> Rule {
    let mut f = node.fields();
    let operations = operations(&mut f);
    let api_groups = strings(
        &mut f,
        "apiGroups",
        "name at least one group, \"\" (core) or \"*\"",
    );
    let api_versions = strings(&mut f, "apiVersions", "name at least one version or \"*\"");
    let resources = strings(&mut f, "resources", "name at least one resource or \"*\"");
    let scope = scope(&mut f, namespaced);
    lone_wildcard(node, "apiGroups", &api_groups);
    lone_wildcard(node, "apiVersions", &api_versions);
    no_empty(node, "apiVersions", &api_versions);
    no_empty(node, "resources", &resources);
    check_resources(node, &resources);
    if namespaced {
        refuse_everything(node, &api_groups, &resources);
    }
    f.close();
    Rule {
        api_groups,
        api_versions,
        operations,
        resources,
        scope,
    }
}

fn operations(f: &mut Fields<'_>) -> Vec<Operation> {
    let hint = "name at least one of CREATE, UPDATE, DELETE, CONNECT or \"*\"";
    let Some(node) = f.require("operations", hint) else {
        return Vec::new();
    };
    let items = node.items();
    if items.is_empty() && node.value.is_array() {
        node.error(format!("must not be empty; {hint}"));
    }
    bounded(&node, items.len());
    let names = ["CREATE", "UPDATE", "DELETE", "CONNECT", "*"];
    let operations: Vec<_> = items
        .iter()
        .filter_map(|item| item.choice(&names))
        .collect();
    if operations.len() > 1 && operations.contains(&Operation::All) {
        node.error("\"*\" is everything already; remove it or the others");
    }
    operations
}

fn scope(f: &mut Fields<'_>, namespaced: bool) -> Scope {
    let node = f.get("scope");
    let scope = node
        .as_ref()
        .and_then(|node| node.choice(&["Cluster", "Namespaced", "*"]))
        .unwrap_or_default();
    match (namespaced, scope, node) {
        (true, Scope::Cluster, Some(node)) => {
            node.error("a namespaced policy sees no cluster-scoped objects; remove it");
            scope
        }
        (true, _, _) => Scope::Namespaced,
        (false, scope, _) => scope,
    }
}

/// A list of strings that must not be empty.
fn strings(f: &mut Fields<'_>, name: &'static str, hint: &str) -> Vec<String> {
    let Some(node) = f.require(name, hint) else {
        return Vec::new();
    };
    let items = node.items();
    if items.is_empty() && node.value.is_array() {
        node.error(format!("must not be empty; {hint}"));
    }
    bounded(&node, items.len());
    items.iter().filter_map(Node::string).collect()
}

fn bounded(node: &Node<'_>, len: usize) {
    if len > MAX_ITEMS {
        node.error(format!(
            "must not have more than {MAX_ITEMS} entries, not {len}"
        ));
    }
}

fn lone_wildcard(rule: &Node<'_>, field: &str, list: &[String]) {
    if list.len() > 1 && list.iter().any(|item| item == "*") {
        let path = format!("{}.{field}", rule.path);
        rule.sink.error(
            &path,
            "\"*\" is everything already; remove it or the others",
        );
    }
}

fn no_empty(rule: &Node<'_>, field: &str, list: &[String]) {
    for (i, _) in list.iter().enumerate().filter(|(_, item)| item.is_empty()) {
        let path = format!("{}.{field}[{i}]", rule.path);
        rule.sink.error(&path, "must not be empty");
    }
}

/// `*/*` stands alone; `*` does not stand beside resources, `x/*` not beside `x/y`, and `*/y`
/// not beside `x/y`: an API server refuses such rules.
fn check_resources(rule: &Node<'_>, resources: &[String]) {
    let path = |i: usize| format!("{}.resources[{i}]", rule.path);
    let has = |text: &str| resources.iter().any(|resource| resource == text);
    for (i, resource) in resources.iter().enumerate() {
        let (kind, sub) = match resource.split_once('/') {
            Some((kind, sub)) => (kind, Some(sub)),
            None => (resource.as_str(), None),
        };
        if sub.is_some_and(|sub| sub.is_empty() || sub.contains('/'))
            || kind.is_empty() && sub.is_some()
        {
            rule.sink.error(
                &path(i),
                format!("\"{resource}\" is not a resource or resource/subresource"),
            );
        }
        let covered = match sub {
            None if kind != "*" && has("*") => Some("*".to_owned()),
            Some(sub) if sub != "*" && has(&format!("{kind}/*")) => Some(format!("{kind}/*")),
            Some(sub) if kind != "*" && has(&format!("*/{sub}")) => Some(format!("*/{sub}")),
            _ if resource != "*/*" && has("*/*") => Some("*/*".to_owned()),
            _ => None,
        };
        if let Some(by) = covered {
            rule.sink.error(
                &path(i),
                format!("\"{resource}\" is covered by \"{by}\" already; remove one of the two"),
            );
        }
    }
}

fn refuse_everything(rule: &Node<'_>, groups: &[String], resources: &[String]) {
    let has = |list: &[String], text: &str| list.iter().any(|item| item == text);
    if has(resources, "*/*") || has(resources, "*") && has(groups, "*") {
        let path = format!("{}.resources", rule.path);
        rule.sink.error(
            &path,
            "a namespaced policy must name its resources: wildcards on everything are refused",
        );
    }
}

/// Reads `matchConditions`.
pub(super) fn conditions(f: &mut Fields<'_>) -> Vec<MatchCondition> {
    let Some(node) = f.get("matchConditions") else {
        return Vec::new();
    };
    let items = node.items();
    if items.len() > MAX_CONDITIONS {
        node.error(format!("must not have more than {MAX_CONDITIONS} entries"));
    }
    let mut names = BTreeSet::new();
    items
        .iter()
        .filter_map(|item| condition(item, &mut names))
        .collect()
}

fn condition(node: &Node<'_>, names: &mut BTreeSet<String>) -> Option<MatchCondition> {
    let mut f = node.fields();
    let name = f.require("name", "it names the condition");
    let expression = f.require("expression", "it is a condition in CEL");
    f.close();
    let (name, expression) = (name?, expression?);
    let (name_text, text) = (name.string()?, expression.string()?);
    if !is_qualified_name(&name_text) {
        name.error(
            "must be letters, digits, '-', '_' and '.', with an optional DNS prefix and '/'",
        );
    } else if !names.insert(name_text.clone()) {
        name.error(format!(
            "\"{name_text}\" is there twice; rename one of the two"
        ));
    }
    if text.trim().is_empty() {
        expression.error("must not be empty; it is a condition in CEL");
    }
    Some(MatchCondition {
        name: name_text,
        expression: text,
    })
}

/// Reads a label selector.
pub(super) fn selector(node: &Node<'_>) -> LabelSelector {
    let mut f = node.fields();
    let match_labels = f
        .get("matchLabels")
        .map(|node| labels(&node))
        .unwrap_or_default();
    let expressions = f.items("matchExpressions");
    let selector = LabelSelector {
        match_labels,
        match_expressions: expressions.iter().filter_map(requirement).collect(),
    };
    f.close();
    selector
}

fn labels<'a>(node: &Node<'a>) -> BTreeMap<String, String> {
    let Some(map) = node.value.as_object() else {
        node.fields();
        return BTreeMap::new();
    };
    let label = |(key, value): (&String, &'a Value)| {
        let node = Node {
            sink: node.sink,
            path: format!("{}[{key}]", node.path),
            value,
        };
        check_key(&node, key);
        let value = node.string()?;
        check_label_value(&node, &value);
        Some((key.clone(), value))
    };
    map.iter().filter_map(label).collect()
}

fn requirement(node: &Node<'_>) -> Option<Requirement> {
    let mut f = node.fields();
    let key = f.require("key", "it is the name of a label");
    let operator = f.require("operator", "one of In, NotIn, Exists, DoesNotExist");
    let values = f.items("values");
    f.close();
    let (key, operator) = (key?, operator?);
    let requirement = Requirement {
        key: key.string()?,
        operator: operator.choice(&["In", "NotIn", "Exists", "DoesNotExist"])?,
        values: values.iter().filter_map(Node::string).collect(),
    };
    check_key(&key, &requirement.key);
    for (node, value) in values.iter().zip(&requirement.values) {
        check_label_value(node, value);
    }
    let path = format!("{}.values", node.path);
    match requirement.operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            node.sink.error(&path, "must not be empty for In and NotIn");
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            node.sink
                .error(&path, "must be empty for Exists and DoesNotExist");
        }
        _ => {}
    }
    Some(requirement)
}

fn check_key(node: &Node<'_>, key: &str) {
    if !is_qualified_name(key) {
        node.error(format!("\"{key}\" is not the name of a label"));
    }
}

fn check_label_value(node: &Node<'_>, value: &str) {
    if !value.is_empty() && !is_name_part(value) {
        node.error(format!("\"{value}\" is not the value of a label"));
    }
}

/// `[prefix/]name`, as label keys and names of conditions are.
fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => assent_core::policy::is_dns_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

fn is_name_part(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(inner)
}
