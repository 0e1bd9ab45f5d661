//! Builtins of the host, against OPA itself: each expression is evaluated by `opa eval`, and as a module in a
//! sandbox.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use assent_wasm::{Abi, Review};
use serde_json::{Value, json};

use crate::guests::{policy, raw, spec};

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
fn hashes() {
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
fn patterns_with_a_common_text() {
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
fn graphs() {
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
fn uris() {
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
fn certificates() {
    let names = ["leaf", "ca", "ed25519", "pss"];
    let mut input = serde_json::Map::new();
    for name in names {
        input.insert(name.to_owned(), json!(file(&format!("{name}.pem"))));
    }
    input.insert("csr".to_owned(), json!(file("leaf.csr.pem")));
    compare(
        &Value::Object(input),
        &[
            "crypto.x509.parse_certificates(r.leaf)",
            "crypto.x509.parse_certificates(r.ca)",
            "crypto.x509.parse_certificates(r.ed25519)",
            "crypto.x509.parse_certificates(r.pss)",
            r#"count(crypto.x509.parse_certificates(concat("", [r.leaf, r.ca])))"#,
            "crypto.x509.parse_certificates(base64.encode(r.leaf))[0].Subject",
            r#"sprintf("%d", [crypto.x509.parse_certificates(r.leaf)[0].SerialNumber])"#,
            r#"sprintf("%d", [crypto.x509.parse_certificates(r.ca)[0].PublicKey.N])"#,
            r#"sprintf("%d", [crypto.x509.parse_certificates(r.leaf)[0].PublicKey.X])"#,
            r#"crypto.x509.parse_certificates("nonsense")"#,
            r#"crypto.x509.parse_certificates("")"#,
            "crypto.x509.parse_certificates(r.csr)",
            "crypto.x509.parse_certificate_request(r.csr)",
            "crypto.x509.parse_certificate_request(base64.encode(r.csr))",
            "crypto.x509.parse_certificate_request(r.ca)",
            // Its critical extension is known to nobody.
            r#"crypto.x509.parse_and_verify_certificates(concat("", [r.ca, r.leaf]))"#,
            "crypto.x509.parse_and_verify_certificates(r.ca)",
            r#"crypto.x509.parse_and_verify_certificates("nonsense")"#,
        ],
    );
}

#[test]
fn chains() {
    let root = Issuer::root();
    let middle = root.issue("middle", true, &[]);
    let leaf = middle.issue(
        "leaf.example",
        false,
        &[rcgen::ExtendedKeyUsagePurpose::ServerAuth],
    );
    let client = middle.issue(
        "client.example",
        false,
        &[rcgen::ExtendedKeyUsagePurpose::ClientAuth],
    );
    let other = Issuer::root();
    let direct = root.issue("direct.example", false, &[]);
    let chain = |parts: &[&Issuer]| {
        parts
            .iter()
            .map(|part| part.certificate.pem())
            .collect::<String>()
    };
    compare(
        &json!({
            "good": chain(&[&root, &middle, &leaf]),
            "client": chain(&[&root, &middle, &client]),
            "foreign": chain(&[&other, &middle, &leaf]),
            "short": chain(&[&root, &leaf]),
            "direct": chain(&[&root, &direct]),
        }),
        &[
            "crypto.x509.parse_and_verify_certificates(r.good)",
            "crypto.x509.parse_and_verify_certificates(r.client)[0]",
            "crypto.x509.parse_and_verify_certificates(r.foreign)",
            "crypto.x509.parse_and_verify_certificates(r.short)",
            "crypto.x509.parse_and_verify_certificates(r.direct)[0]",
            "crypto.x509.parse_and_verify_certificates_with_options(r.good, {})",
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.good, {"DNSName": "leaf.example"})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.good, {"DNSName": "x.example"})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.client, {"KeyUsages": ["KeyUsageClientAuth"]})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.client, {"KeyUsages": {"KeyUsageAny"}})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.client, {"KeyUsages": ["KeyUsageCodeSigning"]})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.client, {"KeyUsages": ["Nonsense"]})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.good, {"CurrentTime": 1})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.good, {"CurrentTime": 1700000000000000000, "MaxConstraintComparisons": 5})[0]"#,
            r#"crypto.x509.parse_and_verify_certificates_with_options(r.good, {"Other": 1})"#,
        ],
    );
}

