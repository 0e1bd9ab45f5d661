//! Questions about images.

use assent_core::digest::Digest;
use assent_oci::{
    AddressPolicy, Error, Images, Sources,
    verify::{Keys, Rejected},
};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::{
    registry::{Access, Registry},
    signer::{INDEX, MANIFEST, sign_simple},
};

const CONFIG: &str = r#"{"architecture":"amd64","os":"linux","config":{"User":"65533"}}"#;

/// Pushes an image and returns the descriptor of its manifest.
async fn push_image(registry: &Registry, name: &str) -> Value {
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = registry.push_blob("org/image", kind, CONFIG).await;
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []});
    registry.push_manifest(name, MANIFEST, &manifest).await
}

fn images(registry: &Registry) -> Images {
    Images::new(registry.insecure(), AddressPolicy::PUBLIC).unwrap()
}

fn digest_of(descriptor: &Value) -> Digest {
    descriptor["digest"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn manifest_digest_and_configuration_are_told_as_they_are() {
    let registry = Registry::start(Access::Open).await;
    let image = push_image(&registry, "org/image:v1").await;
    let name = format!("{}/org/image:v1", registry.address);
    let images = images(&registry);
    assert_eq!(images.digest(&name).await.unwrap(), digest_of(&image));
    let manifest = images.manifest(&name).await.unwrap();
    assert_eq!(Digest::of(manifest.get().as_bytes()), digest_of(&image));
    let both = images.manifest_and_config(&name).await.unwrap();
    assert_eq!(both.digest, digest_of(&image));
    assert_eq!(both.manifest.get(), manifest.get());
    assert_eq!(both.config.get(), CONFIG);
}

#[tokio::test]
async fn an_index_is_told_as_such_and_its_image_for_this_machine() {
    let registry = Registry::start(Access::Open).await;
    let mut entry = push_image(&registry, "org/image:amd64").await;
    let image = digest_of(&entry);
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    };
    entry["platform"] = json!({"os": "linux", "architecture": arch});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let index = registry.push_manifest("org/image:v1", INDEX, &index).await;
    let name = format!("{}/org/image:v1", registry.address);
    let images = images(&registry);
    assert_eq!(images.digest(&name).await.unwrap(), digest_of(&index));
    let told: Value = serde_json::from_str(images.manifest(&name).await.unwrap().get()).unwrap();
    assert_eq!(told["manifests"][0]["digest"], image.to_string());
    let both = images.manifest_and_config(&name).await.unwrap();
    assert_eq!((both.digest, both.config.get()), (image, CONFIG));
}

#[tokio::test]
async fn all_keys_must_have_signed_an_image() {
    let registry = Registry::start(Access::Open).await;
    let image = digest_of(&push_image(&registry, "org/image:v1").await);
    let (a, b) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let name = format!("{}/org/image:v1", registry.address);
    let pems = [a.public_key_pem(), b.public_key_pem()];
    let team = |value: &str| [("team".to_owned(), value.to_owned())].into();
    let both = Keys::all_of(&pems, team("a")).unwrap();
    let images = images(&registry);
    sign_simple(&registry, "org/image", image, &[&a]).await;
    let one = Keys::all_of(&pems[..1], team("a")).unwrap();
    assert_eq!(images.verify(&name, &one).await.unwrap(), image);
    let error = images.verify(&name, &both).await.unwrap_err();
    let expect = Rejected::TooFew {
        signed: 1,
        wanted: 2,
    };
    assert!(matches!(error, Error::SignatureRejected { why, .. } if why == expect));
    sign_simple(&registry, "org/image", image, &[&a, &b]).await;
    assert_eq!(images.verify(&name, &both).await.unwrap(), image);
    let other = Keys::all_of(&pems, team("b")).unwrap();
    let error = images.verify(&name, &other).await.unwrap_err();
    assert!(error.to_string().contains("annotations"), "{error}");
}

#[tokio::test]
async fn images_are_reached_no_further_than_modules() {
    let registry = Registry::start(Access::Open).await;
    push_image(&registry, "org/image:v1").await;
    let name = format!("{}/org/image:v1", registry.address);
    let images = Images::new(Sources::default(), AddressPolicy::PUBLIC).unwrap();
    let error = images.digest(&name).await.unwrap_err();
    assert!(matches!(error, Error::AddressRefused { .. }), "{error}");
    for name in ["", "file:///etc/passwd", "https://host/image", "a b"] {
        let error = images.digest(name).await.unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{error}");
    }
}
