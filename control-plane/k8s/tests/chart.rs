//! The chart permits what the control plane asks for at its start, and nothing else.
//!
//! `charts/check` keeps the list that is read here equal to what helm renders.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, path::Path};

use assent_k8s::preflight::{REQUIRED, Scope};
use serde_json::Value;

/// One verb on one resource, and where.
type Right = (Scope, String, String, Vec<String>, String);

#[test]
fn chart_grants_every_required_permission() {
    let missing: Vec<_> = required().difference(&permitted()).cloned().collect();
    assert!(missing.is_empty(), "the chart does not permit {missing:#?}");
}

#[test]
fn chart_grants_no_other_permission() {
    let spare: Vec<_> = permitted().difference(&required()).cloned().collect();
    assert!(spare.is_empty(), "nobody asks for {spare:#?}");
}

fn required() -> BTreeSet<Right> {
    let rights = REQUIRED.iter().flat_map(|permission| {
        let names: Vec<String> = permission.names.iter().map(|n| (*n).to_owned()).collect();
        permission.verbs.iter().map(move |verb| {
            (
                permission.scope,
                permission.group.to_owned(),
                permission.resource.to_owned(),
                names.clone(),
                (*verb).to_owned(),
            )
        })
    });
    rights.collect()
}

/// Of the control plane itself: the hooks have accounts of their own, and what it may do in
/// namespaces that allow injection is asked for when it is needed.
fn permitted() -> BTreeSet<Right> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/assent/tests/rbac.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = assent_api::yaml::load(&text).remove(0).value.unwrap();
    let rows = rows.as_array().unwrap().iter();
    rows.flat_map(|row| {
        let scope = match text_of(&row["who"]).as_str() {
            "assent" => Some(Scope::Namespace),
            "assent-system-assent" => Some(Scope::Cluster),
            _ => None,
        };
        let rights = |scope| {
            let (group, resource) = (text_of(&row["group"]), text_of(&row["resource"]));
            let names = texts_of(&row["names"]);
            let verbs = texts_of(&row["verbs"]).into_iter();
            verbs.map(move |verb| (scope, group.clone(), resource.clone(), names.clone(), verb))
        };
        scope.into_iter().flat_map(rights).collect::<Vec<_>>()
    })
    .collect()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn texts_of(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(text_of).collect()
}
