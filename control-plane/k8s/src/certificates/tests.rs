#![allow(clippy::unwrap_used)]
use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use serde_json::Value;

use super::{
    Authority, CaManager, Lives, Mode, SignError, Step,
    secret::{self, Stored},
};
use crate::{
    names,
    testing::{Requests, not_found, scripted},
};

const HOUR: Duration = Duration::from_secs(60 * 60);

fn mk_stored() -> Stored {
    step(Stored::default(), Step::Create)
}

fn step(stored: Stored, step: Step) -> Stored {
    stored
        .after(step, SystemTime::now(), &Lives::default())
        .unwrap()
}

fn authority(stored: &Stored) -> Authority {
    stored.authority(Lives::default()).unwrap().unwrap()
}

fn mk_csr(key: &KeyPair, names: &[&str]) -> Vec<u8> {
    let mut params = CertificateParams::default();
    for name in names {
        params
            .subject_alt_names
            .push(SanType::DnsName((*name).try_into().unwrap()));
    }
    params.serialize_request(key).unwrap().der().to_vec()
}

fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

/// Whether who trusts `bundle` takes `chain` for `name`, on a clock that is off.
fn accepts_at(bundle: &str, chain: &str, name: &str, now: SystemTime) -> bool {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let verifier = verifier.build().unwrap();
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let chain: Vec<_> = chain.collect::<Result<_, _>>().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    let verified = verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], now);
    verified.is_ok()
}

fn accepts(bundle: &str, chain: &str, name: &str) -> bool {
    accepts_at(bundle, chain, name, SystemTime::now())
}

#[test]
fn leaf_ignores_names_of_the_request() {
    let authority = authority(&mk_stored());
    let csr = mk_csr(&p256(), &["kubernetes.default.svc"]);
    let (name, address) = ("policy-server-default.assent-system.svc", "10.0.0.7");
    let addresses: [IpAddr; 1] = [address.parse().unwrap()];
    let signed = authority
        .sign_csr(&csr, &[name.to_owned()], &addresses)
        .unwrap();
    for good in [name, address] {
        assert!(
            accepts(&signed.bundle_pem, &signed.chain_pem, good),
            "{good}"
        );
    }
    for bad in ["kubernetes.default.svc", "10.0.0.8", "assent-evaluator"] {
        assert!(
            !accepts(&signed.bundle_pem, &signed.chain_pem, bad),
            "{bad}"
        );
    }
    assert_eq!(signed.bundle_pem, authority.bundle_pem());
}

#[test]
fn leaf_is_valid_for_serving_only() {
    let authority = authority(&mk_stored());
    let signed = authority
        .sign_csr(&mk_csr(&p256(), &[]), &["a".into()], &[])
        .unwrap();
    let der = CertificateDer::from_pem_slice(signed.chain_pem.as_bytes()).unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&der).unwrap();
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth && !usage.any);
    assert!(!leaf.is_ca());
    assert!(!leaf.key_usage().unwrap().unwrap().value.key_cert_sign());
    let life = signed.not_after.duration_since(SystemTime::now()).unwrap();
    assert!(life <= Lives::default().leaf && life > Lives::default().leaf - HOUR);
    assert!(signed.renew_at < signed.not_after);
}

#[test]
fn leaf_is_accepted_by_clocks_one_hour_off() {
    let authority = authority(&mk_stored());
    let leaf = authority.serving_leaf(&["a".into()], &[]).unwrap();
    let now = SystemTime::now();
    let at = |now| accepts_at(authority.bundle_pem(), &leaf.chain_pem, "a", now);
    let almost = HOUR - Duration::from_secs(60);
    assert!(at(now - almost) && at(now + almost));
    assert!(!at(now - HOUR * 2) && !at(now + Lives::default().leaf + HOUR));
}

#[test]
fn weak_and_unknown_keys_are_refused() {
    let authority = authority(&mk_stored());
    let sign = |key: &KeyPair| authority.sign_csr(&mk_csr(key, &[]), &["a".into()], &[]);
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    for key in [p256(), p384, rsa(rcgen::RsaKeySize::_2048)] {
        let signed = sign(&key).unwrap();
        assert!(accepts(&signed.bundle_pem, &signed.chain_pem, "a"));
        // It is for the requester's key and no other.
        let der = CertificateDer::from_pem_slice(signed.chain_pem.as_bytes()).unwrap();
        let (_, leaf) = x509_parser::parse_x509_certificate(&der).unwrap();
        let raw = leaf.public_key().subject_public_key.data.to_vec();
        assert_eq!(raw, key.public_key_raw());
    }
    for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P521_SHA512] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let error = sign(&key).unwrap_err();
        assert!(matches!(error, SignError::Request(_)), "{error}");
    }
}

#[test]
fn request_must_be_signed_by_its_key() {
    let authority = authority(&mk_stored());
    let mut csr = mk_csr(&p256(), &[]);
    let last = csr.len() - 1;
    csr[last] ^= 1;
    for bad in [csr, Vec::new(), b"nonsense".to_vec()] {
        let error = authority.sign_csr(&bad, &[], &[]).unwrap_err();
        assert!(matches!(error, SignError::Request(_)), "{error}");
    }
}

