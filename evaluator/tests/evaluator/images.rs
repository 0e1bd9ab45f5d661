//! Images in a real registry, and signatures of them.

use assent_core::Digest;
use serde_json::json;

use crate::{
    registry::{Access, Registry},
    signer::MANIFEST,
};

pub(crate) async fn registry() -> Registry {
    Registry::start(Access::Open).await
}

/// The full name of an image of the registry.
pub(crate) fn full_name(registry: &Registry, image: &str) -> String {
    format!("{}/{image}", registry.address)
}

/// Pushes an image with this configuration, and returns the digest of its manifest.
pub(crate) async fn push(registry: &Registry, image: &str, config: &str) -> Digest {
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = registry.push_blob(image, kind, config.to_owned()).await;
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []});
    let pushed = registry.push_manifest(image, MANIFEST, &manifest).await;
    pushed["digest"].as_str().unwrap().parse().unwrap()
}
