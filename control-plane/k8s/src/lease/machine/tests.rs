#![allow(clippy::unwrap_used)]

use super::*;

mod world;

/// One line per output, so that scripts read as data.
fn show(output: &Output) -> String {
    match output {
        Output::Read => "read".to_owned(),
        Output::Left => "left".to_owned(),
        Output::Role(Role::Leader { transitions }) => format!("leader {transitions}"),
        Output::Role(Role::Follower { leader: None }) => "follower".to_owned(),
        Output::Role(Role::Follower { leader: Some(of) }) => {
            format!("follower of {} at {}", of.identity, of.address)
        }
        Output::Write(draft) => {
            let verb = match (&draft.holder, &draft.version) {
                (None, _) => "release",
                (_, None) => "create",
                _ if draft.acquires => "take",
                _ => "renew",
            };
            let after = draft
                .version
                .as_deref()
                .map(|version| format!(" after {version}"));
            format!("{verb} {}{}", draft.transitions, after.unwrap_or_default())
        }
    }
}

/// A process named `a` with the default durations: 15 s, 10 s, 2 s.
struct Script(Machine);

impl Script {
    fn new() -> Self {
        Self(Machine::new("a", "at-a", Timing::default(), 1_000))
    }

    /// Feeds one input at this second and expects exactly these outputs.
    #[track_caller]
    fn at(&mut self, second: f64, input: Input, expect: &[&str]) -> &mut Self {
        let now = Millis::default() + Duration::from_secs_f64(second);
        let mut out = Vec::new();
        self.0.step(now, input, &mut out);
        let seen: Vec<String> = out.iter().map(show).collect();
        assert_eq!(seen, expect, "at {second}");
        self
    }

    /// A new process that acquired a free Lease at second 0.
    fn leading() -> Self {
        let mut script = Self::new();
        script
            .at(0.0, Input::Tick, &["read"])
            .at(0.0, read("1", "", 7), &["take 8 after 1"])
            .at(0.1, wrote("2", "a", 8), &["leader 8"]);
        script
    }
}

fn mk_record(version: &str, holder: &str, transitions: u64) -> Record {
    Record {
        version: version.to_owned(),
        holder: (!holder.is_empty()).then(|| holder.to_owned()),
        address: format!("at-{holder}"),
        transitions,
        lease: Duration::from_secs(15),
    }
}

fn read(version: &str, holder: &str, transitions: u64) -> Input {
    Input::Read(Some(Some(mk_record(version, holder, transitions))))
}

fn wrote(version: &str, holder: &str, transitions: u64) -> Input {
    Input::Written(Some(mk_record(version, holder, transitions)))
}

const GONE: Input = Input::Read(Some(None));
const UNREAD: Input = Input::Read(None);
const UNWRITTEN: Input = Input::Written(None);

#[test]
fn first_candidate_creates_and_renews_the_lease() {
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.1, GONE, &["create 1000"])
        .at(0.2, wrote("1", "a", 1_000), &["leader 1000"])
        .at(1.0, Input::Tick, &[])
        .at(2.1, Input::Tick, &["renew 1000 after 1"])
        .at(2.2, wrote("2", "a", 1_000), &[])
        .at(4.1, Input::Tick, &["renew 1000 after 2"]);
}

#[test]
fn active_holder_is_left_alone() {
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("1", "b", 7), &["follower of b at at-b"])
        .at(14.0, Input::Tick, &["read"])
        .at(14.0, read("2", "b", 7), &[])
        .at(28.9, Input::Tick, &["read"])
        .at(28.9, read("2", "b", 7), &[])
        .at(30.9, Input::Tick, &["follower", "read"])
        .at(30.9, read("2", "b", 7), &["take 8 after 2"])
        .at(31.0, wrote("3", "a", 8), &["leader 8"]);
}

#[test]
fn longer_lease_in_the_record_is_respected_within_a_bound() {
    let held = |seconds| {
        let mut record = mk_record("1", "b", 7);
        record.lease = Duration::from_secs(seconds);
        Input::Read(Some(Some(record)))
    };
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, held(40), &["follower of b at at-b"])
        .at(39.0, Input::Tick, &["read"])
        .at(39.0, held(40), &[])
        .at(41.0, Input::Tick, &["follower", "read"])
        .at(41.0, held(40), &["take 8 after 1"]);
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, held(1_000_000), &["follower of b at at-b"])
        .at(120.0, Input::Tick, &["follower", "read"])
        .at(120.0, held(1_000_000), &["take 8 after 1"]);
}

