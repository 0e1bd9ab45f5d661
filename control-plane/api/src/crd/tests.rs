#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, path::Path};

use super::*;

/// The committed files by name.
fn committed() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/assent/crds");
    let entries = fs::read_dir(folder).into_iter().flatten();
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                read(&entry.path()),
            )
        })
        .collect()
}

#[test]
fn chart_contains_the_current_definitions() {
    let fresh: BTreeMap<_, _> = files().into_iter().map(|f| (f.name, f.text)).collect();
    let committed = committed();
    let names = |map: &BTreeMap<String, String>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&fresh), names(&committed), "run `{REGENERATE}`");
    for (name, text) in fresh {
        let same = committed[&name] == text;
        assert!(
            same,
            "charts/assent/crds/{name} is out of date: run `{REGENERATE}`"
        );
    }
}

#[test]
fn files_read_back_as_the_definitions() {
    for (definition, file) in all().iter().zip(files()) {
        let mut documents = yaml::load(&file.text);
        assert_eq!(documents.len(), 1, "{}", file.name);
        let read = documents.remove(0).value.unwrap();
        assert_eq!(normal(&read), normal(definition), "{}", file.name);
    }
}

/// Numbers as floats, since `0.0` is written as `0`.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), normal(v))).collect(),
        other => other.clone(),
    }
}

/// Every schema in `schema` with its path.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
    let Some(map) = schema.as_object() else {
        return;
    };
    visit(path, map);
    let properties = map.get("properties").and_then(Value::as_object);
    for (name, inner) in properties.into_iter().flatten() {
        walk(&format!("{path}.{name}"), inner, visit);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(name) {
            walk(&format!("{path}[]"), inner, visit);
        }
    }
}

fn every_schema(mut visit: impl FnMut(&str, &Map<String, Value>)) {
    for definition in all() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let version = &definition["spec"]["versions"][0];
        walk(kind, &version["schema"]["openAPIV3Schema"], &mut visit);
    }
}

/// What an API server refuses in a schema, or takes and ignores.
#[test]
fn schemas_use_only_supported_keywords() {
    const FORMATS: &[&str] = &["int32", "int64", "date-time", "byte", "double"];
    const REFUSED: &[&str] = &[
        "$ref",
        "definitions",
        "uniqueItems",
        "oneOf",
        "anyOf",
        "allOf",
        "not",
    ];
    every_schema(|path, map| {
        for word in REFUSED {
            assert!(!map.contains_key(*word), "{path} has {word}");
        }
        assert!(!map.contains_key("nullable"), "{path} is nullable");
        let typed = ["type", "x-kubernetes-int-or-string"];
        assert!(
            typed.iter().any(|t| map.contains_key(*t)),
            "{path}: {map:?}"
        );
        if let Some(format) = map.get("format").and_then(Value::as_str) {
            assert!(FORMATS.contains(&format), "{path} has the format {format}");
        }
        assert_ne!(map.get("default"), Some(&Value::Null), "{path}");
    });
}

#[test]
fn only_what_users_write_keeps_unknown_fields() {
    every_schema(|path, map| {
        let keeps = map.contains_key("x-kubernetes-preserve-unknown-fields");
        let spec = path.split('.').nth(1) == Some("spec");
        let ours = path.starts_with("PolicyRevision");
        if map.contains_key("properties") {
            assert_eq!(keeps, spec && !ours, "{path}");
        }
    });
}
