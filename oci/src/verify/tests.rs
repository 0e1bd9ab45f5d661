#![allow(clippy::unwrap_used)]

use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use super::*;

const MANIFEST: &[u8] = br#"{"schemaVersion":2}"#;

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

fn any_of(keys: &[&KeyPair]) -> Keys {
    let pems: Vec<String> = keys.iter().map(|key| key.public_key_pem()).collect();
    Keys::any_of(&pems).unwrap()
}

fn fingerprint(key: &KeyPair) -> Fingerprint {
    any_of(&[key]).fingerprints().next().unwrap()
}

fn sign(key: &KeyPair, message: &[u8]) -> String {
    STANDARD.encode(key.sign(message).unwrap())
}

/// As `cosign sign` writes it.
fn payload(digest: Digest) -> Value {
    json!({
        "critical": {
            "identity": {"docker-reference": "registry.example/p"},
            "image": {"docker-manifest-digest": digest.to_string()},
            "type": "cosign container image signature"
        },
        "optional": {"team": "a", "count": 1}
    })
}

fn statement(digest: Digest) -> Value {
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": digest.hex()}, "annotations": {"team": "a"}}],
        "predicateType": SIGN_PREDICATE,
        "predicate": {}
    })
}

fn envelope(key: &KeyPair, kind: &str, payload: &Value) -> Value {
    let payload = payload.to_string();
    let message = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
    json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": STANDARD.encode(&payload),
            "payloadType": kind,
            "signatures": [{"sig": sign(key, message.as_bytes())}]
        }
    })
}

/// What a check of `keys` says after `look`.
fn outcome(
    keys: &Keys,
    look: impl FnOnce(&mut Check<'_>),
) -> Result<BTreeSet<Fingerprint>, Rejected> {
    let digest = Digest::of(MANIFEST);
    let manifest = MANIFEST;
    let mut check = Check::new(keys, Subject { manifest, digest });
    look(&mut check);
    check.finish()
}

#[track_caller]
fn check_simple(signer: &KeyPair, payload: &Value, keys: &Keys, expect: Result<(), Rejected>) {
    let payload = payload.to_string();
    let signature = sign(signer, payload.as_bytes());
    let found = outcome(keys, |check| check.simple(payload.as_bytes(), &signature));
    assert_eq!(found, expect.map(|()| [fingerprint(signer)].into()));
}

#[track_caller]
fn check_bundle(signer: &KeyPair, bundle: &Value, keys: &Keys, expect: Result<(), Rejected>) {
    let found = outcome(keys, |check| check.bundle(bundle.to_string().as_bytes()));
    assert_eq!(found, expect.map(|()| [fingerprint(signer)].into()));
}

#[test]
fn keys_of_every_kind_sign() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let digest = Digest::of(MANIFEST);
        check_simple(&key, &payload(digest), &any_of(&[&key]), Ok(()));
        let bundle = envelope(&key, "application/vnd.in-toto+json", &statement(digest));
        check_bundle(&key, &bundle, &any_of(&[&key]), Ok(()));
    }
}

/// By OpenSSL, because what signs here must not be what verifies: a P-384 key with the
/// SHA-256 that cosign uses for all curves.
#[test]
fn signatures_of_another_program_are_verified() {
    let keys = Keys::any_of(&[include_str!("testdata/p384.pub")]).unwrap();
    let (payload, signature) = (
        include_bytes!("testdata/payload.json"),
        include_str!("testdata/payload.p384.sig"),
    );
    let manifest: &[u8] = b"";
    let digest = Digest::of(manifest);
    let mut check = Check::new(&keys, Subject { manifest, digest });
    let (start, end) = signature.split_at(64);
    check.simple(payload, &format!("{start}\n{end}\n"));
    assert_eq!(check.finish(), Ok(keys.fingerprints().collect()));
    // As `openssl pkey -pubin -in p384.pub -outform der | sha256sum` says.
    let name = keys.fingerprints().next().unwrap().to_string();
    assert_eq!(name, include_str!("testdata/p384.sha256")[..16]);
}

#[test]
fn one_of_several_keys_is_enough() {
    let (a, b) = (key(), key());
    let payload = payload(Digest::of(MANIFEST));
    check_simple(&b, &payload, &any_of(&[&a, &b]), Ok(()));
    let both = a.public_key_pem() + &b.public_key_pem();
    check_simple(&b, &payload, &Keys::any_of(&[both]).unwrap(), Ok(()));
}

#[test]
fn nothing_else_is_a_signature() {
    let (own, other) = (key(), key());
    let keys = any_of(&[&own]);
    let digest = Digest::of(MANIFEST);
    let good = payload(digest);
    check_simple(&other, &good, &keys, Err(Rejected::OtherKey(1)));
    let copied = payload(Digest::of(b"other"));
    check_simple(&own, &copied, &keys, Err(Rejected::OtherContent));
    let mut atomic = good.clone();
    atomic["critical"]["type"] = "atomic container signature".into();
    check_simple(&own, &atomic, &keys, Err(Rejected::OtherContent));
    check_simple(&own, &json!({}), &keys, Err(Rejected::Unreadable));
    let none = outcome(&keys, |_| {});
    assert_eq!(none, Err(Rejected::Unsigned));
    let garbage = outcome(&keys, |check| check.simple(b"{}", "no base64!"));
    assert_eq!(garbage, Err(Rejected::Unreadable));
}

