//! A directory of manifests: its content once it has stopped changing.

pub(crate) mod files;
pub(crate) mod scanner;
pub(crate) mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use assent_api::{Manifest, parse, yaml};
use assent_core::Digest;

pub use self::{scanner::Scanner, watch::watch};

/// Bytes of one manifest file that are read: a thousand policies of a usual size. Each of its
/// documents has a limit of its own.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Bytes of a module file that are read: what an evaluator takes.
pub const MAX_MODULE_BYTES: u64 = 64 << 20;

/// What is watched, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory; only its top level is read.
    pub path: PathBuf,
    /// How long a file must not have changed before it is read. Editors and copies write in
    /// steps a few milliseconds apart.
    pub settle: Duration,
    /// How often to scan without a notification: they get lost on network file systems
    /// and when a queue overflows.
    pub rescan: Duration,
    /// How manifests are read.
    pub parse: parse::Options,
}

/// Everything that one scan of the directory found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// Whether the directory could be read at all.
    pub state: State,
    /// Documents of all files that have stopped changing, in order of file name and number.
    pub documents: Vec<Document>,
    /// Files that could not be read, and why.
    pub unreadable: BTreeMap<String, String>,
    /// Files of which nothing is known yet, because they keep changing or have just gone.
    pub unsettled: BTreeSet<String>,
}

/// Whether the directory could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It was.
    #[default]
    Read,
    /// It is not there.
    Missing,
    /// It exists and cannot be read.
    Unreadable(String),
}

/// One document of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Name of the file in the directory.
    pub file: String,
    /// Number of the document in its file, from 1.
    pub number: usize,
    /// Line where it starts, from 1.
    pub line: usize,
    /// The object that it describes, if that is known.
    pub object: Option<parse::Object>,
    /// Its content, or why it is not valid.
    pub result: Result<Manifest, Error>,
    /// The module's file, if the policy has one.
    pub module: Option<ModuleFile>,
}

/// The file of a `file://` module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFile {
    /// Relative paths are resolved against the manifest's directory.
    pub path: PathBuf,
    /// Digest of its bytes, or why they cannot be read.
    pub digest: Result<Digest, String>,
}

/// Why a document is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither YAML nor JSON.
    #[error("{0}")]
    Yaml(#[from] yaml::Error),
    /// Not JSON.
    #[error("{0}")]
    Json(String),
    /// Not a valid object of a known kind.
    #[error("{0}")]
    Invalid(#[from] parse::Errors),
}

// === impl Options ===

impl Options {
    /// Watches `path` with the usual times.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            settle: Duration::from_millis(100),
            rescan: Duration::from_secs(5),
            parse: parse::Options {
                standalone: true,
                ..parse::Options::default()
            },
        }
    }
}

// === impl Document ===

impl Document {
    /// `file.yaml, document 2 (line 17)`: where to look.
    pub fn place(&self) -> String {
        files::place(&self.file, self.number, self.line)
    }
}

#[cfg(test)]
mod tests;
