//! The repository on disk.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::File;

/// Directories that hold what was built or fetched.
const SKIPPED: &[&str] = &[".git", "dist", "node_modules", "target", "vendor"];

/// Files that list what others wrote, and those that cite what is not there on purpose.
const FOREIGN: &[&str] = &[
    "Cargo.lock",
    "LICENSE",
    "go.mod",
    "go.sum",
    "tools/architecture/src/citations/tests.rs",
    "tools/architecture/src/named_tests/tests.rs",
];

/// A directory with the sources of Assent.
#[derive(Clone, Debug)]
pub struct Repository {
    root: PathBuf,
}

// === impl Repository ===

impl Repository {
    /// The one that this crate is in.
    pub fn own() -> Self {
        Self {
            root: Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        }
    }

    /// One file.
    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }

    /// All files, sorted.
    pub fn paths(&self) -> io::Result<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        self.walk("", &mut paths)?;
        Ok(paths)
    }

    /// Files of text, those aside that list what others wrote.
    pub fn texts(&self, paths: &BTreeSet<String>) -> Vec<File> {
        let own = paths.iter().filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            !FOREIGN.contains(&name) && !FOREIGN.contains(&path.as_str())
        });
        let read = |path: &String| Some(File::new(path, &self.read(path).ok()?));
        own.filter_map(read).collect()
    }

    /// What Cargo knows about the workspace, without asking the network. The platform is
    /// given because crates of other platforms may not have been fetched.
    pub fn metadata(&self) -> Result<Value, String> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--locked", "--offline"])
            .args(["--filter-platform", env!("ARCHITECTURE_TARGET")])
            .current_dir(&self.root)
            .output()
            .map_err(|error| format!("failed to run cargo metadata: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("failed to run cargo metadata: {said}"));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("failed to read cargo metadata: {error}"))
    }

    fn walk(&self, directory: &str, paths: &mut BTreeSet<String>) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(directory))? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let path = match directory {
                "" => name.to_owned(),
                directory => format!("{directory}/{name}"),
            };
            let kind = entry.file_type()?;
            if SKIPPED.contains(&name) {
                continue;
            }
            if kind.is_dir() {
                self.walk(&path, paths)?;
            } else if kind.is_file() {
                paths.insert(path);
            }
        }
        Ok(())
    }
}
