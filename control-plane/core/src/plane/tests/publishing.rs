//! What goes out when, and what does not.

use super::*;

#[test]
fn r20_nothing_goes_out_before_everything_was_read() {
    let mut script = Script::new();
    script.add("p").open("x", "i", 1).settle(&[]).pass(60_000);
    assert!(!script.plane.is_synced());
    assert!(script.plane.server("default").unwrap().version().is_none());
    script
        .step(Event::Synced, &[])
        .settle(&["publish p/1 candidate"]);
    assert!(script.plane.is_synced());
}

#[test]
fn r20_an_empty_set_goes_out_once_it_is_known_to_be_empty() {
    let mut script = Script::new();
    script
        .settle(&[])
        .step(Event::Synced, &[])
        .settle(&["publish"]);
    script.step(Event::Synced, &[]).settle(&[]).pass(60_000);
    assert_eq!(script.published().version(), Snapshot::empty().version());
}

#[test]
fn r20_nothing_goes_out_while_a_server_is_withheld() {
    let withheld = |withheld| Event::ServerWithheld {
        server: "default".into(),
        withheld,
    };
    let mut script = Script::new();
    script
        .step(withheld(true), &[])
        .step(Event::Synced, &[])
        .add("p")
        .settle(&[])
        .pass(60_000);
    // Nothing is due either: whoever waits for a deadline must not spin.
    assert_eq!(script.plane.server("default").unwrap().deadline(), None);
    script
        .step(withheld(false), &[])
        .settle(&["publish p/1 candidate"]);
}

#[test]
fn r22_the_first_change_goes_at_once_and_what_follows_together() {
    let mut script = Script::synced();
    script.add("a").settle(&["publish a/1 candidate"]);
    script.pass(10).add("b").settle(&[]);
    script.pass(30).add("c").settle(&[]);
    script.wait(50, &["publish a/1 candidate b/1 candidate c/1 candidate"]);
    // The window stays open after what went out.
    script.pass(20).add("d").settle(&[]);
    script.wait(
        50,
        &["publish a/1 candidate b/1 candidate c/1 candidate d/1 candidate"],
    );
    script.pass(50).observe("d", 2).ready("d", 2);
    script.settle(&[
        "d: retire 1",
        "publish a/1 candidate b/1 candidate c/1 candidate d/1 candidate d/2 candidate",
    ]);
}

#[test]
fn r22_no_change_waits_longer_than_a_second() {
    let mut script = Script::synced();
    script.add("p").settle(&["publish p/1 candidate"]);
    let mut waited = 0;
    for n in 0..25 {
        script.pass(40).add(&format!("q{n:02}")).settle(&[]);
        waited = 40 * n;
    }
    assert_eq!(waited, 960);
    script.now = script.now + Duration::from_millis(40);
    let mut out = Vec::new();
    script.plane.settle(script.now, &mut out);
    assert_eq!(out.len(), 1, "a second after the first that waited");
    assert_eq!(script.published().policies().len(), 26);
}

/// The event loop is so busy that every settling sees a new version.
#[test]
fn r22_no_change_waits_longer_than_a_second_while_every_settling_brings_one() {
    let mut script = Script::synced();
    script.add("p").settle(&["publish p/1 candidate"]);
    let mut published = Vec::new();
    for n in 1..=60 {
        script.now = script.now + Duration::from_millis(40);
        script.add(&format!("q{n:02}"));
        let mut out = Vec::new();
        script.plane.settle(script.now, &mut out);
        if !out.is_empty() {
            published.push((n, script.published().policies().len()));
        }
    }
    // The first change after a publication waits; 25 looks later it is a second old.
    assert_eq!(published, [(26, 27), (52, 53)]);
}

#[test]
fn r22_reverted_change_within_the_window_sends_nothing() {
    let mut script = Script::synced();
    let id = || mk_id("q");
    let timing = TIMING.with_drain(Duration::ZERO);
    script.add("p").settle(&["publish p/1 candidate"]).pass(10);
    let event = Event::PolicyObserved {
        id: id(),
        server: "default".into(),
        generation: 1,
        timing,
        stored: StoredRevisions::default(),
    };
    script.step(event, &[]).ready("q", 1).settle(&[]).pass(10);
    script.policy("q", Input::Deleted, &["q: unroute"]);
    script
        .policy("q", Input::WebhookRemoved, &[])
        .settle(&["q: release"]);
    script.pass(5_000);
    assert!(script.plane.rollout_of(&id()).is_none());
}

#[test]
fn equal_content_makes_no_new_version() {
    let mut script = Script::enforced();
    for _ in 0..3 {
        script
            .observe("p", 1)
            .ready("p", 1)
            .step(Event::Synced, &[]);
        script.serve("default").settle(&[]).pass(1_000);
    }
    script.step(mk_requests("p", 1), &[]).settle(&[]);
}

#[test]
fn servers_have_sets_of_their_own() {
    let mut script = Script::synced();
    script
        .serve("other")
        .settle(&["publish to other"])
        .pass(1_000);
    let event = mk_observed(mk_id("q"), "other", 1, StoredRevisions::default());
    script.step(event, &[]).ready("q", 1).add("p");
    script.settle(&["publish p/1 candidate", "publish to other q/1 candidate"]);
    // A replica of one says nothing of the other's policies.
    script
        .open("x", "i", 1)
        .pass(1_000)
        .takes("x", 1, &["p: flip none to 1", "applied after 1s"]);
    script
        .step(Event::ServerRemoved("other".into()), &[])
        .settle(&[]);
    let status = script.plane.status(&mk_id("q")).unwrap();
    assert_eq!(
        status.condition(ConditionType::Programmed).reason.as_str(),
        "NoReplicas"
    );
    // Its policies were not destroyed along with it.
    script
        .serve("other")
        .settle(&["publish to other q/1 candidate"]);
}

#[test]
fn policy_of_an_unknown_server_is_not_published() {
    let mut script = Script::synced();
    let event = mk_observed(mk_id("q"), "nowhere", 1, StoredRevisions::default());
    script.step(event, &[]).ready("q", 1).settle(&[]);
    script.open("x", "i", 1).settle(&[]);
    let mut node = mk_node("y", "i");
    node.policy_server = "nowhere".into();
    let opened = StreamEvent::Opened {
        node,
        identity: String::new(),
        stream: 2,
    };
    script.step(opened, &[]).settle(&[]);
    script
        .serve("nowhere")
        .settle(&["publish to nowhere q/1 candidate"]);
}
