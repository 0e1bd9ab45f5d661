#![allow(clippy::unwrap_used)]

use super::*;
use crate::fixtures::{mk_applied, mk_node, mk_refused, mk_rejection, mk_revision, mk_snapshot};

mod props;

/// As long as a replica that left still counts.
pub(super) const GRACE: Duration = Duration::from_secs(60);

struct Script {
    fleet: Fleet,
    now: Millis,
}

impl Script {
    fn new(counted: CountedReplicas) -> Self {
        Self {
            fleet: Fleet::new(counted, GRACE),
            now: Millis(1_000),
        }
    }

    fn everyone() -> Self {
        Self::new(CountedReplicas::All)
    }

    fn expecting(names: &[&str]) -> Self {
        let mut script = Self::new(CountedReplicas::Expected);
        script.expect(names);
        script
    }

    fn expect(&mut self, names: &[&str]) -> &mut Self {
        let names: Vec<Name> = names.iter().map(|n| (*n).into()).collect();
        self.fleet.expect(self.now, names);
        self
    }

    fn open(&mut self, name: &str, instance: &str, stream: u64) -> &mut Self {
        let node = mk_node(name, instance);
        self.fleet
            .opened(self.now, node, format!("pod {name}"), stream);
        self
    }

    fn report(&mut self, name: &str, stream: u64, report: Report) -> &mut Self {
        self.fleet.reported(self.now, name, stream, report);
        self
    }

    fn takes(&mut self, name: &str, stream: u64, set: &[(&str, i64)]) -> &mut Self {
        self.report(name, stream, mk_applied(&mk_snapshot(set), &[]))
    }

    fn close(&mut self, name: &str, stream: u64) -> &mut Self {
        self.fleet.closed(self.now, name, stream);
        self
    }

    fn pass(&mut self, millis: u64) -> &mut Self {
        self.now = self.now + Duration::from_millis(millis);
        self.fleet.tick(self.now);
        self
    }

    /// Expects exactly this to be true of a revision, and rows that say the same.
    #[track_caller]
    fn check(&mut self, (name, generation): (&str, i64), expect: &str) -> &mut Self {
        let revision = mk_revision(name, generation);
        let fold = self.fleet.fold(&revision);
        assert_eq!(show(&fold), expect);
        assert_rows(&self.fleet, &revision, &fold);
        self
    }

    /// Expects these rows, at most `limit`.
    #[track_caller]
    fn rows(&mut self, (name, generation): (&str, i64), limit: usize, expect: &[&str]) {
        let rows = self
            .fleet
            .load_states(&mk_revision(name, generation), limit);
        let rows: Vec<String> = rows
            .iter()
            .map(|(n, s)| format!("{n} {}", word(s)))
            .collect();
        assert_eq!(rows, expect);
    }

    #[track_caller]
    fn states(&mut self, set: &[(&str, i64)], expect: &[(&str, ReplicaState)]) {
        let current = mk_snapshot(set).version();
        let states: Vec<(&str, ReplicaState)> = self
            .fleet
            .replicas()
            .map(|(name, replica)| (&**name, replica.state(current)))
            .collect();
        assert_eq!(states, expect);
    }
}

/// The counters that are not zero, then what follows from them.
pub(super) fn show(fold: &Fold) -> String {
    let counters = [
        ("applied", fold.applied),
        ("rejected", fold.rejected),
        ("behind", fold.behind),
        ("disconnected", fold.disconnected),
    ];
    let counters = counters.iter().filter(|(_, n)| *n > 0);
    let counters = counters.map(|(name, n)| format!("{n} {name}"));
    let flags = [("complete", fold.complete), ("degraded", fold.degraded)];
    let flags = flags.iter().filter(|(_, on)| *on);
    let mut words = vec![format!("{}:", fold.wanted)];
    words.extend(counters.chain(flags.map(|(name, _)| (*name).to_owned())));
    words.join(" ")
}

pub(super) fn word(state: &LoadState) -> &'static str {
    match state {
        LoadState::Rejected(_) => "rejected",
        LoadState::Refused(_) => "refused",
        LoadState::Disconnected => "disconnected",
        LoadState::Behind => "behind",
        LoadState::Applied => "applied",
    }
}

