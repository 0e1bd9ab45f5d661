//! Kubernetes objects from files in place of a cluster: what policies read that declare other objects.

mod scanner;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use assent_context::{Cluster, cluster};
use assent_core::Digest;
use serde_json::Value;
use tokio::sync::mpsc;

use self::scanner::ObjectsScanner;
use crate::directory::{
    self,
    files::{self, place},
    watch::follow,
};

/// Bytes of one file of objects that are read: all objects of a kind in a large cluster.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// What the files hold, if all of them can be read.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The objects, or which file cannot be used and why: a content that lacks the objects of one file is not the
    /// cluster that somebody wrote down.
    pub content: Result<Arc<Cluster>, String>,
    /// Digests of all files: equal ones have equal content.
    version: Digest,
}

/// Why objects cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("failed to read {0}: {1}")]
    Read(String, io::Error),
    /// Not text.
    #[error("{0}: not UTF-8")]
    Text(String),
    /// Neither YAML nor JSON.
    #[error("{0}: {1}")]
    Document(String, directory::Error),
    /// Not an object of Kubernetes.
    #[error("{0}: {1}")]
    Object(String, cluster::Error),
}

/// Watches a directory until the receiver is gone, and sends its objects whenever they change.
pub async fn watch(directory: PathBuf, objects: mpsc::Sender<Objects>) {
    let options = directory::Options::new(directory.clone());
    let (settle, rescan): (Duration, Duration) = (options.settle, options.rescan);
    follow(
        ObjectsScanner::new(directory, settle),
        settle,
        rescan,
        objects,
    )
    .await;
}

/// Reads a file, or the YAML and JSON files of a directory, once.
pub fn read(path: &Path) -> Result<Cluster, Error> {
    if !path.is_dir() {
        let name = path.display().to_string();
        return assemble([&read_file(path, &name)?]);
    }
    let listed = files::list(path);
    let names = listed.map_err(|error| Error::Read(path.display().to_string(), error))?;
    let files = names.into_iter().map(|name| {
        let file = path.join(name);
        read_file(&file, &file.display().to_string())
    });
    let files: Vec<FileContent> = files.collect::<Result<_, _>>()?;
    assemble(&files)
}

/// Documents of a file, each with its place.
#[derive(Clone, Debug)]
struct FileContent {
    documents: Vec<(String, Value)>,
    digest: Digest,
}

fn read_file(path: &Path, name: &str) -> Result<FileContent, Error> {
    let bytes = files::read(path, MAX_FILE_BYTES);
    let bytes = bytes.map_err(|error| Error::Read(name.to_owned(), error))?;
    let digest = Digest::of(&bytes);
    let text = String::from_utf8(bytes).map_err(|_| Error::Text(name.to_owned()))?;
    // Writers that begin by truncating leave an empty file behind when they die or the disk is full.
    if text.trim().is_empty() {
        let why = io::Error::other("it is empty; remove it to remove its objects");
        return Err(Error::Read(name.to_owned(), why));
    }
    let mut documents = Vec::new();
    for (number, line, value) in files::values(name, &text) {
        let place = place(name, number, line);
        let value = value.map_err(|error| Error::Document(place.clone(), error))?;
        documents.push((place, value));
    }
    Ok(FileContent { documents, digest })
}

fn assemble<'a>(files: impl IntoIterator<Item = &'a FileContent>) -> Result<Cluster, Error> {
    let mut cluster = Cluster::default();
    for file in files {
        for (place, value) in &file.documents {
            let added = cluster.add(value.clone());
            added.map_err(|error| Error::Object(place.clone(), error))?;
        }
    }
    Ok(cluster)
}

// === impl Objects ===

impl PartialEq for Objects {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.content.as_ref().err() == other.content.as_ref().err()
    }
}