#[test]
fn a_payload_that_was_changed_has_no_signature() {
    let own = key();
    let good = payload(Digest::of(b"other")).to_string();
    let signature = sign(&own, good.as_bytes());
    let changed = payload(Digest::of(MANIFEST)).to_string();
    let found = outcome(&any_of(&[&own]), |check| {
        check.simple(changed.as_bytes(), &signature);
    });
    assert_eq!(found, Err(Rejected::OtherKey(1)));
}

#[test]
fn bundles_of_other_things_are_no_signatures() {
    let (own, other) = (key(), key());
    let keys = any_of(&[&own]);
    let digest = Digest::of(MANIFEST);
    let in_toto = "application/vnd.in-toto+json";
    let by_other = envelope(&other, in_toto, &statement(digest));
    check_bundle(&own, &by_other, &keys, Err(Rejected::OtherKey(1)));
    let mut provenance = statement(digest);
    provenance["predicateType"] = "https://slsa.dev/provenance/v1".into();
    let mut future = statement(digest);
    future["_type"] = "https://in-toto.io/Statement/v9".into();
    for wrong in [provenance, future, statement(Digest::of(b"other"))] {
        let bundle = envelope(&own, in_toto, &wrong);
        check_bundle(&own, &bundle, &keys, Err(Rejected::OtherContent));
    }
    let text = envelope(&own, "text/plain", &statement(digest));
    check_bundle(&own, &text, &keys, Err(Rejected::OtherContent));
    let mut retyped = text;
    retyped["dsseEnvelope"]["payloadType"] = in_toto.into();
    check_bundle(&own, &retyped, &keys, Err(Rejected::OtherKey(1)));
    for garbage in [json!({}), json!([]), json!({"dsseEnvelope": {}})] {
        check_bundle(&own, &garbage, &keys, Err(Rejected::Unreadable));
    }
}

#[test]
fn a_message_signature_is_over_the_manifest() {
    let own = key();
    let keys = any_of(&[&own]);
    let bundle = |message| json!({"messageSignature": {"signature": sign(&own, message)}});
    check_bundle(&own, &bundle(MANIFEST), &keys, Ok(()));
    check_bundle(&own, &bundle(b"other"), &keys, Err(Rejected::OtherKey(1)));
}

#[test]
fn annotations_must_be_there_word_for_word() {
    let own = key();
    let keys = |name: &str, value: &str| {
        let annotations = [(name.to_owned(), value.to_owned())].into();
        Keys::all_of(&[own.public_key_pem()], annotations).unwrap()
    };
    let digest = Digest::of(MANIFEST);
    let simple = payload(digest);
    let bundle = envelope(&own, "application/vnd.in-toto+json", &statement(digest));
    check_simple(&own, &simple, &keys("team", "a"), Ok(()));
    check_bundle(&own, &bundle, &keys("team", "a"), Ok(()));
    for keys in [keys("team", "b"), keys("count", "1"), keys("env", "")] {
        check_simple(&own, &simple, &keys, Err(Rejected::Annotations));
        check_bundle(&own, &bundle, &keys, Err(Rejected::Annotations));
    }
}

#[test]
fn where_all_must_sign_all_must() {
    let (a, b) = (key(), key());
    let pems = [a.public_key_pem(), b.public_key_pem()];
    let keys = Keys::all_of(&pems, BTreeMap::new()).unwrap();
    let payload = payload(Digest::of(MANIFEST)).to_string();
    let by = |check: &mut Check<'_>, key| {
        check.simple(payload.as_bytes(), &sign(key, payload.as_bytes()));
    };
    let expect = Rejected::TooFew {
        signed: 1,
        wanted: 2,
    };
    assert_eq!(outcome(&keys, |check| by(check, &a)), Err(expect));
    let both = outcome(&keys, |check| {
        by(check, &a);
        by(check, &a);
        assert!(!check.is_done());
        by(check, &b);
        assert!(check.is_done());
    });
    assert_eq!(both, Ok([fingerprint(&a), fingerprint(&b)].into()));
}

#[test]
fn keys_that_are_none_are_refused() {
    let none: [&str; 0] = [];
    assert_eq!(Keys::any_of(&none).unwrap_err(), Error::None);
    let private = key().serialize_pem();
    let cut = key().public_key_pem().replace("-----END", "");
    for bad in ["", "key", private.as_str(), cut.as_str()] {
        assert_eq!(Keys::any_of(&[bad]).unwrap_err(), Error::Pem, "{bad}");
    }
    let weak = include_str!("testdata/rsa1024.pub");
    let error = Keys::any_of(&[weak]).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("2048"), "{error}");
}