#[test]
fn private_keys() {
    let rsa = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
        .unwrap();
    let [p256, p384, ed] = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
    ]
    .map(|algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap());
    let certificate = |key: &rcgen::KeyPair| {
        let params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.self_signed(key).unwrap().pem()
    };
    compare(
        &json!({
            "rsa": rsa.serialize_pem(), "p256": p256.serialize_pem(), "p384": p384.serialize_pem(), "ed": ed.serialize_pem(),
            "rsa_cert": certificate(&rsa), "p256_cert": certificate(&p256), "ed_cert": certificate(&ed),
        }),
        &[
            "crypto.parse_private_keys(r.rsa)",
            "crypto.parse_private_keys(r.p256)",
            "crypto.parse_private_keys(r.p384)",
            "crypto.parse_private_keys(r.ed)",
            r#"sprintf("%d", [crypto.parse_private_keys(r.rsa)[0].D])"#,
            r#"count(crypto.parse_private_keys(concat("", [r.rsa, r.p256_cert, r.p256])))"#,
            r#"crypto.parse_private_keys("")"#,
            r#"crypto.parse_private_keys("nonsense")"#,
            "crypto.x509.parse_rsa_private_key(r.rsa)",
            "crypto.x509.parse_rsa_private_key(r.p256)",
            "crypto.x509.parse_rsa_private_key(r.p384)",
            "crypto.x509.parse_rsa_private_key(r.ed)",
            "crypto.x509.parse_rsa_private_key(base64.encode(r.rsa))",
            r#"crypto.x509.parse_rsa_private_key("")"#,
            "crypto.x509.parse_keypair(r.rsa_cert, r.rsa)",
            "crypto.x509.parse_keypair(r.p256_cert, r.p256)",
            "crypto.x509.parse_keypair(r.ed_cert, r.ed)",
            "crypto.x509.parse_keypair(r.rsa_cert, r.p256)",
            "crypto.x509.parse_keypair(r.p256_cert, r.p384)",
            "crypto.x509.parse_keypair(base64.encode(r.p256_cert), base64.encode(r.p256))",
        ],
    );
}

