//! Finds the module in a manifest.

use assent_core::digest::Digest;
use serde::Deserialize;

/// Manifests and indexes, with the media types of OCI and of Docker.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";

/// Media types of WebAssembly layers: those of Kubewarden's policies, and the later
/// convention.
const WASM_LAYERS: [&str; 3] = [
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.module.wasm.content.layer.v1+wasm",
    "application/wasm",
];

/// The content of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The module.
    Layer(Layer),
    /// Another manifest.
    Index(Digest),
}

/// A blob that is a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// Why a manifest is not that of a policy. Contains nothing of the manifest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("its manifest is neither an OCI nor a Docker version 2 manifest")]
    Malformed,
    #[error("its manifest has {0} WebAssembly layers instead of one")]
    Layers(usize),
    #[error("it is an index with {0} manifests for WebAssembly instead of one")]
    Entries(usize),
    #[error("its manifest refers to a blob by something other than a SHA-256 digest")]
    Digest,
    #[error("it is an index without an image for linux/{}", architecture())]
    Platform,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

pub(super) fn read(json: &[u8]) -> Result<Content, Error> {
    let manifest = parse(json)?;
    if let Some(entries) = manifest.manifests {
        return index(entries);
    }
    let mut layers = manifest.layers.ok_or(Error::Malformed)?;
    layers.retain(|layer| WASM_LAYERS.contains(&layer.media_type.as_str()));
    let [layer] = layers.as_slice() else {
        return Err(Error::Layers(layers.len()));
    };
    Ok(Content::Layer(Layer {
        digest: layer.digest()?,
        size: layer.size,
    }))
}

/// The entry of an index for this machine's platform; none if it is not an index.
pub(super) fn for_this_machine(json: &[u8]) -> Result<Option<Digest>, Error> {
    let Some(entries) = parse(json)?.manifests else {
        return Ok(None);
    };
    let fits =
        |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
    let mut entries = entries.iter();
    let entry = entries.find(|entry| entry.platform.as_ref().is_some_and(fits));
    entry.ok_or(Error::Platform)?.digest().map(Some)
}

/// The descriptor of an image's configuration.
pub(super) fn config(json: &[u8]) -> Result<Layer, Error> {
    let config = parse(json)?.config.ok_or(Error::Malformed)?;
    Ok(Layer {
        digest: config.digest()?,
        size: config.size,
    })
}

fn parse(json: &[u8]) -> Result<Manifest, Error> {
    let manifest: Manifest = serde_json::from_slice(json).map_err(|_| Error::Malformed)?;
    match manifest.schema_version {
        2 => Ok(manifest),
        _ => Err(Error::Malformed),
    }
}

/// The architecture by its name in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Modules are portable: their entry is for the platform `wasm`, or for none.
fn index(mut entries: Vec<Descriptor>) -> Result<Content, Error> {
    entries.retain(|entry| {
        let platform = entry.platform.as_ref();
        platform.is_none_or(|platform| platform.architecture == "wasm")
    });
    match entries.as_slice() {
        [entry] => Ok(Content::Index(entry.digest()?)),
        entries => Err(Error::Entries(entries.len())),
    }
}

// === impl Descriptor ===

impl Descriptor {
    fn digest(&self) -> Result<Digest, Error> {
        self.digest.parse().map_err(|_| Error::Digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBEWARDEN: &str = "application/vnd.wasm.content.layer.v1+wasm";

    fn layer(media_type: &str, digest: &str) -> String {
        format!(r#"{{"mediaType": "{media_type}", "digest": "{digest}", "size": 7}}"#)
    }

    fn manifest(layers: &[String]) -> String {
        let layers = layers.join(",");
        format!(r#"{{"schemaVersion": 2, "config": {{}}, "layers": [{layers}]}}"#)
    }

    #[test]
    fn wasm_layer_is_found() {
        let digest = Digest::of(b"module");
        for media_type in WASM_LAYERS {
            let other = layer("application/vnd.oci.image.layer.v1.tar", "sha256:0");
            let manifest = manifest(&[other, layer(media_type, &digest.to_string())]);
            let expect = Content::Layer(Layer { digest, size: 7 });
            assert_eq!(read(manifest.as_bytes()), Ok(expect));
        }
    }

    #[test]
    fn index_is_followed() {
        let digest = Digest::of(b"manifest").to_string();
        let entry = |platform: &str| format!(r#"{{"digest": "{digest}", "size": 1{platform}}}"#);
        let index = |entries: &[String]| {
            let entries = entries.join(",");
            read(format!(r#"{{"schemaVersion": 2, "manifests": [{entries}]}}"#).as_bytes())
        };
        let wasm = entry(r#", "platform": {"architecture": "wasm", "os": "wasip1"}"#);
        let amd64 = entry(r#", "platform": {"architecture": "amd64", "os": "linux"}"#);
        let expect = Ok(Content::Index(Digest::of(b"manifest")));
        assert_eq!(index(&[amd64.clone(), wasm]), expect);
        assert_eq!(index(&[entry("")]), expect);
        assert_eq!(index(&[amd64]), Err(Error::Entries(0)));
        assert_eq!(index(&[entry(""), entry("")]), Err(Error::Entries(2)));
    }

    #[test]
    fn image_of_this_platform_is_chosen() {
        let digest = Digest::of(b"image").to_string();
        let entry = |os: &str, architecture: &str, digest: &str| {
            format!(
                r#"{{"digest": "{digest}", "platform": {{"os": "{os}", "architecture": "{architecture}"}}}}"#
            )
        };
        let index = |entries: &[String]| {
            let entries = entries.join(",");
            let json = format!(r#"{{"schemaVersion": 2, "manifests": [{entries}]}}"#);
            for_this_machine(json.as_bytes())
        };
        let other = [
            entry("windows", architecture(), "x"),
            entry("linux", "z80", "x"),
        ];
        assert_eq!(index(&other), Err(Error::Platform));
        let [windows, z80] = other;
        let own = entry("linux", architecture(), &digest);
        assert_eq!(index(&[windows, z80, own]), Ok(Some(Digest::of(b"image"))));
        assert_eq!(for_this_machine(manifest(&[]).as_bytes()), Ok(None));
    }

    #[test]
    fn configuration_is_found() {
        let digest = Digest::of(b"config");
        let json = |config: &str| {
            config_of(&format!(
                r#"{{"schemaVersion": 2, "config": {config}, "layers": []}}"#
            ))
        };
        let expect = Layer { digest, size: 7 };
        assert_eq!(json(&layer("x", &digest.to_string())), Ok(expect));
        assert_eq!(json("{}"), Err(Error::Digest));
        assert_eq!(json("null"), Err(Error::Malformed));
    }

    fn config_of(json: &str) -> Result<Layer, Error> {
        config(json.as_bytes())
    }

    #[test]
    fn manifest_without_a_policy_is_rejected() {
        let digest = Digest::of(b"").to_string();
        let wasm = layer(KUBEWARDEN, &digest);
        let check = |json: &str, expect: Error| assert_eq!(read(json.as_bytes()), Err(expect));
        check("{}", Error::Malformed);
        check("secret", Error::Malformed);
        check(r#"{"schemaVersion": 1, "layers": []}"#, Error::Malformed);
        check(r#"{"schemaVersion": 2}"#, Error::Malformed);
        check(&manifest(&[]), Error::Layers(0));
        check(&manifest(&[layer("image", &digest)]), Error::Layers(0));
        check(&manifest(&[wasm.clone(), wasm]), Error::Layers(2));
        let bad = manifest(&[layer(KUBEWARDEN, "sha256:../../x")]);
        check(&bad, Error::Digest);
    }
}
