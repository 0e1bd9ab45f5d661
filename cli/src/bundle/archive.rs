//! An OCI image layout in a tar archive.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
};

use anyhow::{Context as _, bail};
use assent_core::Digest;
use assent_oci::{CopiedManifest, Copy, MAX_MODULE_BYTES, ModuleUrl};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What will be written.
#[derive(Default)]
pub(super) struct Archive {
    index: Vec<Entry>,
    blobs: BTreeMap<String, Bytes>,
}

/// A manifest in `index.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    media_type: String,
    digest: String,
    size: usize,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The URL that the artefact was fetched from.
const MODULE: &str = "dev.assent.module";

/// The tag of the manifest; absent if it is found by its digest only.
const TAG: &str = "dev.assent.tag";

/// Whether this is the manifest of the module, and not of a signature.
const ROOT: &str = "dev.assent.root";

const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// Files in an archive: some thousand modules with their signatures.
const MAX_FILES: usize = 100_000;

// === impl Archive ===

impl Archive {
    /// Adds an artefact. Equal blobs are kept once.
    pub(super) fn add(&mut self, url: &ModuleUrl, copy: &Copy) {
        for (digest, bytes) in &copy.blobs {
            self.blobs.insert(digest.clone(), bytes.clone());
        }
        for manifest in &copy.manifests {
            let digest = Digest::of(&manifest.bytes);
            let mut annotations = BTreeMap::from([(MODULE.to_owned(), url.to_string())]);
            if let Some(tag) = &manifest.tag {
                annotations.insert(TAG.to_owned(), tag.clone());
            }
            if copy.manifest == Some(digest) {
                annotations.insert(ROOT.to_owned(), "true".to_owned());
            }
            self.index.push(Entry {
                media_type: manifest.media_type.clone(),
                digest: digest.to_string(),
                size: manifest.bytes.len(),
                annotations,
            });
            self.blobs
                .insert(digest.to_string(), manifest.bytes.clone());
        }
    }

    /// Writes everything, without times and owners: the same modules give the same file.
    pub(super) fn write(&self, output: &mut impl Write) -> anyhow::Result<()> {
        let mut tar = tar::Builder::new(output);
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            let added = tar.append_data(&mut header, name, bytes);
            added.context("failed to write the archive")
        };
        add("oci-layout", LAYOUT.as_bytes())?;
        let index = json!({"schemaVersion": 2, "manifests": self.index});
        add("index.json", index.to_string().as_bytes())?;
        for (digest, bytes) in &self.blobs {
            add(&format!("blobs/{}", digest.replace(':', "/")), bytes)?;
        }
        tar.finish().context("failed to write the archive")
    }
}

/// The artefacts of an archive, with their modules. Every blob is checked against its name.
pub(super) fn read(input: impl Read) -> anyhow::Result<Vec<(String, Copy)>> {
    let (index, blobs) = unpack(input)?;
    let mut artefacts: Vec<(String, Copy)> = Vec::new();
    for entry in index {
        let Some(module) = entry.annotations.get(MODULE) else {
            bail!("it was not written by `assent save`: a manifest names no module");
        };
        let find = |digest: &str| {
            let blob = blobs.get(digest).cloned();
            blob.with_context(|| format!("it is incomplete: {digest} is missing"))
        };
        let bytes = find(&entry.digest)?;
        let at = artefacts.iter().position(|(name, _)| name == module);
        let at = at.unwrap_or_else(|| {
            artefacts.push((module.clone(), Copy::default()));
            artefacts.len() - 1
        });
        let Some((_, copy)) = artefacts.get_mut(at) else {
            continue;
        };
        for digest in named(&bytes) {
            copy.blobs.insert(digest.clone(), find(&digest)?);
        }
        if entry.annotations.contains_key(ROOT) {
            copy.manifest = entry.digest.parse().ok();
        }
        copy.manifests.push(CopiedManifest {
            tag: entry.annotations.get(TAG).cloned(),
            media_type: entry.media_type,
            bytes,
        });
    }
    Ok(artefacts)
}

/// The blobs that a manifest names.
fn named(manifest: &[u8]) -> Vec<String> {
    let manifest: Value = serde_json::from_slice(manifest).unwrap_or_default();
    let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
    let blobs = layers.iter().chain(manifest.get("config"));
    blobs
        .filter_map(|blob| blob["digest"].as_str().map(str::to_owned))
        .collect()
}

fn unpack(input: impl Read) -> anyhow::Result<(Vec<Entry>, BTreeMap<String, Bytes>)> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Vec<Entry>,
    }
    let (mut index, mut blobs) = (None, BTreeMap::new());
    for (number, file) in tar::Archive::new(input).entries()?.enumerate() {
        let mut file = file?;
        let path = file.path()?.display().to_string();
        if number >= MAX_FILES || file.size() > MAX_MODULE_BYTES as u64 {
            bail!("{path} is too large, or the archive has too many files");
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if path == "index.json" {
            let parsed: Index =
                serde_json::from_slice(&bytes).context("failed to read index.json")?;
            index = Some(parsed.manifests);
        } else if let Some(hex) = path.strip_prefix("blobs/sha256/") {
            let digest = Digest::of(&bytes);
            if digest.hex() != hex {
                bail!("it is damaged: {path} does not match its digest");
            }
            blobs.insert(digest.to_string(), Bytes::from(bytes));
        }
    }
    let index = index.context("it is not an OCI image layout: there is no index.json")?;
    Ok((index, blobs))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn copy() -> Copy {
        let module = Bytes::from_static(b"module");
        let digest = Digest::of(&module);
        let bytes = json!({"layers": [{"digest": digest.to_string()}]}).to_string();
        let bytes = Bytes::from(bytes);
        Copy {
            manifest: Some(Digest::of(&bytes)),
            manifests: vec![CopiedManifest {
                tag: Some("v1".into()),
                media_type: "m".into(),
                bytes,
            }],
            blobs: [(digest.to_string(), module)].into(),
        }
    }

    fn archive() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.add(&"ghcr.io/org/a:v1".parse().unwrap(), &copy());
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let bytes = archive();
        assert_eq!(archive(), bytes, "the same modules must give the same file");
        let loaded = read(bytes.as_slice()).unwrap();
        assert_eq!(loaded, [("registry://ghcr.io/org/a:v1".to_owned(), copy())]);
    }

    #[test]
    fn damaged_archives_are_refused() {
        let error = |bytes: &[u8]| format!("{:#}", read(bytes).unwrap_err());
        let bytes = archive();
        let at = bytes
            .windows(6)
            .position(|window| window == b"module")
            .unwrap();
        let mut changed = bytes.clone();
        // The content of the blob, which stands after all names.
        let at = bytes[at + 1..]
            .windows(6)
            .rposition(|w| w == b"module")
            .unwrap()
            + at
            + 1;
        changed[at] = b'M';
        assert!(
            error(&changed).contains("does not match its digest"),
            "{}",
            error(&changed)
        );
        assert!(error(b"").contains("no index.json"));
    }
}