/// Rows are the counters, one by one, and no replica has two.
#[track_caller]
pub(super) fn assert_rows(fleet: &Fleet, revision: &RevisionId, fold: &Fold) {
    let rows = fleet.load_states(revision, usize::MAX);
    let count = |words: &[&str]| {
        let rows = rows.iter().filter(|(_, s)| words.contains(&word(s)));
        u32::try_from(rows.count()).unwrap()
    };
    assert_eq!(count(&["rejected", "refused"]), fold.rejected);
    assert_eq!(count(&["disconnected"]), fold.disconnected);
    assert_eq!(count(&["behind"]), fold.behind);
    assert_eq!(count(&["applied"]), fold.applied);
    let names: BTreeSet<&Name> = rows.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), rows.len());
    let total = fold.applied + fold.rejected + fold.behind + fold.disconnected;
    assert_eq!(total, fold.wanted);
}

const A: &[(&str, i64)] = &[("a", 1)];
const A_AND_B: &[(&str, i64)] = &[("a", 1), ("b", 1)];

#[test]
fn r37_without_replicas_nothing_is_complete() {
    Script::everyone().check(("a", 1), "0:");
    Script::expecting(&[]).check(("a", 1), "0:");
    // A follower is no replica either.
    Script::expecting(&[])
        .open("x", "i", 1)
        .takes("x", 1, A)
        .check(("a", 1), "0:");
}

#[test]
fn revision_is_complete_once_every_replica_has_it() {
    Script::everyone()
        .open("x", "i", 1)
        .check(("a", 1), "1: 1 behind")
        .open("y", "i", 2)
        .takes("x", 1, A)
        .check(("a", 1), "2: 1 applied 1 behind")
        .takes("y", 2, A)
        .check(("a", 1), "2: 2 applied complete")
        .check(("b", 1), "2: 2 behind degraded");
}

#[test]
fn required_replica_that_never_connects_blocks_the_flip() {
    let mut script = Script::expecting(&["x", "y"]);
    script
        .open("x", "i", 1)
        .takes("x", 1, A)
        .check(("a", 1), "2: 1 applied 1 disconnected");
    assert_eq!(
        script.fleet.missing().collect::<Vec<_>>(),
        [&Name::from("y")]
    );
    script
        .expect(&["x"])
        .check(("a", 1), "1: 1 applied complete");
    assert_eq!(script.fleet.missing().count(), 0);
    assert!(script.fleet.replica("y").is_none());
}

/// After a fail-over everyone has the time to reconnect; then absence is reported.
#[test]
fn required_replica_that_never_connects_degrades_after_its_grace() {
    let mut script = Script::expecting(&["x", "y"]);
    script.open("x", "i", 1).takes("x", 1, A);
    assert_eq!(script.fleet.deadline(), Some(Millis(61_000)));
    script
        .pass(59_999)
        .check(("a", 1), "2: 1 applied 1 disconnected")
        .pass(1)
        .check(("a", 1), "2: 1 applied 1 disconnected degraded")
        .rows(("a", 1), 1, &["y disconnected"]);
    assert_eq!(script.fleet.deadline(), None);
    script
        .open("y", "i", 2)
        .check(("a", 1), "2: 1 applied 1 behind")
        .takes("y", 2, A)
        .check(("a", 1), "2: 2 applied complete");
}

#[test]
fn a_follower_is_reported_and_never_counted() {
    let mut script = Script::expecting(&["x"]);
    script.open("x", "i", 1).takes("x", 1, A).open("f", "i", 2);
    script.report("f", 2, mk_refused(&mk_snapshot(A), None));
    script.check(("a", 1), "1: 1 applied complete");
    script.states(
        A,
        &[("f", ReplicaState::Rejected), ("x", ReplicaState::Current)],
    );
    // It counts from the moment that it is expected.
    script
        .expect(&["x", "f"])
        .check(("a", 1), "2: 1 applied 1 rejected degraded")
        .expect(&["x"])
        .check(("a", 1), "1: 1 applied complete");
}

#[test]
fn one_refused_policy_leaves_the_others_applied() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).open("y", "i", 2);
    let set = mk_snapshot(A_AND_B);
    script.takes("x", 1, A_AND_B);
    script.report("y", 2, mk_applied(&set, &[mk_rejection("b", 1)]));
    script
        .check(("a", 1), "2: 2 applied complete")
        .check(("b", 1), "2: 1 applied 1 rejected degraded");
    script.states(
        A_AND_B,
        &[("x", ReplicaState::Current), ("y", ReplicaState::Rejected)],
    );
}

