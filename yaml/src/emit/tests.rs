#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::load;

#[test]
fn emitted_yaml_is_readable() {
    let value = json!({
        "spec": {
            "versions": [{"name": "v1", "columns": ["a", "1", true], "empty": []}, {}],
            "text": "one\n\n  two",
            "least": 0.0,
        },
        "apiVersion": "v1",
        "nested": [[1, 2], [{"on": "off"}]],
    });
    let expect = "\
apiVersion: v1
nested:
- - 1
  - 2
- - \"on\": \"off\"
spec:
  least: 0
  text: |-
    one

      two
  versions:
  - columns:
    - a
    - \"1\"
    - true
    empty: []
    name: v1
  - {}
";
    assert_eq!(emit(&value), expect);
}

#[track_caller]
fn reads_back(value: &Value) {
    let text = emit(value);
    let mut documents = load(&text);
    assert_eq!(documents.len(), 1, "{text}");
    assert_eq!(documents.remove(0).value.unwrap(), *value, "{text}");
}

#[test]
fn strange_text_reads_back() {
    for text in [
        "",
        " ",
        "~",
        "yes",
        "Null",
        "1e3",
        "0x1f",
        "- a",
        "a: b",
        "a #b",
        "'a'",
        "\"a\"",
        "*a",
        "a\n",
        "\na",
        "a\n b",
        "a \nb",
        "a\tb\nc",
        "2026-01-01",
        "é\nß",
        "\u{2028}",
        "a:",
        "%a",
    ] {
        reads_back(&json!({ text: text, "list": [text, {"k": text}] }));
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ a-z0-9:#'\"\n~\\-]{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z:# ~]{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn everything_reads_back(value in values()) {
        reads_back(&json!({ "value": value }));
    }
}