#[test]
fn released_lease_is_taken_at_once() {
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("1", "b", 7), &["follower of b at at-b"])
        .at(2.0, Input::Tick, &["read"])
        .at(2.0, read("2", "", 7), &["follower", "take 8 after 2"]);
}

#[test]
fn restarted_process_takes_its_lease_in_a_new_term() {
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("5", "a", 7), &["take 8 after 5"])
        .at(0.1, wrote("6", "a", 8), &["leader 8"]);
}

#[test]
fn second_process_of_the_same_name_is_not_fought() {
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.1, UNWRITTEN, &[])
        .at(4.1, Input::Tick, &["read"])
        .at(4.1, read("3", "a", 9), &["follower"])
        .at(6.1, Input::Tick, &["read"])
        .at(6.1, read("4", "a", 9), &[]);
}

#[test]
fn leadership_ends_ten_seconds_after_the_last_renewal() {
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        // It was sent at 2, whenever the response came.
        .at(5.0, wrote("3", "a", 8), &["renew 8 after 3"])
        .at(10.0, UNWRITTEN, &[])
        .at(11.9, Input::Tick, &[])
        .at(12.0, Input::Tick, &["follower", "read"])
        .at(12.1, UNREAD, &[])
        .at(14.1, Input::Tick, &["read"])
        // No other process took it: acquired again, in a new term.
        .at(14.1, read("3", "a", 8), &["take 9 after 3"])
        .at(14.2, wrote("4", "a", 9), &["leader 9"]);
}

#[test]
fn late_answer_does_not_restore_leadership() {
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(3.0, wrote("3", "a", 8), &[])
        .at(9.0, Input::Tick, &["renew 8 after 3"])
        .at(12.0, Input::Tick, &["follower"])
        // The renewal was good until 19, but the role was reported as lost: a new term.
        .at(12.5, wrote("4", "a", 8), &["read"])
        .at(12.6, read("4", "a", 8), &["take 9 after 4"])
        // And one that took longer than a term lasts.
        .at(22.7, wrote("5", "a", 9), &["read"])
        .at(22.8, read("5", "a", 9), &["take 10 after 5"]);
}

#[test]
fn paused_leader_steps_down_when_it_resumes() {
    Script::leading()
        .at(62.0, Input::Tick, &["follower", "read"])
        .at(62.0, read("9", "b", 9), &["follower of b at at-b"]);
}

#[test]
fn annotation_on_the_lease_changes_nothing() {
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.1, UNWRITTEN, &[])
        .at(4.1, Input::Tick, &["read"])
        .at(4.1, read("3", "a", 8), &["renew 8 after 3"])
        .at(4.2, wrote("4", "a", 8), &[]);
}

#[test]
fn conflicts_and_errors_are_retried_every_two_seconds() {
    let mut script = Script::leading();
    script
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.0, UNWRITTEN, &[]);
    for second in [4.0, 6.0, 8.0] {
        script
            .at(second - 0.1, Input::Tick, &[])
            .at(second, Input::Tick, &["read"])
            .at(second, read("x", "a", 8), &["renew 8 after x"])
            .at(second, UNWRITTEN, &[]);
    }
    script.at(10.0, Input::Tick, &["follower", "read"]);
    let mut script = Script::new();
    for turn in 0..5 {
        let second = f64::from(turn) * 2.0;
        script
            .at(second, Input::Tick, &["read"])
            .at(second, UNREAD, &[])
            .at(second + 1.9, Input::Tick, &[]);
    }
}

