//! The results of all cases.

use std::{collections::BTreeSet, fmt::Write as _, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::compare::Differences;
use crate::{
    exit::Exit,
    out::{clean, clean_lines},
    table::Table,
};

/// The results in the order of the cases.
#[derive(Debug, Default)]
pub(super) struct Report(pub(super) Vec<Outcome>);

/// What became of one case.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Empty if the file could not be read.
    pub(super) name: String,
    pub(super) source: String,
    /// Module or manifest; empty if it is not known.
    pub(super) policy: String,
    pub(super) status: Status,
    pub(super) took: Duration,
}

#[derive(Debug)]
pub(super) enum Status {
    Passed,
    Failed(Vec<String>),
    /// It could not be run, or the policy returned no verdict.
    Error(String),
}

// === impl Report ===

impl Report {
    pub(super) fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passed, failed, errors.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let count = |name| {
            self.0
                .iter()
                .filter(|one| one.status.name() == name)
                .count()
        };
        (count("passed"), count("failed"), count("error"))
    }

    pub(super) fn exit(&self) -> Exit {
        match self.counts() {
            (_, _, 1..) => Exit::Unknown,
            (_, failed, 0) => Exit::yes_if(failed == 0),
        }
    }

    /// Files of policies, for watching.
    pub(super) fn policy_files(&self) -> Vec<PathBuf> {
        let files: BTreeSet<PathBuf> = self.0.iter().map(|one| one.policy.clone().into()).collect();
        files.into_iter().filter(|path| path.is_file()).collect()
    }

    /// A table of all cases, what went wrong, and the sums.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(["RESULT", "CASE", "FILE", "TIME"]);
        for one in &self.0 {
            table.push([
                one.status.name().to_owned(),
                one.name.clone(),
                one.source.clone(),
                format!("{:.1} ms", one.took.as_secs_f64() * 1e3),
            ]);
        }
        let mut text = table.to_string();
        for one in &self.0 {
            let lines = one.status.lines();
            if lines.is_empty() {
                continue;
            }
            let name = if one.name.is_empty() { "" } else { ": " };
            let title = format!("{}{name}{}", one.source, one.name);
            // Writing to a String never fails.
            let _ = writeln!(
                text,
                "\n{} {}",
                one.status.name().to_uppercase(),
                clean(&title)
            );
            for line in lines {
                let line = clean_lines(line).replace('\n', "\n  ");
                let _ = writeln!(text, "  {line}");
            }
        }
        let (passed, failed, errors) = self.counts();
        let _ = writeln!(text, "\n{passed} passed, {failed} failed, {errors} not run");
        text
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (passed, failed, errors) = self.counts();
        let mut report = serializer.serialize_struct("Report", 4)?;
        report.serialize_field("passed", &passed)?;
        report.serialize_field("failed", &failed)?;
        report.serialize_field("errors", &errors)?;
        report.serialize_field("cases", &self.0)?;
        report.end()
    }
}

// === impl Outcome ===

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut outcome = serializer.serialize_struct("Case", 6)?;
        outcome.serialize_field("name", &self.name)?;
        outcome.serialize_field("source", &self.source)?;
        outcome.serialize_field("policy", &self.policy)?;
        outcome.serialize_field("result", self.status.name())?;
        outcome.serialize_field("messages", self.status.lines())?;
        outcome.serialize_field("seconds", &self.took.as_secs_f64())?;
        outcome.end()
    }
}

// === impl Status ===

impl Status {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Error(_) => "error",
        }
    }

    pub(super) fn lines(&self) -> &[String] {
        match self {
            Self::Passed => &[],
            Self::Failed(lines) => lines,
            Self::Error(error) => std::slice::from_ref(error),
        }
    }
}

impl From<Differences> for Status {
    fn from(Differences(lines): Differences) -> Self {
        match lines.is_empty() {
            true => Self::Passed,
            false => Self::Failed(lines),
        }
    }
}
