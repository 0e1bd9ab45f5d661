//! Certificates, keys and tokens.

use super::*;

#[test]
fn certificates_match_opa() {
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
fn chains_match_opa() {
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
fn tokens_match_opa() {
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
