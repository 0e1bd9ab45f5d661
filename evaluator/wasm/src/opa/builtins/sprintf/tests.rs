#![allow(clippy::unwrap_used)]
use super::*;

#[track_caller]
fn check(format: &str, args: &str, expected: &str) {
    let args = value::parse(args.as_bytes()).unwrap();
    let result = builtin(&[Value::from(format), args]);
    assert_eq!(result, Some(Value::from(expected)), "{format}");
}

#[test]
fn the_verbs_that_policies_use() {
    check("%v %s", r#"["a","b"]"#, "a b");
    check("%v %d", "[1,2]", "1 2");
    check("%v", "[1.5]", "1.5");
    check("%v|%v|%v", "[true,null,[1,\"x\"]]", r#"true|null|[1, "x"]"#);
    check("%v", r#"[{"b","a"}]"#, r#"{"a", "b"}"#);
    check("%v", r#"[{"k":{"x":1}}]"#, r#"{"k": {"x": 1}}"#);
    check("%v", "[set()]", "set()");
    check("%q", r#"["a\"b"]"#, r#""a\"b""#);
    check("100%%", "[]", "100%");
    check("%d", "[12345678901234567890123]", "12345678901234567890123");
}

#[test]
fn sizes_and_flags() {
    check(
        "[%5s][%-5s][%.2s]",
        r#"["ab","ab","abc"]"#,
        "[   ab][ab   ][ab]",
    );
    check(
        "[%5d][%-5d][%05d][%+d]",
        "[42,42,-42,42]",
        "[   42][42   ][-0042][+42]",
    );
    check(
        "%.2f %f %e %g",
        "[3.14159,2.5,1234.5678,0.00001]",
        "3.14 2.500000 1.234568e+03 1e-05",
    );
    check(
        "%x %X %o %b %c %U",
        "[255,255,8,5,65,9731]",
        "ff FF 10 101 A U+2603",
    );
    check("%*d|%[1]v", "[5,7]", "    7|5");
    check("%[2]s %[1]s", r#"["a","b"]"#, "b a");
    check("%v %v", "[1e21,1.5e-7]", "1000000000000000000000 1.5e-07");
}

#[test]
fn mistakes_read_like_gos() {
    check("%d", r#"["x"]"#, "%!d(string=x)");
    check("%s", "[5]", "%!s(int=5)");
    check("%s %s", r#"["x"]"#, "x %!s(MISSING)");
    check("x", r#"["y",1]"#, "x%!(EXTRA string=y, int=1)");
    check("%", "[]", "%!(NOVERB)");
    check(
        "%[9]d",
        "[1]",
        "%!d(BADINDEX)%!(EXTRA int=1)".trim_end_matches("%!(EXTRA int=1)"),
    );
    check("%t", "[true]", "%!t(string=true)");
}

#[test]
fn text_of_other_alphabets_is_kept() {
    check("ü%sü%5s", r#"["é","漢"]"#, "üéü    漢");
}

#[test]
fn a_flood_is_refused() {
    let args = value::parse(b"[1]").unwrap();
    assert_eq!(
        builtin(&[Value::from("%[1]1000000d".repeat(100)), args]),
        None
    );
    assert_eq!(builtin(&[Value::from("x"), Value::from("no list")]), None);
}