#[test]
fn a_whole_refusal_keeps_what_was_there_before() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A);
    let (before, refused) = (mk_snapshot(A), mk_snapshot(A_AND_B));
    script
        .report("x", 1, mk_refused(&refused, Some(&before)))
        .check(("a", 1), "1: 1 applied complete")
        .check(("b", 1), "1: 1 rejected degraded");
}

#[test]
fn r17_a_late_nack_undoes_an_acknowledgement() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A);
    let late = mk_applied(&mk_snapshot(A), &[mk_rejection("a", 1)]);
    script
        .check(("a", 1), "1: 1 applied complete")
        .report("x", 1, late)
        .check(("a", 1), "1: 1 rejected degraded")
        .takes("x", 1, A)
        .check(("a", 1), "1: 1 applied complete");
}

#[test]
fn r17_taking_back_the_first_answer_of_a_stream_leaves_nothing() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A);
    script
        .report("x", 1, mk_refused(&mk_snapshot(A), None))
        .check(("a", 1), "1: 1 rejected degraded");
    // On a later stream of the same process it leaves what the earlier one had.
    script
        .takes("x", 1, A)
        .open("x", "i", 2)
        .takes("x", 2, A_AND_B);
    script
        .report("x", 2, mk_refused(&mk_snapshot(A_AND_B), None))
        .check(("a", 1), "1: 1 applied complete")
        .check(("b", 1), "1: 1 rejected degraded");
}

#[test]
fn r18_no_answer_is_neither_success_nor_failure() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A);
    script.open("y", "i", 2).pass(600_000);
    script
        .check(("a", 1), "2: 1 applied 1 behind")
        .check(("b", 1), "2: 2 behind degraded");
}

#[test]
fn r28_superseded_stream_is_ignored() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).open("x", "i", 2).takes("x", 2, A);
    let refused = mk_refused(&mk_snapshot(A), None);
    script
        .report("x", 1, refused)
        .check(("a", 1), "1: 1 applied complete")
        .close("x", 1)
        .check(("a", 1), "1: 1 applied complete")
        // Nor does its opening, told late, take over.
        .open("x", "old", 1)
        .check(("a", 1), "1: 1 applied complete")
        .close("x", 2)
        .check(("a", 1), "1: 1 disconnected complete");
}

#[test]
fn r37_within_grace_a_replica_counts_with_its_last_answer() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A);
    script.open("y", "i", 2).takes("y", 2, A).close("y", 2);
    assert_eq!(script.fleet.deadline(), Some(Millis(61_000)));
    script
        .check(("a", 1), "2: 1 applied 1 disconnected complete")
        // It blocks what it has not answered.
        .takes("x", 1, A_AND_B)
        .check(("b", 1), "2: 1 applied 1 disconnected degraded")
        .pass(59_999)
        .check(("b", 1), "2: 1 applied 1 disconnected degraded")
        .pass(1)
        .check(("b", 1), "1: 1 applied complete");
    assert_eq!(script.fleet.deadline(), None);
}

#[test]
fn r37_a_required_replica_blocks_after_its_grace() {
    let mut script = Script::expecting(&["x"]);
    script.open("x", "i", 1).takes("x", 1, A).close("x", 1);
    script
        .check(("a", 1), "1: 1 disconnected complete")
        .pass(60_000)
        .check(("a", 1), "1: 1 disconnected degraded");
    assert_eq!(script.fleet.deadline(), None);
}

#[test]
fn r37_a_reconnect_causes_no_flap() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A).close("x", 1);
    script
        .pass(30_000)
        .open("x", "i", 2)
        .check(("a", 1), "1: 1 applied complete")
        .report("x", 2, Report::default())
        .check(("a", 1), "1: 1 applied complete")
        .pass(300_000)
        .check(("a", 1), "1: 1 applied complete");
}

#[test]
fn r37_new_process_of_a_replica_has_not_answered() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A).close("x", 1);
    script.open("x", "j", 2).check(("a", 1), "1: 1 behind");
    script
        .takes("x", 2, A)
        .check(("a", 1), "1: 1 applied complete");
    // A rejection goes with the process as well.
    let late = mk_applied(&mk_snapshot(A), &[mk_rejection("a", 1)]);
    script.report("x", 2, late).open("x", "k", 3);
    script.check(("a", 1), "1: 1 behind");
}

