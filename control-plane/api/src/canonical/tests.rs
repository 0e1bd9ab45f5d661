#![allow(clippy::unwrap_used)]

use proptest::{collection, prelude::*};
use serde_json::{Map, Value, json};

use super::*;
use crate::{json as strict, yaml};

#[track_caller]
fn check(text: &str, expect: &str) {
    let value = strict::from_str(text).unwrap();
    assert_eq!(to_string(&value), expect, "from {text}");
    // What is canonical stays as it is.
    assert_eq!(to_string(&strict::from_str(expect).unwrap()), expect);
}

#[test]
fn published_vector_is_reproduced() {
    let expect = r#"{"a":[1,2.5,1e+21,-0.000001],"n":9223372036854775807,"ü":"é\n"}"#;
    check(
        "{ \"ü\": \"\\u00e9\\n\", \"n\": 9223372036854775807, \"a\": [1, 2.50, 1e21, -1E-6] }",
        expect,
    );
    let documents =
        yaml::load("\"n\": 9223372036854775807\nü: \"é\\n\"\na: [1, 2.5, 1e21, -0.000001]\n");
    assert_eq!(to_string(documents[0].value.as_ref().unwrap()), expect);
}

#[test]
fn integers_are_exact() {
    for text in ["0", "-1", "18446744073709551615", "-9223372036854775808"] {
        check(text, text);
    }
    // Beyond 64 bits there is no exactness to keep.
    check("18446744073709551616", "18446744073709552000");
    check("-0", "0");
}

#[test]
fn floats_print_as_ecmascript_does() {
    for (text, expect) in [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("0.1", "0.1"),
        ("100.25", "100.25"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("1.5e300", "1.5e+300"),
        ("123456789012345680000", "123456789012345680000"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("0.00000012", "1.2e-7"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("0.30000000000000004", "0.30000000000000004"),
        // A reader that rounds in two steps is one unit off here.
        ("9007199254740993.0", "9007199254740992"),
        ("2.2250738585072014e-308", "2.2250738585072014e-308"),
        ("1.00000005960464477550", "1.0000000596046448"),
    ] {
        check(text, expect);
    }
}

#[test]
fn strings_have_the_shortest_escapes() {
    check(
        r#""\u0000\u0008\u0009\u000a\u000b\u000c\u000d\u001f\u0022\u005c\u002f\u007f\u2028\ud83d\ude00""#,
        "\"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\/\u{7f}\u{2028}\u{1f600}\"",
    );
}

/// By UTF-16 units U+1F600 would sort before U+FF5E; by UTF-8 bytes it is the last.
#[test]
fn keys_are_sorted_by_utf8_bytes() {
    let value = json!({"\u{1f600}": 1, "\u{ff5e}": 2, "b": 3, "B": 4, "": 5, "aa": 6, "a": 7});
    assert_eq!(
        to_string(&value),
        "{\"\":5,\"B\":4,\"a\":7,\"aa\":6,\"b\":3,\"\u{ff5e}\":2,\"\u{1f600}\":1}"
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|f| Value::Object(f.into_iter().collect())),
        ]
    })
}

/// Writes the fields of every object backwards, with white space.
fn reversed(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(reversed).collect();
            format!("[ {} ]", items.join(" ,\t"))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .rev()
                .map(|(k, v)| format!("{} :\n{}", Value::from(k.as_str()), reversed(v)))
                .collect();
            format!("{{ {} }}", fields.join(" , "))
        }
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn reading_back_changes_nothing(value in any_value()) {
        let text = to_string(&value);
        prop_assert_eq!(to_string(&strict::from_str(&text).unwrap()), text);
    }

    #[test]
    fn order_and_space_do_not_matter(value in any_value()) {
        prop_assert_eq!(to_string(&strict::from_str(&reversed(&value)).unwrap()), to_string(&value));
    }

    #[test]
    fn floats_survive(float in any::<f64>().prop_filter("finite", |f| f.is_finite())) {
        let text = to_string(&Value::from(float));
        prop_assert_eq!(text.parse::<f64>().unwrap(), float);
    }

    #[test]
    fn different_keys_stay_different(a in any::<String>(), b in any::<String>()) {
        prop_assume!(a != b);
        let one = |key: &str| to_string(&Value::Object(Map::from_iter([(key.to_owned(), Value::Null)])));
        prop_assert_ne!(one(&a), one(&b));
    }
}