#[test]
fn leader_recreates_a_deleted_lease() {
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.0, UNWRITTEN, &[])
        .at(4.0, Input::Tick, &["read"])
        .at(4.0, GONE, &["create 8"])
        .at(4.1, wrote("9", "a", 8), &[])
        .at(6.0, Input::Tick, &["renew 8 after 9"]);
    // Others wait, and then continue with a higher term.
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("1", "b", 2_000), &["follower of b at at-b"])
        .at(2.0, Input::Tick, &["read"])
        .at(2.0, GONE, &["follower"])
        .at(16.9, Input::Tick, &["read"])
        .at(16.9, GONE, &[])
        .at(18.9, Input::Tick, &["read"])
        .at(18.9, GONE, &["create 2001"]);
}

#[test]
fn leader_steps_down_before_it_releases_the_lease() {
    Script::leading()
        .at(1.0, Input::Leave, &["follower", "release 8 after 2"])
        .at(1.1, wrote("3", "", 8), &["left"]);
    Script::leading()
        .at(1.0, Input::Leave, &["follower", "release 8 after 2"])
        .at(1.1, UNWRITTEN, &["left"]);
    Script::new().at(0.0, Input::Leave, &["left"]);
}

#[test]
fn resigning_leader_waits_for_its_pending_write() {
    // The term that just began is released without having been reported.
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("1", "", 7), &["take 8 after 1"])
        .at(0.1, Input::Leave, &[])
        .at(0.2, wrote("2", "a", 8), &["release 8 after 2"])
        .at(0.3, wrote("3", "", 8), &["left"]);
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.1, Input::Leave, &[])
        .at(2.2, UNWRITTEN, &["left"]);
    // If the version is not certain, the Lease is read first.
    Script::leading()
        .at(2.0, Input::Tick, &["renew 8 after 2"])
        .at(2.1, UNWRITTEN, &[])
        .at(2.2, Input::Leave, &["read"])
        .at(2.3, read("3", "a", 8), &["follower", "release 8 after 3"])
        .at(2.4, wrote("4", "", 8), &["left"]);
}

#[test]
fn outranked_leader_begins_a_higher_term() {
    Script::leading()
        .at(1.0, Input::Outranked(40), &[])
        .at(2.1, Input::Tick, &["take 41 after 2"])
        .at(2.2, wrote("3", "a", 41), &["leader 41"])
        .at(4.2, Input::Tick, &["renew 41 after 3"])
        .at(4.3, wrote("4", "a", 41), &[])
        // What is lower than its own term is no reason.
        .at(4.4, Input::Outranked(41), &[])
        .at(6.3, Input::Tick, &["renew 41 after 4"]);
}

#[test]
fn outranked_process_that_lost_the_lease_takes_nothing() {
    // It was paused, and another one leads in term 9.
    Script::leading()
        .at(5.0, Input::Outranked(9), &["take 10 after 2"])
        .at(5.1, UNWRITTEN, &[])
        .at(7.2, Input::Tick, &["read"])
        .at(7.3, read("7", "b", 9), &["follower of b at at-b"])
        .at(9.4, Input::Tick, &["read"])
        .at(9.5, read("8", "b", 9), &[]);
}

#[test]
fn outranked_standby_waits_for_its_turn() {
    Script::new()
        .at(0.0, Input::Tick, &["read"])
        .at(0.0, read("1", "b", 7), &["follower of b at at-b"])
        .at(0.1, Input::Outranked(40), &[])
        .at(2.0, Input::Tick, &["read"])
        .at(2.0, read("1", "b", 7), &[])
        .at(15.0, Input::Tick, &["follower", "read"])
        .at(15.0, read("1", "b", 7), &["take 8 after 1"])
        .at(15.1, wrote("2", "a", 8), &["leader 8"])
        .at(17.1, Input::Tick, &["take 41 after 2"]);
}

#[test]
fn higher_terms_are_begun_once_a_minute() {
    Script::leading()
        .at(2.0, Input::Outranked(40), &["take 41 after 2"])
        .at(2.1, wrote("3", "a", 41), &["leader 41"])
        .at(2.2, Input::Outranked(50), &[])
        .at(4.1, Input::Tick, &["renew 41 after 3"])
        .at(4.2, wrote("4", "a", 41), &[])
        .at(62.1, Input::Tick, &["follower", "read"])
        .at(62.1, read("4", "a", 41), &["take 42 after 4"])
        .at(62.2, wrote("5", "a", 42), &["leader 42"])
        .at(64.2, Input::Tick, &["take 51 after 5"]);
}
