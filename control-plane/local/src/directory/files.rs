//! Reads single files: manifests and modules.

use std::{
    collections::BTreeSet,
    fs, io,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use assent_api::{Manifest, json, parse, yaml};
use assent_core::Digest;
use tracing::warn;

use super::{Document, Error, ModuleFile};

/// What changes whenever somebody writes to or replaces a file. The time of the inode's last
/// change is in it, because copying tools set the modification time back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

// === impl Stamp ===

impl Stamp {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Whether a file of this name is a manifest. A text in CEL is what the module of one is built from.
pub(super) fn is_manifest(name: &str) -> bool {
    // Editors keep copies and locks under names that start with a dot.
    !name.starts_with('.')
        && [".yaml", ".yml", ".json"]
            .iter()
            .any(|end| name.ends_with(end) && !name.ends_with(&format!(".cel{end}")))
}

/// Names of the manifests in a directory. A list that broke off is no list.
pub(crate) fn list(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A name that is not UTF-8 cannot be shown in a status.
        if let Ok(name) = entry.file_name().into_string()
            && is_manifest(&name)
            && !entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Reads at most `limit` bytes of a file.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// Digest of a module's bytes.
pub(super) fn digest(path: &Path) -> Result<Digest, String> {
    let bytes = read(path, super::MAX_MODULE_BYTES);
    let bytes = bytes.map_err(|error| cannot_read(path, &error))?;
    Ok(Digest::of(&bytes))
}

pub(super) fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("failed to read module file {}: {error}", path.display())
}

/// Takes the text of a manifest file apart. Modules are not looked at yet.
pub(super) fn documents(name: &str, text: &str, options: &parse::Options) -> Vec<Document> {
    let document = |number, line, value: Result<serde_json::Value, Error>| Document {
        file: name.to_owned(),
        number,
        line,
        object: value
            .as_ref()
            .ok()
            .and_then(|value| parse::identify(value, options)),
        result: value.and_then(|value| {
            for warning in parse::warnings(&value) {
                warn!(file = name, line, "{warning}");
            }
            Ok(parse::manifest(&value, options)?)
        }),
        module: None,
    };
    let values = values(name, text).into_iter();
    values
        .map(|(number, line, value)| document(number, line, value))
        .collect()
}

/// The documents of a file of this name, each with its number and line.
pub(crate) fn values(
    name: &str,
    text: &str,
) -> Vec<(usize, usize, Result<serde_json::Value, Error>)> {
    if name.ends_with(".json") {
        if text.trim().is_empty() {
            return Vec::new();
        }
        let value = json::from_str(text).map_err(|error| Error::Json(error.to_string()));
        return vec![(1, 1, value)];
    }
    let loaded = yaml::load(text).into_iter();
    loaded
        .map(|loaded| {
            let value = loaded.value.map_err(Error::from);
            (loaded.number, loaded.line, value)
        })
        .collect()
}

/// `file.yaml, document 2 (line 17)`: where to look.
pub(crate) fn place(file: &str, number: usize, line: usize) -> String {
    match (number, line) {
        (1, 1) => file.to_owned(),
        (number, line) => format!("{file}, document {number} (line {line})"),
    }
}

/// The file that a document's module is in.
pub(super) fn module_path(document: &Document, directory: &Path) -> Option<PathBuf> {
    match &document.result {
        Ok(Manifest::Policy(policy)) => {
            Some(directory.join(policy.module.strip_prefix("file://")?))
        }
        _ => None,
    }
}

/// What is known of a module's file.
pub(super) fn module(path: PathBuf, digest: Result<Digest, String>) -> ModuleFile {
    ModuleFile { path, digest }
}