#[test]
fn leaf_never_outlives_its_authority() {
    let now = SystemTime::now();
    let old = now - (Lives::default().authority - HOUR);
    let stored = Stored::default()
        .after(Step::Create, old, &Lives::default())
        .unwrap();
    let authority = authority(&stored);
    let signed = authority
        .sign_csr(&mk_csr(&p256(), &[]), &["a".into()], &[])
        .unwrap();
    assert!(signed.not_after <= now + HOUR);
    assert!(signed.renew_at <= now + HOUR);
}

#[test]
fn rotation_keeps_old_and_new_leaves_trusted() {
    let one = mk_stored();
    let leaf = |stored: &Stored| authority(stored).serving_leaf(&["a".into()], &[]).unwrap();
    let bundle = |stored: &Stored| authority(stored).bundle_pem().to_owned();
    let prepared = step(one.clone(), Step::Prepare);
    let promoted = step(prepared.clone(), Step::Promote);
    let dropped = step(promoted.clone(), Step::Drop);
    let (old, new) = (leaf(&one), leaf(&promoted));
    // The old one signs until the new one was published for long enough.
    assert!(accepts(&bundle(&one), &leaf(&prepared).chain_pem, "a"));
    for stored in [&prepared, &promoted] {
        assert!(accepts(&bundle(stored), &old.chain_pem, "a"));
        assert!(accepts(&bundle(stored), &new.chain_pem, "a"));
    }
    assert!(!accepts(&bundle(&one), &new.chain_pem, "a"));
    assert!(!accepts(&bundle(&dropped), &old.chain_pem, "a"));
    assert!(accepts(&bundle(&dropped), &new.chain_pem, "a"));
    assert!(!authority(&one).signs_like(&authority(&promoted)));
    assert!(authority(&one).signs_like(&authority(&prepared)));
}

#[test]
fn what_is_written_is_read() {
    let mut secret = mk_stored().write(Secret::default());
    let asks = |secret: &Secret| Stored::read(secret).unwrap().dates().unwrap().asked;
    assert!(!asks(&secret));
    let notes = secret.metadata.annotations.as_mut().unwrap();
    notes.insert(crate::names::ROTATE_ANNOTATION.into(), "now".into());
    assert!(asks(&secret));
    let stored = step(Stored::read(&secret).unwrap(), Step::Prepare);
    let stored = step(step(stored, Step::Promote), Step::Prepare);
    let secret = stored.write(secret);
    assert!(!asks(&secret), "it was answered");
    let again = Stored::read(&secret).unwrap();
    assert_eq!(
        authority(&again).bundle_pem(),
        authority(&stored).bundle_pem()
    );
    assert_eq!(
        assent_pki::split(authority(&again).bundle_pem())
            .unwrap()
            .len(),
        3
    );
    let dates = again.dates().unwrap();
    assert!(dates.next.is_some() && dates.previous.len() == 1);
    assert!(dates.signing_since.is_some());
    // And once it is over nothing is left behind.
    let rest = step(step(again, Step::Promote), Step::Drop).write(secret);
    let keys: Vec<_> = rest.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["ca.crt", "ca.key"]);
}

#[track_caller]
fn check_broken(change: impl FnOnce(&mut std::collections::BTreeMap<String, ByteString>)) {
    let mut secret = mk_stored().write(Secret::default());
    change(secret.data.as_mut().unwrap());
    let read = Stored::read(&secret).and_then(|stored| stored.authority(Lives::default()));
    let error = read.unwrap_err();
    assert!(error.to_string().contains("delete the Secret"), "{error}");
}

#[test]
fn broken_secret_is_reported_and_not_used() {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    check_broken(|data| drop(data.remove("ca.key")));
    check_broken(|data| drop(data.remove("ca.crt")));
    check_broken(|data| drop(data.insert("ca.key".into(), bytes("nonsense"))));
    check_broken(|data| drop(data.insert("ca.crt".into(), bytes("nonsense"))));
    check_broken(|data| drop(data.insert("ca.crt".into(), ByteString(vec![0xff]))));
    check_broken(|data| drop(data.insert("ca-previous.crt".into(), bytes("nonsense"))));
    let other = p256().serialize_pem();
    check_broken(|data| drop(data.insert("ca.key".into(), bytes(&other))));
    // A leaf with its key does not sign.
    let leaf = authority(&mk_stored())
        .serving_leaf(&["a".into()], &[])
        .unwrap();
    check_broken(|data| {
        data.insert("ca.crt".into(), bytes(&leaf.chain_pem));
        data.insert("ca.key".into(), bytes(&leaf.key_pem));
    });
}

#[test]
fn debug_output_hides_keys() {
    let authority = authority(&mk_stored());
    let leaf = authority.serving_leaf(&["a".into()], &[]).unwrap();
    for text in [format!("{authority:?}"), format!("{leaf:?}")] {
        assert!(!text.contains("KEY"), "{text}");
    }
}

