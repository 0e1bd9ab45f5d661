//! Checks that manifests, sources and documents agree with `ARCHITECTURE.md`.
//!
//! Every check is a function from what was read to a list of violations, so that each rule has
//! a test in which it is broken. It depends on nothing but a JSON parser: it has to run before
//! anything large is built.

pub mod citations;
pub mod document;
pub mod manifests;
pub mod named_tests;
pub mod repository;
pub mod sources;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path from the root of the repository, with `/`.
    pub path: String,
    /// Its contents.
    pub text: String,
}

// === impl File ===

impl File {
    /// A file that is not on disk.
    pub fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The directory that it is in; empty for the root.
    pub fn directory(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').is_some_and(|(_, e)| e == extension)
    }
}
