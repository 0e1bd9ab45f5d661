//! Rollbacks as records keep them.

use assent_api::parse::Rollback;
use assent_controller::action::RollbackTarget;
use serde_json::Value;

use super::Override;

/// A rollback as an annotation writes it.
pub(super) fn text(rollback: Rollback) -> String {
    match rollback {
        Rollback::Previous => "previous".to_owned(),
        Rollback::Generation(generation) => generation.to_string(),
    }
}

/// What takes the place of the manifest's spec.
pub(super) fn to(target: &RollbackTarget) -> Override {
    let mut spec = Value::Object(target.spec.clone());
    pin(&mut spec, &target.module_digest);
    Override {
        spec: assent_api::canonical::to_string(&spec),
        module_digest: target.module_digest.clone(),
        from_generation: target.generation,
    }
}

/// Pins the module to its digest if its URL can express that. Other modules are found by the
/// digest that the record keeps.
fn pin(spec: &mut Value, digest: &str) {
    let url = spec["module"].as_str();
    if let Some(module) = url.and_then(|url| pin_url(url, digest)) {
        spec["module"] = Value::from(module);
    }
}

fn pin_url(url: &str, digest: &str) -> Option<String> {
    let (scheme, image) = url.split_once("://").unwrap_or(("registry", url));
    if scheme != "registry" {
        return None;
    }
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    // A colon after the last slash is a tag, one before it is a port.
    let tag = image.rfind('/').map_or(0, |slash| slash + 1);
    let image = match image[tag..].find(':') {
        Some(colon) => &image[..tag + colon],
        None => image,
    };
    Some(format!("registry://{image}@{digest}"))
}

#[cfg(test)]
mod tests {
    use super::pin_url;

    #[test]
    fn image_urls_are_pinned() {
        for (url, expect) in [
            (
                "registry://example.com/p:v1",
                Some("registry://example.com/p@sha256:aa"),
            ),
            (
                "example.com:5000/a/p:v1",
                Some("registry://example.com:5000/a/p@sha256:aa"),
            ),
            (
                "example.com:5000/p",
                Some("registry://example.com:5000/p@sha256:aa"),
            ),
            (
                "registry://example.com/p:v1@sha256:bb",
                Some("registry://example.com/p@sha256:aa"),
            ),
            ("https://example.com/p.wasm", None),
            ("file://p.wasm", None),
        ] {
            assert_eq!(pin_url(url, "sha256:aa").as_deref(), expect, "{url}");
        }
    }
}