/// A root, and a signing certificate below it, as cert-manager writes them.
fn mk_given() -> Secret {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = rcgen::CertifiedIssuer::self_signed(params.clone(), p256()).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "below");
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    let below = params.signed_by(&key, &root).unwrap();
    let data = [
        ("ca.crt", root.pem()),
        ("tls.crt", below.pem()),
        ("tls.key", key.serialize_pem()),
    ];
    let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())));
    Secret {
        data: Some(data.into()),
        ..Secret::default()
    }
}

#[test]
fn provided_authority_signs_below_its_root() {
    let given = secret::given(&mk_given(), &[], Lives::default()).unwrap();
    let leaf = given.serving_leaf(&["a".into()], &[]).unwrap();
    assert!(accepts(given.bundle_pem(), &leaf.chain_pem, "a"));
    let old = authority(&mk_stored()).bundle_pem().to_owned();
    let both = secret::given(&mk_given(), std::slice::from_ref(&old), Lives::default()).unwrap();
    assert!(both.bundle_pem().contains(&old));
    let mut without = mk_given();
    without.data.as_mut().unwrap().remove("tls.key");
    let error = secret::given(&without, &[], Lives::default()).unwrap_err();
    assert!(!error.to_string().contains("delete"), "not ours: {error}");
}

/// An API server with a Secret of cert-manager, and perhaps Assent's record.
async fn open_given(given: &Secret, record: Option<Value>) -> (CaManager, Requests) {
    let given = serde_json::to_value(given).unwrap();
    let (client, requests) = scripted(move |line| match line {
        "GET /api/v1/namespaces/assent-system/secrets/given" => (200, given.clone()),
        "GET /api/v1/namespaces/assent-system/secrets/assent-ca-record" => record
            .clone()
            .map_or_else(not_found, |record| (200, record)),
        "POST /api/v1/namespaces/assent-system/secrets" => (201, given.clone()),
        line if line.starts_with("PUT ") => (200, given.clone()),
        _ => not_found(),
    });
    let mode = Mode::CertManager {
        secret: "given".to_owned(),
    };
    let manager = CaManager::open(client, "assent-system", mode, Lives::default()).await;
    (manager.unwrap(), requests)
}

/// What the leader records.
async fn record(manager: &mut CaManager, requests: &Requests) -> Option<Value> {
    manager.rotate(true).await;
    let all = requests.take_all();
    let mut writes = all.into_iter().filter(|r| !r.line.starts_with("GET"));
    let written = writes.next().map(|request| request.body);
    assert!(writes.next().is_none(), "one write at most");
    written
}

fn leaf_of(manager: &CaManager) -> String {
    let authority = manager.authority().borrow().clone();
    let leaf = authority.serving_leaf(&["a".into()], &[]).unwrap();
    leaf.chain_pem
}

fn bundle_of(manager: &CaManager) -> String {
    manager.authority().borrow().bundle_pem().to_owned()
}

#[tokio::test]
async fn replaced_authority_of_cert_manager_is_trusted_after_a_restart() {
    let (one, two) = (mk_given(), mk_given());
    let (mut first, requests) = open_given(&one, None).await;
    let old = leaf_of(&first);
    let recorded = record(&mut first, &requests).await;
    assert!(recorded.is_some());
    // cert-manager replaces it while no control plane runs.
    let (mut second, requests) = open_given(&two, recorded).await;
    let new = leaf_of(&second);
    let bundle = bundle_of(&second);
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
    assert!(accepts(&bundle, &old, "a"), "what the previous one signed");
    assert!(accepts(&bundle, &new, "a"), "what the current one signs");
    let recorded = record(&mut second, &requests).await;
    assert!(recorded.is_some());
    // And again, with nothing new to record.
    let (mut third, requests) = open_given(&two, recorded).await;
    assert!(accepts(&bundle_of(&third), &old, "a"));
    assert_eq!(bundle_of(&third), bundle_of(&second));
    assert_eq!(record(&mut third, &requests).await, None);
}

#[tokio::test]
async fn published_bundle_is_trusted_without_a_record() {
    let own = authority(&mk_stored());
    let leaf = own.serving_leaf(&["a".into()], &[]).unwrap().chain_pem;
    let given = serde_json::to_value(mk_given()).unwrap();
    let bundle = serde_json::json!({"data": { names::CA_BUNDLE_KEY: own.bundle_pem() }});
    let (client, _) = scripted(move |line| match line {
        "GET /api/v1/namespaces/assent-system/secrets/given" => (200, given.clone()),
        "GET /api/v1/namespaces/assent-system/configmaps/assent-ca" => (200, bundle.clone()),
        _ => not_found(),
    });
    let mode = Mode::CertManager {
        secret: "given".to_owned(),
    };
    let manager = CaManager::open(client, "assent-system", mode, Lives::default()).await;
    let manager = manager.unwrap();
    for chain in [&leaf, &leaf_of(&manager)] {
        assert!(accepts(&bundle_of(&manager), chain, "a"));
    }
}
