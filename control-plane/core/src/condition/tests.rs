#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use super::*;

const DOCS: &str = include_str!("../../../../docs/status.md");

const HEAD: &str = "| condition | status | reason | when | what to do |\n|---|---|---|---|---|\n";

/// The table of one object as `docs/status.md` shows it.
fn table(object: ConditionedObject) -> String {
    let mut table = HEAD.to_owned();
    for row in REASONS.iter().filter(|row| row.object == object) {
        let DocumentedReason {
            kind,
            status,
            reason,
            when,
            remedy,
            ..
        } = row;
        writeln!(
            table,
            "| `{kind}` | `{status}` | `{reason}` | {when} | {remedy} |"
        )
        .unwrap();
    }
    table.replace("|  |", "| |")
}

/// Tables of reasons in the documentation, in their order.
fn documented() -> Vec<String> {
    let tables = DOCS.split(HEAD).skip(1);
    tables
        .map(|rest| {
            let rows = rest.lines().take_while(|line| line.starts_with('|'));
            rows.fold(HEAD.to_owned(), |table, row| table + row + "\n")
        })
        .collect()
}

#[test]
fn docs_and_code_list_the_same_reasons() {
    let expected = [
        ConditionedObject::Policy,
        ConditionedObject::PolicyReplica,
        ConditionedObject::PolicyServer,
        ConditionedObject::Evaluator,
    ]
    .map(table);
    assert_eq!(
        documented().join("\n"),
        expected.join("\n"),
        "docs/status.md and condition::REASONS must agree"
    );
}

#[test]
fn every_row_is_unique_and_names_a_remedy_if_something_is_wrong() {
    let mut keys: Vec<_> = REASONS
        .iter()
        .map(|row| (row.object, row.kind, row.status, row.reason))
        .collect();
    keys.sort_unstable();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    for row in REASONS {
        assert!(row.when.ends_with('.'), "{row:?}");
        let serves_on = matches!(
            row.reason,
            Reason::LastGood | Reason::SignatureRejected | Reason::SettingsUnavailable
        );
        let healthy = row.status == ConditionStatus::True && !serves_on;
        assert_eq!(healthy, row.remedy.is_empty(), "{row:?}");
    }
}

#[test]
fn names_of_the_api_are_read_back() {
    for kind in ConditionType::ALL {
        assert_eq!(ConditionType::parse(kind.as_str()), Some(kind));
    }
    assert_eq!(ConditionType::parse("Nonsense"), None);
    for status in [
        ConditionStatus::True,
        ConditionStatus::False,
        ConditionStatus::Unknown,
    ] {
        assert_eq!(ConditionStatus::parse(status.as_str()), Some(status));
    }
    assert_eq!(ConditionStatus::parse("true"), None);
}
