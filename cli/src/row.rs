//! The summary of one policy in one line.

use std::fmt;

use assent_api::parse;
use assent_control_plane::standalone::{ManifestProblem, PolicyObject};

use crate::{
    out::clean,
    report::{Condition, Policy},
    table::Table,
};

/// A policy's summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) policy: String,
    generation: i64,
    active: Option<i64>,
    accepted: String,
    applied: i64,
    wanted: i64,
    enforced: String,
    /// The reason of the first condition that is not true, or of the last condition.
    reason: String,
    /// The message of that condition; empty if all conditions are true.
    message: String,
}

/// A borrowed condition.
struct Part<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

// === impl Row ===

impl Row {
    /// The columns of a table of rows.
    pub(crate) const HEADER: [&str; 7] = [
        "POLICY",
        "GENERATION",
        "ACTIVE",
        "ACCEPTED",
        "APPLIED",
        "ENFORCED",
        "REASON",
    ];

    /// Makes a table of rows.
    pub(crate) fn table<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Table {
        let mut table = Table::new(Self::HEADER);
        for row in rows {
            table.push(row.cells());
        }
        table
    }

    /// The cells of the row.
    pub(crate) fn cells(&self) -> [String; 7] {
        let active = self.active.map(|active| active.to_string());
        [
            self.policy.clone(),
            self.generation.to_string(),
            active.unwrap_or_default(),
            self.accepted.clone(),
            format!("{}/{}", self.applied, self.wanted),
            self.enforced.clone(),
            self.why(),
        ]
    }

    /// The reason, with its message if there is one.
    pub(crate) fn why(&self) -> String {
        match self.message.is_empty() {
            true => self.reason.clone(),
            false => format!("{}: {}", self.reason, clean(&self.message)),
        }
    }

    /// Fills in the conditions, which are in the order in which they become true.
    fn with_conditions<'a>(mut self, parts: impl Iterator<Item = Part<'a>>) -> Self {
        for part in parts.filter(|part| part.kind != "Ready") {
            let cell = match part.kind {
                "Accepted" => Some(&mut self.accepted),
                "Enforced" => Some(&mut self.enforced),
                _ => None,
            };
            if let Some(cell) = cell {
                part.status.clone_into(cell);
            }
            if self.message.is_empty() {
                part.reason.clone_into(&mut self.reason);
                if part.status != "True" {
                    part.message.clone_into(&mut self.message);
                }
            }
        }
        self
    }
}

impl From<&Policy> for Row {
    fn from(policy: &Policy) -> Self {
        let part = |c: &'_ Condition| {
            (
                c.r#type.clone(),
                c.status.clone(),
                c.reason.clone(),
                c.message.clone(),
            )
        };
        let parts: Vec<_> = policy.conditions.iter().map(part).collect();
        let row = Self {
            policy: policy.policy.clone(),
            generation: policy.generation,
            active: policy.active_revision.as_deref().and_then(generation),
            accepted: "Unknown".into(),
            applied: policy.rollout.applied.into(),
            wanted: policy.rollout.desired.into(),
            enforced: "Unknown".into(),
            reason: String::new(),
            message: String::new(),
        };
        row.with_conditions(parts.iter().map(|(kind, status, reason, message)| Part {
            kind,
            status,
            reason,
            message,
        }))
    }
}

impl From<&PolicyObject> for Row {
    fn from(object: &PolicyObject) -> Self {
        let text = |field: &str| object.metadata[field].as_str().unwrap_or_default();
        let kind = parse::Kind::parse(object.kind);
        let key = kind.and_then(|kind| kind.policy_key(text("namespace"), text("name")));
        let policy = key.map_or_else(|| text("name").to_owned(), |key| key.to_string());
        let status = &object.status;
        let rollout = status.rollout.unwrap_or_default();
        let row = Self {
            policy,
            generation: object.metadata["generation"].as_i64().unwrap_or_default(),
            active: status.active.as_ref().map(|active| active.generation),
            accepted: "Unknown".into(),
            applied: rollout.applied.into(),
            wanted: rollout.desired.into(),
            enforced: "Unknown".into(),
            reason: String::new(),
            message: String::new(),
        };
        row.with_conditions(status.conditions.iter().map(|condition| Part {
            kind: &condition.type_,
            status: &condition.status,
            reason: &condition.reason,
            message: &condition.message,
        }))
    }
}

/// A manifest that names no policy stands in the place of one.
impl From<&ManifestProblem> for Row {
    fn from(problem: &ManifestProblem) -> Self {
        Self {
            policy: problem.place.clone(),
            generation: 0,
            active: None,
            accepted: "False".into(),
            applied: 0,
            wanted: 0,
            enforced: "False".into(),
            reason: problem.reason.into(),
            message: problem.message.clone(),
        }
    }
}

/// One line, for logs and scripts.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} generation={} accepted={} applied={}/{} enforced={} active={} reason={}",
            self.policy,
            self.generation,
            self.accepted,
            self.applied,
            self.wanted,
            self.enforced,
            self.active.map_or("-".into(), |active| active.to_string()),
            self.reason,
        )?;
        match self.message.is_empty() {
            true => Ok(()),
            false => write!(f, " message={:?}", clean(&self.message)),
        }
    }
}

/// The generation in `<generation>-<uid8>`.
fn generation(revision: &str) -> Option<i64> {
    revision.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Counts;

    fn mk_policy(conditions: &[(&str, &str, &str, &str)]) -> Policy {
        let condition = |(kind, status, reason, message): &(&str, &str, &str, &str)| Condition {
            r#type: (*kind).into(),
            status: (*status).into(),
            reason: (*reason).into(),
            message: (*message).into(),
            observed_generation: 2,
            last_transition_time: None,
        };
        Policy {
            policy: "cluster/a".into(),
            generation: 2,
            enforced: false,
            active_revision: Some("1-5f2a9c1e".into()),
            candidate_revision: None,
            rollout: Counts {
                desired: 3,
                applied: 2,
                rejected: 0,
                behind: 1,
                disconnected: 0,
            },
            conditions: conditions.iter().map(condition).collect(),
        }
    }

    #[track_caller]
    fn check(conditions: &[(&str, &str, &str, &str)], expect: &str) {
        let row = Row::from(&mk_policy(conditions)).to_string();
        assert_eq!(row, format!("cluster/a generation=2 {expect}"));
    }

    #[test]
    fn first_false_condition_gives_the_reason() {
        check(
            &[
                ("Accepted", "True", "Accepted", "fine"),
                ("Programmed", "False", "Reconciling", "evaluator-1:\nbehind"),
                ("Enforced", "False", "NotProgrammed", "not everywhere"),
                ("Ready", "True", "LastGood", "an earlier one"),
            ],
            "accepted=True applied=2/3 enforced=False active=1 reason=Reconciling message=\"evaluator-1: behind\"",
        );
        check(
            &[
                ("Accepted", "False", "Invalid", "bad"),
                ("Enforced", "False", "NotProgrammed", "x"),
            ],
            "accepted=False applied=2/3 enforced=False active=1 reason=Invalid message=\"bad\"",
        );
    }

    #[test]
    fn enforced_policy_has_no_message() {
        check(
            &[
                ("Accepted", "True", "Accepted", "fine"),
                ("Programmed", "True", "Programmed", "fine"),
                ("Enforced", "True", "Enforced", "fine"),
            ],
            "accepted=True applied=2/3 enforced=True active=1 reason=Enforced",
        );
    }
}