#[test]
fn tokens() {
    let mut input = signed_tokens();
    input["none"] = json!("eyJhbGciOiJub25lIn0.eyJhIjoxfQ.");
    let mut expressions = Vec::new();
    for algorithm in ["hs256", "hs384", "hs512"] {
        expressions.push(format!(
            "io.jwt.verify_{algorithm}(r.tokens.{algorithm}, \"secret\")"
        ));
        expressions.push(format!(
            "io.jwt.verify_{algorithm}(r.tokens.{algorithm}, \"other\")"
        ));
        expressions.push(format!(
            "io.jwt.decode_verify(r.tokens.{algorithm}, {{\"secret\": \"secret\"}})"
        ));
    }
    for algorithm in [
        "rs256", "rs384", "rs512", "ps256", "ps384", "ps512", "es256", "es384", "es512", "eddsa",
    ] {
        for key in ["public", "jwk", "set", "wrong"] {
            expressions.push(format!(
                "io.jwt.verify_{algorithm}(r.tokens.{algorithm}, r.keys.{algorithm}.{key})"
            ));
            expressions.push(format!(
                "io.jwt.decode_verify(r.tokens.{algorithm}, {{\"cert\": r.keys.{algorithm}.{key}}})"
            ));
        }
        expressions.push(format!("io.jwt.decode(r.tokens.{algorithm})"));
    }
    for more in [
        r#"io.jwt.decode(r.none)"#,
        r#"io.jwt.decode("a.b")"#,
        r#"io.jwt.decode("a.b.c")"#,
        r#"io.jwt.decode(r.tokens.nested)"#,
        r#"io.jwt.decode_verify(r.tokens.nested, {"secret": "secret"})"#,
        r#"io.jwt.decode_verify(r.none, {"secret": "secret"})"#,
        r#"io.jwt.verify_rs256(r.tokens.hs256, r.keys.rs256.public)"#,
        r#"io.jwt.verify_rs256(r.tokens.rs256, "nonsense")"#,
        r#"io.jwt.verify_es256(r.tokens.es256, r.keys.rs256.public)"#,
        r#"io.jwt.decode_verify(r.tokens.rs256, {"cert": r.keys.rs256.public, "alg": "RS512"})"#,
        r#"io.jwt.decode_verify(r.tokens.hs256, {"secret": "secret", "alg": "HS256"})"#,
        r#"io.jwt.decode_verify(r.tokens.hs256, {"secret": "secret", "unknown": 1})"#,
        r#"io.jwt.decode_verify(r.tokens.hs256, {})"#,
        r#"io.jwt.decode_verify(r.tokens.hs256, {"secret": "secret", "cert": r.keys.rs256.public})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "iss": "me", "aud": "you", "time": 1500000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "iss": "me", "time": 1500000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "iss": "he", "aud": "you", "time": 1500000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "him", "time": 1500000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you", "time": 2000000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you", "time": 1999999999999})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you", "time": 1000000000000})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you", "time": 999999999999})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you"})"#,
        r#"io.jwt.decode_verify(r.tokens.claims, {"secret": "secret", "aud": "you", "time": -1})"#,
        r#"io.jwt.decode_verify(r.tokens.critical, {"secret": "secret"})"#,
    ] {
        expressions.push(more.to_owned());
    }
    compare(
        &input,
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

/// Tokens that OPA signed, with the keys that verify them.
fn signed_tokens() -> Value {
    let rsa = || {
        rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap()
    };
    let of = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap();
    let kinds: [(&str, [rcgen::KeyPair; 2]); 5] = [
        ("rsa", [rsa(), rsa()]),
        (
            "es256",
            [
                of(&rcgen::PKCS_ECDSA_P256_SHA256),
                of(&rcgen::PKCS_ECDSA_P256_SHA256),
            ],
        ),
        (
            "es384",
            [
                of(&rcgen::PKCS_ECDSA_P384_SHA384),
                of(&rcgen::PKCS_ECDSA_P384_SHA384),
            ],
        ),
        (
            "es512",
            [
                of(&rcgen::PKCS_ECDSA_P521_SHA512),
                of(&rcgen::PKCS_ECDSA_P521_SHA512),
            ],
        ),
        (
            "eddsa",
            [of(&rcgen::PKCS_ED25519), of(&rcgen::PKCS_ED25519)],
        ),
    ];
    let mut pems = serde_json::Map::new();
    for (kind, [key, other]) in &kinds {
        let pem = json!({
            "private": key.serialize_pem(), "public": key.public_key_pem(), "wrong": other.public_key_pem(),
        });
        pems.insert((*kind).to_owned(), pem);
    }
    let rego = r#"package t
kind := {"rs256": "rsa", "rs384": "rsa", "rs512": "rsa", "ps256": "rsa", "ps384": "rsa", "ps512": "rsa", "es256": "es256", "es384": "es384", "es512": "es512", "eddsa": "eddsa"}
name(algorithm) := "EdDSA" if algorithm == "eddsa"
name(algorithm) := upper(algorithm) if algorithm != "eddsa"
jwk[algorithm] := crypto.x509.parse_rsa_private_key(input[kind[algorithm]].private) if some algorithm, _ in kind
public[algorithm] := object.remove(jwk[algorithm], ["d", "p", "q", "dp", "dq", "qi"]) if some algorithm, _ in kind
secret := {"kty": "oct", "k": "c2VjcmV0"}
claims := {"a": 1, "big": 12345678901234567890123}
tokens[algorithm] := io.jwt.encode_sign({"alg": name(algorithm), "kid": "one"}, claims, jwk[algorithm]) if some algorithm, _ in kind
tokens[lower(algorithm)] := io.jwt.encode_sign({"alg": algorithm, "typ": "JWT"}, claims, secret) if some algorithm in ["HS256", "HS384", "HS512"]
tokens["nested"] := io.jwt.encode_sign_raw(`{"alg":"HS256","typ":"x","cty":"JWT"}`, tokens.hs256, json.marshal(secret))
tokens["claims"] := io.jwt.encode_sign({"alg": "HS256"}, {"iss": "me", "aud": ["them", "you"], "exp": 2000, "nbf": 1000}, secret)
tokens["critical"] := io.jwt.encode_sign({"alg": "HS256", "crit": ["strange"], "strange": 1}, claims, secret)
keys[algorithm] := {
	"public": input[k].public,
	"wrong": input[k].wrong,
	"jwk": json.marshal(public[algorithm]),
	"set": json.marshal({"keys": [
		{"kty": "oct", "k": "c2VjcmV0", "kid": "zero"},
		object.union(public[algorithm], {"kid": "one", "alg": name(algorithm)}),
	]}),
} if some algorithm, k in kind
"#;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.rego"), rego).unwrap();
    fs::write(
        folder.path().join("input.json"),
        Value::Object(pems).to_string(),
    )
    .unwrap();
    let made = opa(
        folder.path(),
        &[
            "eval",
            "-d",
            "t.rego",
            "-i",
            "input.json",
            "-f",
            "raw",
            "{\"tokens\": data.t.tokens, \"keys\": data.t.keys}",
        ],
    );
    serde_json::from_slice(&made).unwrap()
}

