//! Documents that are passed with `-f`: files, directories, standard input; YAML or JSON.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use assent_api::{json, yaml};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::progress;

/// One document, as JSON. What was JSON stays as it was written: a policy sees numbers as the user wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) path: PathBuf,
    /// File, and line if it is not the first document.
    pub(crate) source: String,
    pub(crate) json: String,
}

/// The items of a list, not taken apart.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

/// The limit of an evaluator: an UPDATE carries two objects of at most 3 MiB each.
pub(crate) const MAX_FILE: u64 = 7 << 20;

/// Deeper directories are no manifests that somebody wrote: more likely a loop of links.
const MAX_LEVELS: usize = 32;

// === impl Document ===

impl Document {
    /// The document as a value. Documents are checked when they are read.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// Reads every document of files, directories and standard input (`-`). Lists are taken apart.
pub(crate) fn read_all(paths: &[PathBuf], recursive: bool) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for path in paths {
        let files = match path.is_dir() {
            true => files_in(path, recursive)?,
            false => vec![path.clone()],
        };
        for file in files {
            documents.extend(read_documents(&file)?);
        }
    }
    Ok(documents)
}

/// Reads every document of one file.
pub(crate) fn read_documents(path: &Path) -> anyhow::Result<Vec<Document>> {
    let failed = || format!("failed to read {}", path.display());
    let bytes = read(path, MAX_FILE)?;
    let text = std::str::from_utf8(&bytes).with_context(failed)?;
    let documents = parse(path, text).with_context(failed)?;
    Ok(documents.into_iter().flat_map(items).collect())
}

/// Manifests of a directory, in order of their names.
pub(crate) fn files_in(dir: &Path, recursive: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(dir, if recursive { MAX_LEVELS } else { 1 }, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(dir: &Path, levels: usize, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let failed = || format!("failed to read the directory {}", dir.display());
    for entry in std::fs::read_dir(dir).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        if path.is_dir() {
            if levels > 1 {
                collect(&path, levels - 1, files)?;
            }
        } else if is_manifest(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

/// By the name of the file; standard input is JSON if it begins like it.
fn parse(path: &Path, text: &str) -> anyhow::Result<Vec<Document>> {
    let source = path.display().to_string();
    let is_json = match path.extension().and_then(|end| end.to_str()) {
        Some("json") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with(['{', '[']),
    };
    if is_json {
        // Checked as strictly as a manifest, and kept as it was written.
        json::from_str(text)?;
        let json = text.to_owned();
        let path = path.to_owned();
        return Ok(vec![Document { path, source, json }]);
    }
    let mut documents = Vec::new();
    for document in yaml::load(text) {
        let value = document.value?;
        if value.is_null() {
            continue;
        }
        let source = match document.number {
            1 => source.clone(),
            _ => format!("{source}:{}", document.line),
        };
        let json = value.to_string();
        documents.push(Document {
            path: path.to_owned(),
            source,
            json,
        });
    }
    Ok(documents)
}

/// The items of a `List`, such as `kubectl get -o yaml` prints, or the document itself.
fn items(document: Document) -> Vec<Document> {
    let value = document.value();
    let kind = value["kind"].as_str().unwrap_or_default();
    if !kind.ends_with("List") || !value["items"].is_array() {
        return vec![document];
    }
    let Ok(list) = serde_json::from_str::<List<'_>>(&document.json) else {
        return vec![document];
    };
    let item = |(number, item): (usize, &&RawValue)| Document {
        path: document.path.clone(),
        source: format!("{}, item {}", document.source, number + 1),
        json: item.get().to_owned(),
    };
    list.items.iter().enumerate().map(item).collect()
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => {
            let file = File::open(path);
            Box::new(file.with_context(|| format!("failed to open {}", path.display()))?)
        }
    };
    let mut bytes = Vec::new();
    let read = input.take(most + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("failed to read {}", path.display()))?;
    if bytes.len() as u64 > most {
        bail!(
            "{} is larger than the {} allowed",
            path.display(),
            progress::size(most)
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, expect: &[(&str, &str)]) {
        let documents = parse(Path::new(name), text).unwrap();
        let found: Vec<Document> = documents.into_iter().flat_map(items).collect();
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.source.as_str(), one.json.as_str()))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn documents_know_where_they_come_from() {
        check(
            "a.yaml",
            "a: 1\n---\n---\nb: 2\n",
            &[("a.yaml", r#"{"a":1}"#), ("a.yaml:3", r#"{"b":2}"#)],
        );
        check("a.json", r#"{"n": 1.0}"#, &[("a.json", r#"{"n": 1.0}"#)]);
        check("-", r#" {"n": 1.0}"#, &[("-", r#" {"n": 1.0}"#)]);
    }

    #[test]
    fn lists_are_taken_apart() {
        let list = r#"{"kind":"List","apiVersion":"v1","items":[{"a":1.0},{"b":2}]}"#;
        check(
            "l.json",
            list,
            &[
                ("l.json, item 1", r#"{"a":1.0}"#),
                ("l.json, item 2", r#"{"b":2}"#),
            ],
        );
        check("l.yaml", "kind: PodList\nitems: []\n", &[]);
        // An object may end like a list without being one.
        check(
            "l.json",
            r#"{"kind":"AllowList"}"#,
            &[("l.json", r#"{"kind":"AllowList"}"#)],
        );
    }

    #[test]
    fn bad_documents_are_reported_with_their_place() {
        let error = |name: &str, text| format!("{:#}", parse(Path::new(name), text).unwrap_err());
        assert!(
            error("a.yaml", "a: 1\n---\nb: [").contains("line"),
            "{}",
            error("a.yaml", "a: 1\n---\nb: [")
        );
        assert!(error("a.json", "{\"a\":1,\"a\":2}").contains("duplicate"));
    }
}