#[test]
fn r37_a_reconnect_does_not_undo_a_refusal() {
    let mut script = Script::everyone();
    script.open("x", "i", 1);
    script.report("x", 1, mk_refused(&mk_snapshot(A), None));
    script.check(("a", 1), "1: 1 rejected degraded");
    script.close("x", 1).open("x", "i", 2);
    script.check(("a", 1), "1: 1 behind degraded");
    script.report("x", 2, Report::default());
    script.check(("a", 1), "1: 1 behind degraded");
    script
        .takes("x", 2, A)
        .check(("a", 1), "1: 1 applied complete");
}

#[test]
fn refusals_of_those_who_left_are_disconnected_and_still_block() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).open("y", "i", 2).takes("x", 1, A);
    let named = mk_applied(&mk_snapshot(A), &[mk_rejection("a", 1)]);
    script.report("y", 2, named).close("y", 2);
    script.check(("a", 1), "2: 1 applied 1 disconnected degraded");
    script.open("z", "i", 3);
    script.report("z", 3, mk_refused(&mk_snapshot(A), None));
    script.close("z", 3);
    script.check(("a", 1), "3: 1 applied 2 disconnected degraded");
}

#[test]
fn rows_list_replicas_that_lack_the_revision_first() {
    let mut script = Script::everyone();
    for (name, stream) in [("d", 1), ("c", 2), ("b", 3), ("a", 4), ("e", 5)] {
        script.open(name, "i", stream);
    }
    script.takes("a", 4, A).takes("c", 2, A).close("c", 2);
    let named = mk_applied(&mk_snapshot(A), &[mk_rejection("a", 1)]);
    script.report("e", 5, named);
    script.report("d", 1, mk_refused(&mk_snapshot(A), None));
    let all = [
        "e rejected",
        "d refused",
        "c disconnected",
        "b behind",
        "a applied",
    ];
    for limit in 0..=all.len() {
        script.rows(("a", 1), limit, &all[..limit]);
    }
}

#[test]
fn all_at_wants_everyone_there_and_nothing_refused() {
    let version = mk_snapshot(A).version();
    let mut script = Script::everyone();
    assert!(!script.fleet.all_at(version));
    script.open("x", "i", 1);
    assert!(!script.fleet.all_at(version));
    script.takes("x", 1, A);
    assert!(script.fleet.all_at(version));
    let named = mk_applied(&mk_snapshot(A), &[mk_rejection("a", 1)]);
    script.report("x", 1, named);
    assert!(!script.fleet.all_at(version));
    script.takes("x", 1, A).close("x", 1);
    assert!(!script.fleet.all_at(version));
}

#[test]
fn health_check_changes_last_seen_only() {
    let mut script = Script::everyone();
    script.open("x", "i", 1).takes("x", 1, A).pass(5_000);
    script.fleet.heard(script.now, "x");
    script.fleet.heard(script.now, "stranger");
    let replica = script.fleet.replica("x").unwrap();
    assert_eq!(replica.last_seen, Some(Millis(6_000)));
    assert_eq!(replica.connected_since, Some(Millis(1_000)));
    assert_eq!(replica.identity, "pod x");
    assert!(script.fleet.replica("stranger").is_none());
    script.check(("a", 1), "1: 1 applied complete");
}

#[test]
fn feature_is_supported_if_every_counted_replica_reported_it() {
    let mut script = Script::expecting(&["a", "b"]);
    let can = |script: &Script| {
        let fleet = &script.fleet;
        (fleet.supports("x"), fleet.lacks("x"))
    };
    let connect = |script: &mut Script, name: &str, stream: u64, features: &[&str]| {
        let features = features.iter().map(ToString::to_string).collect();
        let node = Node {
            features,
            ..mk_node(name, &stream.to_string())
        };
        let now = script.now;
        script
            .fleet
            .opened(now, node, format!("pod {name}"), stream);
    };
    // Nothing is known of replicas that have not connected.
    assert_eq!(can(&script), (false, false));
    connect(&mut script, "a", 1, &["w", "x"]);
    assert_eq!(can(&script), (false, false));
    connect(&mut script, "b", 2, &["w"]);
    assert_eq!(can(&script), (false, true));
    // Another process of that name has another version.
    connect(&mut script, "b", 3, &["x"]);
    assert_eq!(can(&script), (true, false));
    // A replica keeps what it reported while it is away, and followers never count.
    script.close("b", 3);
    connect(&mut script, "follower", 4, &[]);
    assert_eq!(can(&script), (true, false));
    script.expect(&[]);
    assert_eq!(can(&script), (false, false));
}
