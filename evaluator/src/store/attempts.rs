//! Markers of modules and contents that are being tried: a marker that is found at start names one that crashed the
//! process.

use std::{collections::BTreeMap, fs, path::PathBuf};

use assent_core::{Digest, RevisionId};

use super::Store;
use crate::failure::{Failure, Stage};

/// A marker; removed when the attempt is over, whatever its outcome, unless the process dies.
pub(crate) struct Attempt {
    path: PathBuf,
}

/// Before a module gets its settings, a crash does not depend on them.
const MODULE: &str = "this module is not tried again: publish a revision with another one";
const CONTENT: &str = "this content is not tried again: publish a changed revision";

// === impl Store ===

impl Store {
    /// Marks a module or a content, by its digest, as being tried at a stage. No flush: it
    /// need only survive the process. A marker that can't be written costs the protection,
    /// not the revision.
    pub(crate) fn attempt(&self, what: &Digest, revision: &RevisionId, stage: Stage) -> Attempt {
        let path = self.root.join("attempts").join(what.hex());
        if let Err(error) = fs::write(&path, format!("{} {revision}", stage.name())) {
            tracing::warn!(path = %path.display(), %error, "failed to write an attempt marker");
        }
        Attempt { path }
    }

    /// For a graceful shutdown: what is being tried did not crash the process.
    pub(crate) fn forget_attempts(&self) {
        let attempts = fs::read_dir(self.root.join("attempts"));
        for entry in attempts.into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Modules and contents that are never tried again. Markers of the last process join those
    /// found by earlier ones; what they name can change only by getting another digest.
    pub(crate) fn crashed(&self) -> BTreeMap<Digest, Failure> {
        let (attempts, crashed) = (self.root.join("attempts"), self.root.join("crashed"));
        for entry in fs::read_dir(&attempts).into_iter().flatten().flatten() {
            let moved = fs::rename(entry.path(), crashed.join(entry.file_name()));
            if let Err(error) = moved {
                tracing::warn!(path = %entry.path().display(), %error, "failed to keep an attempt marker");
            }
        }
        let found = fs::read_dir(&crashed).into_iter().flatten().flatten();
        found
            .filter_map(|entry| {
                let name = entry.file_name();
                let digest = format!("sha256:{}", name.to_str()?).parse().ok()?;
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                Some((digest, failure(&text)))
            })
            .collect()
    }
}

// === impl Attempt ===

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove an attempt marker");
        }
    }
}

fn failure(marker: &str) -> Failure {
    let (stage, revision) = marker.split_once(' ').unwrap_or((marker, "it"));
    let (stage, doing, advice) = match stage {
        "compile" => (Stage::Compile, "compiled", MODULE),
        "instantiate" => (Stage::Instantiate, "linked", MODULE),
        _ => (Stage::SelfTest, "tested", CONTENT),
    };
    let message = format!("the evaluator went down while {revision} was being {doing}; {advice}");
    Failure::permanent(stage, message)
}
