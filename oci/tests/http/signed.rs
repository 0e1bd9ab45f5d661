//! Signatures at registries that misbehave. A real registry is in `tests/registry`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use assent_core::digest::Digest;
use assent_oci::{
    AddressPolicy, Error, Files, ModuleUrl, Pulled, Puller, Sources,
    verify::{Keys, Rejected},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Response;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::json;

use crate::{
    MODULE,
    server::{Body, Seen, Server, answer, broken, endless, ok},
};

const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";

/// A repository with two modules, the first of them signed.
struct Signed {
    key: KeyPair,
    payload: String,
    signatures: String,
}

fn manifest(module: &[u8]) -> String {
    let layer = json!({
        "mediaType": "application/vnd.wasm.content.layer.v1+wasm",
        "digest": Digest::of(module).to_string(),
        "size": module.len()
    });
    json!({"schemaVersion": 2, "layers": [layer]}).to_string()
}

// === impl Signed ===

impl Signed {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let digest = Digest::of(manifest(MODULE).as_bytes()).to_string();
        let payload = json!({"critical": {
            "identity": {"docker-reference": ""},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature"
        }, "optional": null})
        .to_string();
        let signature = STANDARD.encode(key.sign(payload.as_bytes()).unwrap());
        let layer = json!({
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": Digest::of(payload.as_bytes()).to_string(),
            "size": payload.len(),
            "annotations": {"dev.cosignproject.cosign/signature": signature}
        });
        let signatures = json!({"schemaVersion": 2, "layers": [layer]}).to_string();
        Self {
            key,
            payload,
            signatures,
        }
    }

    fn keys(&self) -> Keys {
        Keys::any_of(&[self.key.public_key_pem()]).unwrap()
    }

    fn serve(&self, seen: &Seen) -> Response<Body> {
        let name = seen.path.rsplit('/').next().unwrap();
        let digest = Digest::of(manifest(MODULE).as_bytes());
        if name == format!("sha256-{}.sig", digest.hex()) {
            return ok(self.signatures.clone());
        }
        let blobs = [
            manifest(MODULE).into_bytes(),
            MODULE.to_vec(),
            OTHER.to_vec(),
            self.payload.clone().into_bytes(),
        ];
        let found = blobs
            .into_iter()
            .find(|blob| name == "v1" || name == Digest::of(blob).to_string());
        found.map_or_else(|| answer(404, "secret"), ok)
    }
}

async fn pull(server: &Server, keys: Keys) -> Result<Pulled, Error> {
    let sources = Sources {
        insecure: vec![server.address.to_string()],
        ..Sources::default()
    };
    let url: ModuleUrl = format!("{}/org/p:v1", server.address).parse().unwrap();
    let puller = Puller::new(sources, AddressPolicy::PUBLIC).unwrap();
    puller.with_verification(keys).pull(&url).await
}

#[track_caller]
fn check_rejected(pulled: Result<Pulled, Error>, expect: Rejected) {
    match pulled {
        Err(Error::SignatureRejected { why, .. }) => assert_eq!(why, expect),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_tag_that_moves_meanwhile_changes_nothing() {
    let signed = Arc::new(Signed::new());
    let (repository, asked) = (signed.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    let server = Server::plain(move |seen| {
        if !seen.path.ends_with("/manifests/v1") {
            return repository.serve(seen);
        }
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => ok(manifest(MODULE)),
            _ => ok(manifest(OTHER)),
        }
    })
    .await;
    let pulled = pull(&server, signed.keys()).await.unwrap();
    assert_eq!(pulled.bytes, MODULE);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // Now it has moved: the signature is for what it was.
    check_rejected(pull(&server, signed.keys()).await, Rejected::Unsigned);
}

#[tokio::test]
async fn what_is_not_signed_is_not_even_fetched() {
    let signed = Signed::new();
    let keys = Signed::new().keys();
    let server = Server::plain(move |seen| signed.serve(seen)).await;
    check_rejected(pull(&server, keys).await, Rejected::OtherKey(1));
    let blob = format!("/v2/org/p/blobs/{}", Digest::of(MODULE));
    assert!(server.seen().iter().all(|seen| seen.path != blob));
}

#[tokio::test]
async fn trouble_in_the_middle_is_worth_another_try() {
    for (part, status) in [(".sig", 503), ("/blobs/", 500), ("/referrers/", 429)] {
        let mut signed = Signed::new();
        if part == "/referrers/" {
            signed.signatures = "{}".to_owned();
        }
        let keys = signed.keys();
        let server = Server::plain(move |seen| match seen.path.contains(part) {
            true => answer(status, "secret"),
            false => signed.serve(seen),
        })
        .await;
        let error = pull(&server, keys).await.unwrap_err();
        assert!(error.is_retryable(), "{part}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let signed = Signed::new();
    let keys = signed.keys();
    let server = Server::plain(move |seen| match seen.path.ends_with(".sig") {
        true => broken(),
        false => signed.serve(seen),
    })
    .await;
    let error = pull(&server, keys).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn signatures_without_end_are_not_read_to_the_end() {
    for part in [".sig", "/referrers/"] {
        let mut signed = Signed::new();
        signed.signatures = "{}".to_owned();
        let keys = signed.keys();
        let server = Server::plain(move |seen| match seen.path.contains(part) {
            true => endless(),
            false => signed.serve(seen),
        })
        .await;
        check_rejected(pull(&server, keys).await, Rejected::Unreadable);
    }
}

#[tokio::test]
async fn a_registry_may_list_bundles_itself() {
    let mut signed = Signed::new();
    signed.signatures = "{}".to_owned();
    let keys = signed.keys();
    let over = STANDARD.encode(signed.key.sign(manifest(MODULE).as_bytes()).unwrap());
    let bundle = json!({"messageSignature": {"signature": over}}).to_string();
    let kind = "application/vnd.dev.sigstore.bundle.v0.3+json";
    let of = |json: &str| {
        let digest = Digest::of(json.as_bytes()).to_string();
        json!({"mediaType": kind, "artifactType": kind, "digest": digest, "size": json.len()})
    };
    let holder = json!({"schemaVersion": 2, "layers": [of(&bundle)]}).to_string();
    let index = json!({"schemaVersion": 2, "manifests": [
        {"artifactType": "application/spdx+json", "digest": "sha256:0", "size": 1},
        of(&holder),
        {"artifactType": kind, "digest": "no digest", "size": 1},
    ]})
    .to_string();
    let server = Server::plain(move |seen| {
        for blob in [&bundle, &holder] {
            if seen
                .path
                .ends_with(&Digest::of(blob.as_bytes()).to_string())
            {
                return ok(blob.clone());
            }
        }
        match seen.path.contains("/referrers/") {
            true => ok(index.clone()),
            false => signed.serve(seen),
        }
    })
    .await;
    assert_eq!(pull(&server, keys).await.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn only_registries_hold_signatures() {
    let server = Server::plain(|_| ok(MODULE)).await;
    let sources = Sources {
        insecure: vec![server.address.to_string()],
        ..Sources::default()
    };
    let puller = Puller::new(sources, AddressPolicy::LOCAL).unwrap();
    let puller = puller
        .with_files(Files::Below("/".into()))
        .with_verification(Signed::new().keys());
    for url in [server.url("/p.wasm"), "file:///p.wasm".to_owned()] {
        let error = puller.pull(&url.parse().unwrap()).await;
        let said = error.as_ref().unwrap_err().to_string();
        assert!(said.contains("push it to"), "{said}");
        check_rejected(error, Rejected::NoRegistry);
    }
    assert_eq!(server.connections(), 0);
}
