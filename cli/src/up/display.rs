//! Shows the state of all policies: a table that is redrawn, or a line for each change.

use std::collections::BTreeMap;

use super::screen::Screen;
use crate::{out, row::Row};

/// The output of `assent up`.
pub(super) enum Display {
    /// On a terminal.
    Table(Screen),
    /// Anywhere else, with the rows as they were printed last.
    Lines(BTreeMap<String, Row>),
}

// === impl Display ===

impl Display {
    pub(super) fn new(screen: Option<Screen>) -> Self {
        match screen {
            Some(screen) => Self::Table(screen),
            None => Self::Lines(BTreeMap::new()),
        }
    }

    /// Prints a line that stays.
    pub(super) fn print(&self, text: &str) {
        match self {
            Self::Table(screen) => screen.print(text),
            Self::Lines(_) => print_line(text),
        }
    }

    /// Shows the policies as they are now.
    pub(super) fn show(&mut self, rows: Vec<Row>) {
        match self {
            Self::Table(screen) => {
                let lines = match rows.as_slice() {
                    [] => vec!["no policies yet".to_owned()],
                    rows => Row::table(rows).lines(),
                };
                screen.draw(lines);
            }
            Self::Lines(printed) => {
                for line in changes(printed, rows) {
                    print_line(&line);
                }
            }
        }
    }

    /// Keeps the table on the screen; later output is printed below it.
    pub(super) fn leave(&self) {
        if let Self::Table(screen) = self {
            screen.leave();
        }
    }
}

/// Replaces the rows and returns a line for each that is new, changed or gone.
fn changes(printed: &mut BTreeMap<String, Row>, rows: Vec<Row>) -> Vec<String> {
    let now: BTreeMap<String, Row> = rows
        .into_iter()
        .map(|row| (row.policy.clone(), row))
        .collect();
    let gone = printed.keys().filter(|policy| !now.contains_key(*policy));
    let mut lines: Vec<String> = gone.map(|policy| format!("{policy} deleted")).collect();
    let changed = now
        .iter()
        .filter(|(policy, row)| printed.get(*policy) != Some(row));
    lines.extend(changed.map(|(_, row)| row.to_string()));
    *printed = now;
    lines
}

/// A closed output is ignored: the control plane runs on.
fn print_line(line: &str) {
    let _ = out::line(line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Counts, Policy};

    fn mk_row(policy: &str, applied: u32) -> Row {
        let counts = Counts {
            desired: 3,
            applied,
            rejected: 0,
            behind: 0,
            disconnected: 0,
        };
        Row::from(&Policy {
            policy: policy.into(),
            generation: 1,
            enforced: false,
            active_revision: None,
            candidate_revision: None,
            rollout: counts,
            conditions: Vec::new(),
        })
    }

    #[test]
    fn only_changed_rows_are_printed() {
        let mut printed = BTreeMap::new();
        let both = || vec![mk_row("cluster/a", 0), mk_row("cluster/b", 0)];
        assert_eq!(changes(&mut printed, both()).len(), 2);
        assert!(changes(&mut printed, both()).is_empty());
        let lines = changes(&mut printed, vec![mk_row("cluster/a", 1)]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "cluster/b deleted");
        assert!(
            lines[1].starts_with("cluster/a generation=1 accepted=Unknown applied=1/3"),
            "{}",
            lines[1]
        );
    }
}
