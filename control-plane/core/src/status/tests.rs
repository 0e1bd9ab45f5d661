#![allow(clippy::unwrap_used)]

use std::{fmt::Write as _, time::Duration};

use expect_test::{Expect, expect};

use super::*;
use crate::{
    fixtures::{
        mk_applied, mk_id, mk_node, mk_policy, mk_refused, mk_rejection, mk_revision, mk_snapshot,
    },
    fleet::CountedReplicas,
    rollout::{Input, Refusal, RefusalReason, StoredRevisions, Timing},
    session::Report,
    time::Millis,
};

mod rows;

/// A policy and its replicas. Names have no digits, so that none in a message is a name's.
struct Case {
    rollout: Rollout,
    fleet: Fleet,
    streams: u64,
}

impl Case {
    /// The newest generation, and what of it is stored.
    fn new(generation: i64, active: Option<i64>, candidate: Option<i64>) -> Self {
        let timing = Timing::for_webhook(Duration::from_secs(600), Duration::from_secs(10));
        let stored = StoredRevisions {
            active: active.map(|g| mk_policy("p", g)),
            candidates: candidate.map(|g| mk_policy("p", g)).into_iter().collect(),
            ..StoredRevisions::default()
        };
        let rollout = Rollout::new(mk_id("p"), Millis(0), generation, timing);
        Self {
            rollout: rollout.restore(Millis(0), stored),
            fleet: Fleet::new(CountedReplicas::All, Duration::from_secs(60)),
            streams: 0,
        }
    }

    fn refused(mut self, reason: RefusalReason, message: &str) -> Self {
        let input = Input::Refused {
            generation: self.rollout.generation(),
            refusal: Refusal {
                reason,
                message: message.into(),
            },
        };
        self.rollout.step(Millis(0), input, &mut Vec::new());
        self
    }

    fn at(mut self, seconds: u64) -> Self {
        let (now, fleet) = (Millis(seconds * 1_000), &self.fleet);
        self.rollout.settle(now, |r| fleet.fold(r), &mut Vec::new());
        self
    }

    fn expect(mut self, names: &[&str]) -> Self {
        self.fleet
            .expect(Millis(0), names.iter().map(|n| Name::from(*n)));
        self
    }

    fn replica(mut self, name: &str, report: Option<Report>) -> Self {
        self.streams += 1;
        let node = mk_node(name, "i");
        self.fleet
            .opened(Millis(0), node, String::new(), self.streams);
        if let Some(report) = report {
            self.fleet.reported(Millis(0), name, self.streams, report);
        }
        self
    }

    /// A replica that serves these generations.
    fn serves(self, name: &str, generations: &[i64]) -> Self {
        self.replica(name, Some(mk_applied(&mk_set(generations), &[])))
    }

    /// A replica that took these generations but could not load `bad`.
    fn rejects(self, name: &str, generations: &[i64], bad: i64) -> Self {
        let named = mk_rejection("p", bad);
        self.replica(name, Some(mk_applied(&mk_set(generations), &[named])))
    }

    fn joins(self, name: &str) -> Self {
        self.replica(name, None)
    }

    fn leaves(mut self, name: &str) -> Self {
        self.fleet.closed(Millis(0), name, self.streams);
        self
    }

    fn status(&self) -> PolicyStatus {
        PolicyStatus::of(&self.rollout, &self.fleet, false)
    }

    /// Expects exactly these conditions and rows.
    #[track_caller]
    fn check(&self, expect: Expect) {
        let status = self.status();
        for condition in status
            .conditions
            .iter()
            .chain(status.replicas.iter().map(|r| &r.ready))
        {
            let counts = condition.message.contains(|c: char| c.is_ascii_digit());
            assert!(!counts, "a message counts: {}", condition.message);
        }
        expect.assert_eq(&show(&status));
    }

    /// Expects these reasons, in the order of the conditions.
    #[track_caller]
    fn reasons(&self, expect: [&str; 4]) {
        let status = self.status();
        let reasons = status
            .conditions
            .each_ref()
            .map(|c| format!("{} {}", c.status.as_str(), c.reason));
        assert_eq!(reasons, expect);
    }
}

fn mk_set(generations: &[i64]) -> std::sync::Arc<crate::Snapshot> {
    let set: Vec<(&str, i64)> = generations.iter().map(|g| ("p", *g)).collect();
    mk_snapshot(&set)
}