/// A certificate and the key that it is for.
struct Issuer {
    params: rcgen::CertificateParams,
    key: rcgen::KeyPair,
    certificate: rcgen::Certificate,
}

impl Issuer {
    fn root() -> Self {
        let (params, key) = Self::params("root", true, &[]);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            params,
            key,
            certificate,
        }
    }

    fn issue(&self, name: &str, ca: bool, uses: &[rcgen::ExtendedKeyUsagePurpose]) -> Self {
        let (params, key) = Self::params(name, ca, uses);
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        Self {
            params,
            key,
            certificate,
        }
    }

    fn params(
        name: &str,
        ca: bool,
        uses: &[rcgen::ExtendedKeyUsagePurpose],
    ) -> (rcgen::CertificateParams, rcgen::KeyPair) {
        let names = if ca {
            Vec::new()
        } else {
            vec![name.to_owned()]
        };
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = uses.to_vec();
        if ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        }
        (params, rcgen::KeyPair::generate().unwrap())
    }
}

#[test]
fn schemas() {
    let cases: &[(&str, &[&str])] = &[
        (
            r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 1}}}"#,
            &[
                r#"{"a": 1}"#,
                r#"{"a": 0}"#,
                r#"{}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1.0}"#,
                r#"{"a": 1.5}"#,
                "[]",
            ],
        ),
        (
            r#"{"additionalProperties": false, "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "string"}}}"#,
            &[
                r#"{"a": 1}"#,
                r#"{"x-b": "s"}"#,
                r#"{"x-b": 1}"#,
                r#"{"b": 1}"#,
            ],
        ),
        (
            r#"{"additionalProperties": {"type": "number"}, "minProperties": 1, "maxProperties": 2}"#,
            &[
                "{}",
                r#"{"a": 1}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1, "b": 2, "c": 3}"#,
            ],
        ),
        (
            r#"{"items": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"}, "uniqueItems": true, "minItems": 1, "maxItems": 2}"#,
            &[
                "[]",
                r#"["ab"]"#,
                r#"["a"]"#,
                r#"["abcd"]"#,
                r#"["bcd"]"#,
                r#"["ab", "ab"]"#,
                r#"["ab", "ac", "ad"]"#,
                r#"["äöü"]"#,
                "[1, 1.0]",
            ],
        ),
        (
            r#"{"items": [{"type": "string"}, {"type": "number"}], "additionalItems": false}"#,
            &[r#"["a", 1]"#, r#"["a"]"#, r#"[1, "a"]"#, r#"["a", 1, 2]"#],
        ),
        (
            r#"{"items": [{"type": "string"}], "additionalItems": {"type": "number"}}"#,
            &[r#"["a", 1, "x"]"#, r#"["a", 1]"#],
        ),
        (r#"{"contains": {"const": 3}}"#, &["[1, 2, 3]", "[1]", "[]"]),
        (
            r#"{"properties": {"n": {"multipleOf": 0.1, "maximum": 10, "exclusiveMinimum": 0}}}"#,
            &[
                r#"{"n": 0.3}"#,
                r#"{"n": 0.35}"#,
                r#"{"n": 0}"#,
                r#"{"n": 10}"#,
                r#"{"n": 10.1}"#,
                r#"{"n": "x"}"#,
            ],
        ),
        (
            r#"{"properties": {"n": {"minimum": 5, "exclusiveMinimum": true, "maximum": 7, "exclusiveMaximum": true}}}"#,
            &[r#"{"n": 5}"#, r#"{"n": 6}"#, r#"{"n": 7}"#],
        ),
        (
            r#"{"enum": [{"a": 1}, [1]]}"#,
            &[r#"{"a": 1}"#, r#"{"a": 1.0}"#, "[1]", "[2]"],
        ),
        (
            r#"{"properties": {"a": {"type": ["string", "null"]}}}"#,
            &[
                r#"{"a": null}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1}"#,
                r#"{"a": true}"#,
            ],
        ),
        (
            r##"{"definitions": {"p": {"type": "string"}}, "properties": {"a": {"$ref": "#/definitions/p"}}}"##,
            &[r#"{"a": "x"}"#, r#"{"a": 1}"#],
        ),
        (
            r##"{"properties": {"next": {"$ref": "#"}}, "required": ["v"]}"##,
            &[r#"{"v": 1, "next": {"v": 2}}"#, r#"{"v": 1, "next": {}}"#],
        ),
        (
            r##"{"definitions": {"a~b/c": {"type": "number"}}, "items": {"$ref": "#/definitions/a~0b~1c"}}"##,
            &["[1]", r#"["x"]"#],
        ),
        (
            r#"{"not": {"required": ["bad"]}}"#,
            &["{}", r#"{"bad": 1}"#],
        ),
        (
            r#"{"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}"#,
            &[r#"{"a": 1, "b": 1}"#, r#"{"a": 1}"#, r#"{"c": 1}"#, "{}"],
        ),
        (
            r#"{"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}"#,
            &["{}", r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#, r#"{"c": 1}"#],
        ),
        (
            r#"{"propertyNames": {"pattern": "^[a-z]+$"}}"#,
            &[r#"{"abc": 1}"#, r#"{"A": 1}"#],
        ),
        (
            r#"{"$schema": "http://json-schema.org/draft-04/schema#", "const": 1, "properties": {"a": {"type": "string"}}}"#,
            &[r#"{"a": "x"}"#, r#"{"a": 1}"#],
        ),
        (
            r#"{"properties": {"t": {"format": "date-time"}, "d": {"format": "date"}, "i": {"format": "ipv4"}, "j": {"format": "ipv6"}, "h": {"format": "hostname"}, "u": {"format": "uuid"}, "l": {"format": "uri"}, "e": {"format": "email"}, "r": {"format": "regex"}, "p": {"format": "json-pointer"}, "x": {"format": "strange"}}}"#,
            &[
                r#"{"t": "2024-01-02T03:04:05Z", "d": "2024-02-29", "i": "1.2.3.4", "j": "::1", "h": "a-b.c", "u": "123e4567-e89b-12d3-a456-426614174000", "l": "https://a/b", "e": "a@b.c", "r": "^a$", "p": "/a/0", "x": "?"}"#,
                r#"{"t": "yesterday", "d": "2023-02-29", "i": "1.2.3", "j": "1.2.3.4", "h": "-a", "u": "1", "l": "a/b", "e": "a", "r": "(", "p": "a", "x": "?"}"#,
                r#"{"t": "03:04:05", "d": "2024-1-2", "i": "256.1.1.1", "j": ":::1", "h": "a..b", "l": "\\", "e": "A <a@b.c>", "p": "/~2"}"#,
            ],
        ),
    ];
    let mut expressions = Vec::new();
    for (schema, documents) in cases {
        for document in *documents {
            // OPA's type checker wants lists as text.
            let text = json!(document);
            let call = match document.starts_with('[') {
                true => format!("json.match_schema({text}, {schema})"),
                false => format!("json.match_schema({document}, {schema})"),
            };
            expressions.push(format!(
                "[m[0], sort({{[e.type, e.field] | some e in m[1]}})] if m := {call}"
            ));
        }
        let text = json!(schema);
        expressions.push(format!(
            "json.match_schema({}, {text})[0]",
            json!(documents[0])
        ));
        expressions.push(format!("json.verify_schema({schema})"));
    }
    // Which of the alternatives came closest is a matter of taste.
    for (schema, documents) in [
        (
            r#"{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"b": 1}"#, "{}"],
        ),
        (
            r#"{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"a": 1, "b": 1}"#, "{}"],
        ),
        (
            r#"{"allOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"a": 1, "b": 1}"#, "{}"],
        ),
    ] {
        for document in documents {
            expressions.push(format!("json.match_schema({document}, {schema})[0]"));
        }
    }
    for bad in [
        r#"{"type": "strange"}"#,
        r#"{"type": 1}"#,
        r#"{"type": ["string", "string"]}"#,
        r#"{"properties": []}"#,
        r#"{"required": "a"}"#,
        r#"{"required": ["a", "a"]}"#,
        r#"{"minLength": -1}"#,
        r#"{"minLength": 1.5}"#,
        r#"{"minLength": 3, "maxLength": 2}"#,
        r#"{"minItems": 3, "maxItems": 2}"#,
        r#"{"multipleOf": 0}"#,
        r#"{"pattern": "("}"#,
        r#"{"patternProperties": {"(": {}}}"#,
        r#"{"enum": [1, 1]}"#,
        r#"{"enum": 1}"#,
        r#"{"exclusiveMinimum": true}"#,
        r##"{"$ref": "#/nowhere"}"##,
        r#"{"items": 1}"#,
        r#"{"additionalProperties": 1}"#,
        r#"{"dependencies": {"a": 1}}"#,
        r#"{"not": 1}"#,
        r#"{"oneOf": {}}"#,
        r#"{"definitions": {"a": 1}}"#,
        r#"{"$schema": 1}"#,
        r#""{""#,
        r#""[]""#,
        r#"{"unknown": {"type": "strange"}}"#,
    ] {
        expressions.push(format!("json.verify_schema({bad})[0]"));
        expressions.push(format!("json.match_schema({{}}, {bad})"));
    }
    compare(
        &json!({}),
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn templates() {
    let texts = [
        "plain",
        "{{.name}} and {{ .name }}",
        "{{.missing}} {{.object.missing}}",
        "{{.object.a.b}} {{.object}} {{.list}} {{.number}} {{.float}} {{.yes}} {{.null}}",
        "{{range $i, $name := .list}}{{if $i}},{{end}}hello {{$name}}{{end}}",
        "{{range .list}}<{{.}}>{{else}}none{{end}}{{range .empty}}x{{else}}none{{end}}",
        "{{range $k, $v := .object}}{{$k}}={{$v}};{{end}}",
        "{{range .missing}}x{{else}}none{{end}}",
        "{{if .yes}}yes{{else}}no{{end}}{{if .no}}yes{{else if .yes}}second{{else}}no{{end}}",
        "{{if .empty}}a{{end}}{{if .zero}}b{{end}}{{if .null}}c{{end}}{{if not .no}}d{{end}}",
        "{{with .object}}{{.a.b}} {{$.name}}{{else}}x{{end}}{{with .missing}}x{{else}}{{.name}}{{end}}",
        "{{$x := .name}}{{$x}}{{$x = .number}}{{$x}}",
        "a {{- .name -}} b {{ .name -}}  c",
        "x {{- /* a comment */ -}} y{{/* another */}}z",
        "{{len .list}} {{len .name}} {{.list | len}} {{len .object}}",
        "{{index .list 0}} {{index .object \"a\" \"b\"}}",
        "{{index .list 9}}",
        "{{eq .name \"x\"}} {{eq .name \"bob\"}} {{ne .name `bob`}} {{eq 1 1}} {{lt 1 2}} {{ge 1 2}} {{eq .name \"a\" \"bob\"}}",
        "{{eq .number 5}}",
        "{{and .yes .name}} {{or .no .name}} {{and .no .nothing.at.all}}",
        "{{print 1 2 \"a\" \"b\" 3}} {{println .name 1}}",
        "{{(index .list 0)}} {{.object.a | print}}",
        "{{range .list}}{{$.name}}{{end}}",
        "{{.name.x}}",
        "{{.name",
        "{{end}}",
        "{{if .x}}",
        "{{nofunction .x}}",
        "{{$undeclared}}",
        "{{nil}}",
        "{{range .number}}x{{end}}",
        "}} {{`{{`}}",
    ];
    let expressions: Vec<String> = texts
        .iter()
        .map(|text| format!("strings.render_template({}, r)", json!(text)))
        .collect();
    compare(
        &json!({
            "name": "bob", "number": 5, "float": 1.5, "zero": 0, "yes": true, "no": false, "null": null,
            "list": ["a", "b"], "empty": [], "object": {"a": {"b": "deep"}, "z": [1, null]},
        }),
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
