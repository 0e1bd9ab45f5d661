//! Markers of modules and contents that are being tried: a marker that is found at start names one during which the
//! process died.
//!
//! Nobody can tell whether a module killed its process or somebody else did. Content that has served requests before
//! gets the benefit of the doubt and is tried again, with a growing delay; new content is refused.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use assent_core::{Digest, RevisionId};

use super::{Seal, Store};
use crate::failure::{Failure, Stage};

/// A marker; removed when the attempt is over, whatever its outcome, unless the process dies.
pub(crate) struct Attempt {
    marker: PathBuf,
    /// What is known of earlier attempts, which no longer matters once one has ended.
    record: PathBuf,
}

/// Modules and contents that this process must not try at once.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Crashed {
    /// Failures that can be retried are of content that was served before.
    pub(crate) failures: BTreeMap<Digest, Failure>,
    /// How many processes in a row died with the same content that was served before.
    pub(crate) in_a_row: u32,
}

/// One marker, as it is written: stage, number of processes, whether it was served before, revision.
#[derive(Debug, PartialEq)]
struct Marker {
    stage: String,
    /// Processes in a row that have begun this and did not end it.
    processes: u32,
    served: bool,
    revision: String,
}

/// Before a module gets its settings, a crash does not depend on them.
const MODULE: &str = "this module is not tried again: publish a revision with another one";
const CONTENT: &str = "this content is not tried again: publish a changed revision";
const AGAIN: &str = "it has served requests before and is tried again later";

/// Processes that may die with content that was served before until it has to wait for the others: a single one was
/// most likely killed by somebody else.
const AT_ONCE: u32 = 1;

// === impl Store ===

impl Store {
    /// Marks a module or a content, by its digest, as being tried at a stage. No flush: it
    /// need only survive the process. A marker that can't be written costs the protection,
    /// not the revision.
    pub(crate) fn attempt(&self, what: &Digest, revision: &RevisionId, stage: Stage) -> Attempt {
        let (marker, record) = (
            self.root.join("attempts").join(what.hex()),
            self.root.join("crashed").join(what.hex()),
        );
        let before = Marker::read(&self.seal, what, &record);
        let text = Marker {
            stage: stage.as_str().to_owned(),
            processes: before.as_ref().map_or(0, |before| before.processes) + 1,
            served: before.is_some_and(|before| before.served),
            revision: revision.to_string(),
        };
        if let Err(error) = fs::write(&marker, text.signed(&self.seal, what)) {
            tracing::warn!(path = %marker.display(), %error, "failed to write an attempt marker");
        }
        Attempt { marker, record }
    }

    /// For a graceful shutdown: what is being tried did not crash the process.
    pub(crate) fn forget_attempts(&self) {
        let attempts = fs::read_dir(self.root.join("attempts"));
        for entry in attempts.into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Modules and contents during which a process died. Markers of the last process join those found by earlier ones;
    /// what they name can change only by getting another digest. `served` has the digests of the last good set.
    pub(crate) fn crashed(&self, served: &HashSet<Digest>) -> Crashed {
        let (attempts, crashed) = (self.root.join("attempts"), self.root.join("crashed"));
        for entry in fs::read_dir(&attempts).into_iter().flatten().flatten() {
            let moved = fs::rename(entry.path(), crashed.join(entry.file_name()));
            if let Err(error) = moved {
                tracing::warn!(path = %entry.path().display(), %error, "failed to keep an attempt marker");
            }
        }
        let mut all = Crashed::default();
        for entry in fs::read_dir(&crashed).into_iter().flatten().flatten() {
            let Some((digest, marker)) = recorded(&self.seal, &entry.path(), served) else {
                continue;
            };
            if marker.served && marker.processes <= AT_ONCE {
                tracing::warn!(
                    revision = marker.revision,
                    "a process died while it prepared this revision, which served before: trying it again"
                );
                continue;
            }
            if marker.served {
                all.in_a_row = all.in_a_row.max(marker.processes);
            }
            all.failures.insert(digest, marker.failure());
        }
        all
    }
}

/// A record and what it is about. That it was served is written down: the next set on disk may not have it.
fn recorded(seal: &Seal, path: &Path, served: &HashSet<Digest>) -> Option<(Digest, Marker)> {
    let digest: Digest = format!("sha256:{}", path.file_name()?.to_str()?)
        .parse()
        .ok()?;
    let mut marker = Marker::read(seal, &digest, path)?;
    if !marker.served && served.contains(&digest) {
        marker.served = true;
        if let Err(error) = fs::write(path, marker.signed(seal, &digest)) {
            tracing::warn!(path = %path.display(), %error, "failed to keep an attempt marker");
        }
    }
    Some((digest, marker))
}

// === impl Attempt ===

impl Drop for Attempt {
    fn drop(&mut self) {
        for path in [&self.marker, &self.record] {
            if let Err(error) = fs::remove_file(path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "failed to remove an attempt marker");
            }
        }
    }
}

// === impl Marker ===

impl Marker {
    /// A marker that is not authentic is ignored: whoever can write to the directory could keep this evaluator from
    /// loading what he likes.
    fn read(seal: &Seal, what: &Digest, path: &Path) -> Option<Self> {
        let file = fs::read_to_string(path).ok()?;
        let line = seal.check(&what.to_string(), &file);
        if line.is_none() {
            tracing::warn!(path = %path.display(), "ignoring an attempt marker that is not authentic");
        }
        line.map(Self::parse)
    }

    fn signed(&self, seal: &Seal, what: &Digest) -> String {
        seal.sign(&what.to_string(), &self.to_string())
    }

    /// A marker that can't be read, or that an older version wrote, is of new content.
    fn parse(text: &str) -> Self {
        let mut fields = text.splitn(4, ' ');
        let mut field = || fields.next().unwrap_or_default();
        let (stage, processes, served, revision) = (field(), field(), field(), field());
        let Ok(processes) = processes.parse() else {
            let (stage, revision) = text.split_once(' ').unwrap_or((text, "it"));
            return Self {
                stage: stage.to_owned(),
                processes: 1,
                served: false,
                revision: revision.to_owned(),
            };
        };
        Self {
            stage: stage.to_owned(),
            processes,
            served: served == "served",
            revision: revision.to_owned(),
        }
    }

    fn failure(&self) -> Failure {
        let (stage, doing, advice) = match self.stage.as_str() {
            "compile" => (Stage::Compile, "compiled", MODULE),
            "instantiate" => (Stage::Instantiate, "linked", MODULE),
            _ => (Stage::SelfTest, "tested", CONTENT),
        };
        let (revision, processes) = (&self.revision, self.processes);
        if self.served {
            let message = format!(
                "the evaluator went down {processes} times in a row while {revision} was being {doing}; {AGAIN}"
            );
            return Failure::transient(stage, message);
        }
        let message =
            format!("the evaluator went down while {revision} was being {doing}; {advice}");
        Failure::permanent(stage, message)
    }
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let served = if self.served { "served" } else { "new" };
        let Self {
            stage,
            processes,
            revision,
            ..
        } = self;
        write!(f, "{stage} {processes} {served} {revision}")
    }
}
