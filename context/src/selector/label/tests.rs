#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[track_caller]
fn check(selector: &str, expect: &str) {
    let parsed: LabelSelector = selector.parse().unwrap();
    assert_eq!(parsed.to_string(), expect, "{selector}");
    assert_eq!(expect.parse(), Ok(parsed));
}

#[test]
fn equal_selectors_print_equally() {
    check("", "");
    check(" a = b ", "a=b");
    check("a==b,c != d", "a=b,c!=d");
    check("c!=d,a in (b)", "a=b,c!=d");
    check("a in (y,x , y)", "a in (x,y)");
    check("a notin (,x)", "a notin (,x)");
    check("a in (x,)", "a in (,x)");
    check("a in (in,notin)", "a in (in,notin)");
    check("!a,b,example.com/c", "!a,b,example.com/c");
    check("a=,b!=", "a=,b!=");
    check("a>1,b<20", "a>1,b<20");
    check("a=in", "a=in");
}

#[test]
fn other_selectors_are_errors() {
    for selector in [
        ",",
        "a,",
        ",a",
        "a b",
        "a=b c",
        "a in",
        "a in ()",
        "a in (x",
        "a in x",
        "a in (x y)",
        "!a=b",
        "!",
        "!!a",
        "a=(b)",
        "a===b",
        "in",
        "notin=x",
        "a>",
        "a>x",
        "a>-1",
        "a<+1",
        "-a",
        "a-",
        "a/b/c",
        "/a",
        "A_/b",
        "a=-b",
        "a in (x)y",
        "(a)",
        "a!",
        "ä=b",
        "a=b\u{0}",
    ] {
        assert!(selector.parse::<LabelSelector>().is_err(), "{selector}");
    }
    let long = format!("a={}", "b".repeat(64));
    assert!(long.parse::<LabelSelector>().is_err());
    let endless = "a,".repeat(MAX_BYTES);
    assert_eq!(endless.parse::<LabelSelector>(), Err(Error::TooLong));
}

#[test]
fn requirements_are_met_as_in_kubernetes() {
    let object = labels(&[("a", "1"), ("b", ""), ("n", "7")]);
    for (selector, expect) in [
        ("", true),
        ("a=1", true),
        ("a=2", false),
        ("x=1", false),
        ("a!=2", true),
        ("a!=1", false),
        // An object without the label does not have that value.
        ("x!=1", true),
        ("x notin (1)", true),
        ("a in (1,2)", true),
        ("a notin (1,2)", false),
        ("b", true),
        ("b=", true),
        ("!b", false),
        ("!x", true),
        ("x=", false),
        ("n>6", true),
        ("n>7", false),
        ("n<8", true),
        ("b<8", false),
        ("x<8", false),
        ("a=1,!x,b", true),
        ("a=1,x", false),
    ] {
        let parsed: LabelSelector = selector.parse().unwrap();
        assert_eq!(parsed.matches(&object), expect, "{selector}");
    }
}

#[test]
fn object_form_equals_the_string_form() {
    let object = json!({
        "matchLabels": {"a": "1"},
        "matchExpressions": [
            {"key": "b", "operator": "In", "values": ["x", "y"]},
            {"key": "c", "operator": "NotIn", "values": ["z"]},
            {"key": "d", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist", "values": null},
        ],
    });
    let selector = LabelSelector::from_object(&object).unwrap();
    assert_eq!(selector, "a=1,b in (x,y),c!=z,d,!e".parse().unwrap());
    assert!(LabelSelector::from_object(&json!({})).unwrap().is_empty());
    for bad in [
        json!([]),
        json!("a=b"),
        json!({"matchLabels": {"a": 1}}),
        json!({"matchLabels": []}),
        json!({"matchLabel": {}}),
        json!({"matchExpressions": [{"operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "exists"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["-"]}]}),
    ] {
        assert!(LabelSelector::from_object(&bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn reading_any_text_ends(text in "[a-c!=<>(), in\\-]{0,24}") {
        if let Ok(selector) = text.parse::<LabelSelector>() {
            let printed = selector.to_string();
            prop_assert_eq!(printed.parse::<LabelSelector>().unwrap(), selector);
        }
    }
}