fn show(status: &PolicyStatus) -> String {
    let mut text = String::new();
    let short = |p: &RevisionRef| format!("{} ({})", p.revision.short(), p.generation);
    for (name, pointer) in [("active", &status.active), ("pending", &status.pending)] {
        let pointer = pointer.as_ref().map_or("none".into(), short);
        writeln!(text, "{name} {pointer}").unwrap();
    }
    for c in &status.conditions {
        writeln!(
            text,
            "{} {} {}: {}",
            c.kind,
            c.status.as_str(),
            c.reason,
            c.message
        )
        .unwrap();
    }
    for row in &status.replicas {
        let (generation, c) = (row.generation, &row.ready);
        let generation = generation.map_or("nothing".into(), |g| g.to_string());
        let (name, truth) = (&row.name, c.status.as_str());
        writeln!(
            text,
            "- {name} serves {generation}, {truth} {}: {}",
            c.reason, c.message
        )
        .unwrap();
    }
    text
}

#[test]
fn a_new_policy_is_pending() {
    Case::new(1, None, None).serves("x", &[]).check(expect![[r#"
        active none
        pending none
        Accepted Unknown Pending: the module is being fetched and checked
        Programmed Unknown Pending: this generation is not a revision yet
        Enforced Unknown Pending: this generation is being checked
        Ready Unknown Pending: no revision is enforced yet
    "#]]);
}

#[test]
fn every_refusal_has_its_reason_and_the_module_s_words() {
    for (reason, word) in [
        (RefusalReason::Invalid, "False Invalid"),
        (RefusalReason::PullError, "False PullError"),
        (RefusalReason::SignatureRejected, "False SignatureRejected"),
        (RefusalReason::TargetNotFound, "False TargetNotFound"),
        (RefusalReason::Conflicted, "False Conflicted"),
    ] {
        let case = Case::new(1, None, None).refused(reason, "settings: no such field");
        case.reasons([
            word,
            "Unknown Pending",
            "False NotProgrammed",
            "False NotServed",
        ]);
        let status = case.status();
        assert_eq!(
            status.condition(ConditionType::Accepted).message,
            "settings: no such field"
        );
    }
}

#[test]
fn refused_edit_keeps_the_last_good_revision() {
    let case =
        Case::new(2, Some(1), None).refused(RefusalReason::Invalid, "settings: no such field");
    case.serves("x", &[1]).check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending none
        Accepted False Invalid: settings: no such field
        Programmed Unknown Pending: this generation was not accepted and is not distributed
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - x serves 1, True Applied: serves the revision
    "#]]);
}

#[test]
fn a_candidate_is_reconciling_while_replicas_load_it() {
    let case = Case::new(2, Some(1), Some(2))
        .serves("x", &[1, 2])
        .serves("y", &[1]);
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Reconciling: y: has not answered for the revision yet
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - y serves 1, False Behind: has not answered for the revision yet
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn a_first_candidate_is_not_served() {
    Case::new(1, None, Some(1)).joins("x").reasons([
        "True Accepted",
        "False Reconciling",
        "False NotProgrammed",
        "False NotServed",
    ]);
}

#[test]
fn a_candidate_that_everyone_has_waits_for_its_webhook() {
    let case = Case::new(2, Some(1), Some(2)).serves("x", &[1, 2]);
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed True Programmed: every required replica serves this generation
        Enforced False WebhookPending: every required replica serves this generation; the webhook is being changed
        Ready True LastGood: an earlier generation is enforced
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn rejected_candidate_names_the_replica_and_the_error() {
    let case = Case::new(2, Some(1), Some(2))
        .serves("x", &[1, 2])
        .rejects("y", &[1, 2], 2);
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Rejected: y: settings refused
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - y serves 1, False SettingsRejected: settings refused
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn a_snapshot_refused_whole_rejects_the_candidate_alone() {
    let before = mk_set(&[1]);
    let refused = mk_refused(&mk_set(&[1, 2]), Some(&before));
    let case = Case::new(2, Some(1), Some(2)).replica("x", Some(refused));
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Rejected: x: refused the whole snapshot: version does not match
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - x serves 1, False SnapshotRefused: refused the whole snapshot: version does not match
    "#]]);
}

#[test]
fn candidate_without_replicas_reports_no_replicas() {
    Case::new(2, Some(1), Some(2)).check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False NoReplicas: no replica of the policy server is connected or expected; start one, or check the server's name
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready False NotServed: no replica serves the active revision
    "#]]);
}

#[test]
fn a_stalled_candidate_names_who_it_waits_for() {
    let case = Case::new(2, Some(1), Some(2)).serves("x", &[1]).at(600);
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Stalled: not applied everywhere within the progress deadline: x: has not answered for the revision yet
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - x serves 1, False Behind: has not answered for the revision yet
    "#]]);
    let case = Case::new(2, Some(1), Some(2))
        .rejects("x", &[1, 2], 2)
        .at(600);
    let stalled = "not applied everywhere within the progress deadline: x: settings refused";
    assert_eq!(
        case.status().condition(ConditionType::Programmed).message,
        stalled
    );
}

#[test]
fn a_required_replica_that_is_away_blocks_and_is_named() {
    let case = Case::new(2, Some(1), Some(2))
        .expect(&["x", "y"])
        .serves("x", &[1, 2]);
    case.check(expect![[r#"
        active 1-5f2a9c1e (1)
        pending 2-5f2a9c1e (2)
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Reconciling: y: is not connected
        Enforced False NotProgrammed: this generation is not applied everywhere
        Ready True LastGood: an earlier generation is enforced
        - y serves nothing, Unknown Disconnected: is not connected
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn enforced_means_that_the_newest_generation_is_everywhere() {
    Case::new(2, Some(2), None)
        .serves("x", &[1, 2])
        .check(expect![[r#"
        active 2-5f2a9c1e (2)
        pending none
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed True Programmed: every required replica serves this generation
        Enforced True Enforced: the webhook points at this generation
        Ready True Current: the newest generation is enforced
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn r37_a_joining_replica_never_undoes_enforced() {
    Case::new(2, Some(2), None)
        .serves("x", &[2])
        .joins("y")
        .check(expect![[r#"
        active 2-5f2a9c1e (2)
        pending none
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed True Programmed: every required replica serves this generation
        Enforced True Enforced: the webhook points at this generation
        Ready True Current: the newest generation is enforced
        - y serves nothing, False Behind: has not answered for the revision yet
        - x serves 2, True Applied: serves the revision
    "#]]);
}

#[test]
fn r37_a_replica_that_left_never_undoes_enforced() {
    Case::new(2, Some(2), None)
        .serves("x", &[2])
        .leaves("x")
        .check(expect![[r#"
        active 2-5f2a9c1e (2)
        pending none
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed True Programmed: every required replica serves this generation
        Enforced True Enforced: the webhook points at this generation
        Ready True Current: the newest generation is enforced
        - x serves 2, Unknown Disconnected: is not connected
    "#]]);
}

#[test]
fn r17_an_active_revision_that_fails_later_is_partly_enforced() {
    let case = Case::new(2, Some(2), None)
        .serves("x", &[2])
        .rejects("y", &[2], 2);
    case.check(expect![[r#"
        active 2-5f2a9c1e (2)
        pending none
        Accepted True Accepted: module and settings were checked and can be loaded
        Programmed False Rejected: y: settings refused
        Enforced False PartiallyEnforced: y: settings refused
        Ready False NotServed: a replica does not serve the active revision
        - y serves nothing, False SettingsRejected: settings refused
        - x serves 2, True Applied: serves the revision
    "#]]);
    // One that answered and lacks it is as true a gap as one that refused it.
    Case::new(2, Some(2), None).serves("x", &[1]).reasons([
        "True Accepted",
        "False Reconciling",
        "False PartiallyEnforced",
        "False NotServed",
    ]);
}

#[test]
fn an_active_revision_without_replicas_is_not_served() {
    Case::new(2, Some(2), None).reasons([
        "True Accepted",
        "False NoReplicas",
        "False NotProgrammed",
        "False NotServed",
    ]);
}

#[test]
fn pending_edit_keeps_the_last_good_revision() {
    Case::new(3, Some(2), None).serves("x", &[2]).reasons([
        "Unknown Pending",
        "Unknown Pending",
        "Unknown Pending",
        "True LastGood",
    ]);
}

#[test]
fn the_newest_edit_counts_while_an_older_one_is_on_its_way() {
    let case = Case::new(3, Some(1), Some(2)).serves("x", &[1, 2]);
    case.reasons([
        "Unknown Pending",
        "Unknown Pending",
        "Unknown Pending",
        "True LastGood",
    ]);
    let status = case.status();
    assert_eq!(status.observed_generation, 3);
    assert_eq!(status.pending.unwrap().revision, mk_revision("p", 2));
}

#[test]
fn after_a_restart_conditions_stand_until_replicas_had_time() {
    let case = Case::new(1, Some(1), None);
    case.reasons([
        "True Accepted",
        "False NoReplicas",
        "False NotProgrammed",
        "False NotServed",
    ]);
    let settling = PolicyStatus::of(&case.rollout, &case.fleet, true);
    let truths = settling.conditions.each_ref().map(|c| c.status);
    assert_eq!(truths, [ConditionStatus::True; 4]);
}

#[test]
fn a_conflict_leaves_the_first_in_force() {
    Case::new(1, Some(1), None)
        .serves("r", &[1])
        .refused(RefusalReason::Conflicted, "two files")
        .reasons([
            "False Conflicted",
            "True Programmed",
            "True Enforced",
            "True Current",
        ]);
}
