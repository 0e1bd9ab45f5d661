//! Builtins of the host, against OPA itself: each expression is evaluated by `opa eval`, and as a module in a
//! sandbox.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use assent_wasm::{Abi, Review};
use serde_json::{Value, json};

use crate::guests::{policy, raw, spec};

mod documents;
mod keys;

/// What the expressions see as `input.request`, given as JSON.
fn compare(input: &Value, expressions: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = answers(folder.path(), input, expressions);
    let mut wrong = String::new();
    for (index, expression) in expressions.iter().enumerate() {
        let key = index.to_string();
        let (ours, theirs) = (ours.get(&key), theirs.get(&key));
        if ours != theirs {
            let show =
                |value: Option<&Value>| value.map_or("undefined".to_owned(), Value::to_string);
            writeln!(
                wrong,
                "{expression}\n  here {}\n  OPA  {}",
                show(ours),
                show(theirs)
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

type Answers = BTreeMap<String, Value>;

fn answers(folder: &Path, input: &Value, expressions: &[&str]) -> (Answers, Answers) {
    let mut rego = "package t\n\nmain := {\"allowed\": true, \"message\": json.marshal(out)}\n\nr := input.request\n\n".to_owned();
    for (index, expression) in expressions.iter().enumerate() {
        writeln!(rego, "out[\"{index}\"] := {expression}\n").unwrap();
    }
    fs::write(folder.join("t.rego"), rego).unwrap();
    let document = json!({ "request": input });
    fs::write(folder.join("input.json"), document.to_string()).unwrap();
    let theirs = opa(
        folder,
        &[
            "eval",
            "-d",
            "t.rego",
            "-i",
            "input.json",
            "-f",
            "raw",
            "data.t.out",
        ],
    );
    let wasm = built(folder);
    let request = raw(&input.to_string());
    // Debug builds on a busy machine: the deadline is not what is tested here.
    let limits = assent_wasm::Limits {
        timeout: std::time::Duration::from_secs(60),
        ..Default::default()
    };
    let spec = assent_wasm::PolicySpec {
        limits,
        ..spec(Abi::Opa)
    };
    let verdict = policy(&wasm, spec).evaluate(&Review::raw(&request));
    let ours = verdict.unwrap().message.unwrap();
    let theirs = String::from_utf8(theirs).unwrap();
    (read(&ours), read(&theirs))
}

/// Numbers with more digits than floating point has are compared as text.
fn read(json: &str) -> Answers {
    let large = regex::Regex::new(r"([\[:, ])(\d{25,})").unwrap();
    serde_json::from_str(&large.replace_all(json, "$1\"$2\"")).unwrap()
}

/// The module of `t.rego`.
fn built(folder: &Path) -> Vec<u8> {
    let arguments = "build -t wasm -e t/main -o t.tar.gz t.rego";
    opa(folder, &arguments.split(' ').collect::<Vec<_>>());
    let unpack = ["-xzf", "t.tar.gz", "/policy.wasm"];
    run(Command::new("tar").args(unpack).current_dir(folder));
    fs::read(folder.join("policy.wasm")).unwrap()
}

fn opa(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let program = std::env::var("ASSENT_OPA");
    let program =
        program.expect("ASSENT_OPA must name the opa program: eval \"$(scripts/tools --env opa)\"");
    run(Command::new(program).args(arguments).current_dir(folder))
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output.stdout
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    fs::read_to_string(path).unwrap()
}

#[test]
fn hashes_match_opa() {
    compare(
        &json!({"text": "grüße"}),
        &[
            "crypto.md5(r.text)",
            "crypto.sha1(r.text)",
            "crypto.sha256(r.text)",
            r#"crypto.md5("")"#,
            "crypto.hmac.md5(r.text, \"key\")",
            "crypto.hmac.sha1(r.text, \"key\")",
            "crypto.hmac.sha256(r.text, \"key\")",
            "crypto.hmac.sha512(r.text, \"key\")",
            r#"crypto.hmac.sha512("x", concat("", [s | some i in numbers.range(1, 300); s := sprintf("%d", [i])]))"#,
            r#"crypto.hmac.equal("a", "a")"#,
            r#"crypto.hmac.equal("a", "b")"#,
            "crypto.md5(r.nothing)",
        ],
    );
}

#[test]
fn numbers_strings_and_casts() {
    compare(
        &json!({"a": ["x", "y"], "n": 5}),
        &[
            "numbers.range_step(0, 10, 3)",
            "numbers.range_step(10, 0, 4)",
            "numbers.range_step(r.n, r.n, 1)",
            "numbers.range_step(0, 10, 0)",
            "numbers.range_step(0, 10, r.n - 10)",
            "numbers.range_step(100000000000000000000, 100000000000000000006, 5)",
            r#"strings.split_n("a,b,c", ",", 2)"#,
            r#"strings.split_n("a,b,c", ",", 0)"#,
            r#"strings.split_n("a,b,c", ",", 9)"#,
            r#"strings.split_n("a,b,c", ",", -2)"#,
            r#"strings.split_n("a,b,c", ",", -9)"#,
            r#"strings.split_n("abc", "", 2)"#,
            r#"strings.split_n("äbc", "", -2)"#,
            r#"strings.split_n("", ",", 2)"#,
            r#"strings.split_n("", "", 2)"#,
            r#"strings.count("cheese", "e")"#,
            r#"strings.any_prefix_match(r.a, ["x"])"#,
            r#"strings.any_suffix_match({"ab", "cd"}, "d")"#,
            r#"strings.reverse("äbc")"#,
            r#"indexof_n("sad", "a")"#,
            r#"regex.replace("foo.bar.2", "(\\w+)\\.(\\w+)", "$2-${1}")"#,
            r#"regex.replace("abc", "x*", "-")"#,
            r#"regex.split("[,;]", "a,b;c")"#,
            r#"regex.find_n("[a-c]", "abcd", -1)"#,
            r#"regex.template_match("urn:foo:{.*}", "urn:foo:bar:baz", "{", "}")"#,
            r#"sprintf("%s %d %v %5.2f %x %q", ["a", 1, {"k": [1, "x"]}, 1.5, 255, "b"])"#,
        ],
    );
}

#[test]
fn common_texts_of_patterns_match_opa() {
    let pairs = [
        ("a.a.[0-9]+z", "b.b.[0-9]+z"),
        ("[a-z]+", "[0-9]*"),
        ("[a-z]*", "[0-9]*"),
        (".*", ".+"),
        ("abc.*", ".*xyz"),
        ("a+b+", "a*b"),
        ("", ""),
        ("a", ""),
        ("a*", ""),
        ("[a-m]x", "[m-z]x"),
        ("[a-l]x", "[m-z]x"),
        (r"\[a\]", "[[]a."),
        (r"a\*", "a."),
        ("foo.bar", "foo-b[a-c]r"),
        ("[a-", "a"),
        ("*", "a"),
        ("a]", "a"),
        ("[z-a]", "a"),
        ("[]", "a"),
        ("ä+", "[à-ü]"),
    ];
    let expressions: Vec<String> = pairs
        .iter()
        .map(|(a, b)| format!("regex.globs_match({}, {})", json!(a), json!(b)))
        .collect();
    compare(
        &json!({}),
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn graphs_match_opa() {
    let graph = json!({
        "a": ["b", "c"], "b": ["d"], "c": ["d", "x"], "d": [], "e": ["e"], "f": ["g"], "g": ["f", "h"], "h": null,
    });
    compare(
        &json!({"g": graph}),
        &[
            r#"sort(graph.reachable_paths(r.g, ["a"]))"#,
            r#"sort(graph.reachable_paths(r.g, {"b", "c"}))"#,
            r#"sort(graph.reachable_paths(r.g, ["d"]))"#,
            r#"sort(graph.reachable_paths(r.g, ["e"]))"#,
            r#"sort(graph.reachable_paths(r.g, ["f"]))"#,
            r#"sort(graph.reachable_paths(r.g, ["nowhere"]))"#,
            r#"sort(graph.reachable_paths(r.g, []))"#,
            r#"sort(graph.reachable_paths({"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}, {"a"}))"#,
            r#"sort(graph.reachable_paths({}, ["a"]))"#,
        ],
    );
}

#[test]
fn uris_match_opa() {
    let texts = [
        "https://user:pass@Example.com:8443/a/b%20c?x=1&y=%20#frag%21",
        "http://example.com",
        "http://example.com/",
        "http://example.com?",
        "mailto:a@b.c",
        "urn:isbn:123",
        "/only/a/path",
        "relative/path?q",
        "//host/path",
        "///three",
        "a:b/c",
        "1a:b",
        ":nothing",
        "",
        "*",
        "#f",
        "http://[::1]:80/x",
        "http://[::1]/x",
        "http://[fe80::1%25en0]:8080/",
        "http://[::1",
        "http://[not-an-address]/",
        "http://h:port/",
        "http://h:/",
        "http://a b/",
        "http://h/%zz",
        "http://h/a%2Fb/c%20d",
        "http://h/a b",
        "http://h/ü",
        "http://h%41/",
        "http://h%c3%bc/",
        "http://h/\u{1}",
        "HTTP://H/",
        "file:///etc/passwd",
        "spiffe://td/ns/a",
        "http://us er@h/",
        "http://h/a?b#c#d",
        "http://h/a?b?c",
        "foo/bar:baz",
    ];
    let mut expressions = Vec::new();
    for text in texts {
        expressions.push(format!("uri.parse({})", json!(text)));
        expressions.push(format!("uri.is_valid({})", json!(text)));
    }
    expressions.push("uri.is_valid(r.number)".to_owned());
    compare(
        &json!({"number": 1}),
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn yaml_is_that_of_kubectl() {
    let texts = [
        "",
        "null",
        "[a",
        "a: yes\nb: No\nc: on\nd: off\ne: \"yes\"\nf: n",
        "a: 017\nb: 0o17\nc: 0b11\nd: 0x1F\ne: 1_000\nf: +1\ng: 1e3\nh: .5",
        "a: 12:30:45\nb: 2001-01-01\nc: ~",
        "a: .inf",
        "a: 1\na: 2",
        "a: 1\n---\nb: 2",
        "1: a\ntrue: b\ny: c",
        "? [a]\n: b",
        "a: !!binary aGk=",
        "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}",
        "a: |\n  two\n  lines\nb: >\n  one\n  line\n",
    ];
    let mut expressions = vec![
        r#"yaml.unmarshal(yaml.marshal(r))"#.to_owned(),
        r#"yaml.unmarshal(yaml.marshal("text"))"#.to_owned(),
        r#"yaml.marshal({"a": "yes", "b": [1, {"c": null}], "d": {}, "e": [], "f": true, "g": "x"})"#
            .to_owned(),
    ];
    for text in texts {
        let text = json!(text);
        expressions.push(format!("yaml.unmarshal({text})"));
        expressions.push(format!("yaml.is_valid({text})"));
    }
    let request = json!({
        "words": ["yes", "no", "null", "~", "1", "0x1", "1.5", "", " a", "a: b", "#a", "- a"],
        "lines": "two\nlines\n", "number": 1.5, "nothing": null, "deep": {"a": [{"b": [[]]}]},
    });
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    compare(&request, &expressions);
}

#[test]
fn encodings_times_and_ranges() {
    compare(
        &json!({"o": {"a": {"b": 1}, "c": [1, 2]}}),
        &[
            r#"base64url.encode_no_pad("a?>")"#,
            r#"hex.encode("äb")"#,
            r#"hex.decode("6162")"#,
            r#"hex.decode("6")"#,
            r#"urlquery.encode("a b&c/ü")"#,
            r#"urlquery.decode("a+b%26c")"#,
            r#"urlquery.encode_object({"a": "x y", "b": ["1", "2"]})"#,
            r#"urlquery.decode_object("a=1&a=2&b=%20")"#,
            r#"yaml.unmarshal("a: [1, x, 2.5, true, null]\nb: {c: d}")"#,
            r#"yaml.is_valid("a: [")"#,
            r#"yaml.unmarshal(yaml.marshal(r.o))"#,
            r#"json.marshal_with_options({"a": [1]}, {"indent": "  ", "pretty": true})"#,
            r#"json.patch(r.o, [{"op": "add", "path": "/a/x", "value": 2}, {"op": "remove", "path": "c/0"}])"#,
            r#"object.subset(r.o, {"a": {"b": 1}})"#,
            r#"object.subset([1, 2, 3], [2, 3])"#,
            r#"glob.quote_meta("*.{a}?[b]\\,!-")"#,
            r#"semver.compare("1.2.3-rc1", "1.2.3")"#,
            r#"semver.is_valid("v1")"#,
            r#"units.parse("10Ki")"#,
            r#"units.parse("1.5m")"#,
            r#"units.parse_bytes("1.5GiB")"#,
            r#"units.parse_bytes("many")"#,
            r#"net.cidr_expand("10.0.0.4/30")"#,
            r#"sort(net.cidr_merge(["10.0.0.0/25", "10.0.0.128/25", "::1/128"]))"#,
            r#"net.cidr_contains_matches(["10.0.0.0/8", "11.0.0.0/8"], {"x": "11.1.1.1"})"#,
            r#"net.cidr_is_valid("10.0.0.0/33")"#,
            r#"time.parse_rfc3339_ns("2024-02-29T12:00:00.5+02:00")"#,
            r#"time.parse_ns("2006-01-02", "2024-02-29")"#,
            r#"time.parse_duration_ns("1h2m3.5s")"#,
            r#"time.date(1709208000000000000)"#,
            r#"time.clock([1709208000000000000, "UTC"])"#,
            r#"time.weekday(1709208000000000000)"#,
            r#"time.add_date(1706659200000000000, 0, 1, 0)"#,
            r#"time.diff(1709208000000000000, 1706659200000000000)"#,
            r#"time.format(1709208000000000000)"#,
            r#"time.format([1709208000000000000, "UTC", "2006-01-02 15:04"])"#,
            r#"uuid.parse("123e4567-e89b-12d3-a456-426614174000")"#,
            r#"count(uuid.rfc4122("x"))"#,
            r#"rand.intn("x", 1)"#,
            r#"opa.runtime().config"#,
            r#"trace("x")"#,
        ],
    );
}

/// What is left out ends the evaluation, and is named.
#[test]
fn unavailable_builtins_are_named() {
    for expression in [
        r#"http.send({"method": "get", "url": "http://localhost"})"#,
        r#"net.lookup_ip_addr("localhost")"#,
        r#"rego.parse_module("a", "package a")"#,
        r#"io.jwt.encode_sign({"alg": "HS256"}, {}, {"kty": "oct", "k": "AQ"})"#,
        r#"graphql.is_valid("{a}", "type Query {a: Int}")"#,
        "numbers.range_step(0, 1000000000, 1)",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let rego = format!("package t\n\nmain := {{\"allowed\": true, \"x\": {expression}}}\n");
        fs::write(folder.join("t.rego"), rego).unwrap();
        let error = policy(&built(folder), spec(Abi::Opa))
            .evaluate(&Review::raw(&raw("{}")))
            .unwrap_err();
        let name = expression.split('(').next().unwrap();
        assert!(error.to_string().contains(name), "{expression}: {error}");
    }
}

/// Each match looks for a `b` up to the end of the text: without a deadline this takes minutes.
#[test]
fn a_builtin_over_200_kb_ends_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let rego = "package t\n\nmain := {\"allowed\": count(regex.find_n(\"a.*b|a\", input.request.text, -1)) > 0}\n";
    fs::write(folder.path().join("t.rego"), rego).unwrap();
    let wasm = built(folder.path());
    let request = json!({ "text": "a".repeat(200_000) }).to_string();
    let request = raw(&request);
    let limits = assent_wasm::Limits {
        timeout: std::time::Duration::from_millis(500),
        ..Default::default()
    };
    let spec = assent_wasm::PolicySpec {
        limits,
        ..spec(Abi::Opa)
    };
    let error = policy(&wasm, spec).evaluate(&Review::raw(&request));
    assert_eq!(error.unwrap_err().reason(), "timeout");
}
