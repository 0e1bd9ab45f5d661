#![allow(clippy::unwrap_used)]

use std::time::Duration;

use assent_core::policy::ContextResource;

use super::*;

const ME: ClientId = 7;

fn at(millis: u64) -> Moment {
    Moment {
        at: Millis(millis),
        date: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
    }
}

fn mk_feed() -> Feed {
    let declared = ContextResource {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        ..ContextResource::default()
    };
    let spec = CollectionSpec::new(&declared, "configmaps", true).unwrap();
    Feed::new(Arc::new(spec))
}

fn mk_object(name: &str, data: &str) -> Change {
    let json = format!(
        r#"{{"apiVersion":"v1","data":{{"a":"{data}"}},"kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"n"}}}}"#
    );
    (key(name), Some(json.into_bytes()))
}

fn key(name: &str) -> Key {
    Key::new("n", name).unwrap()
}

/// A copy as an evaluator keeps it: changes are applied at their mark.
struct Copy {
    collection: Collection,
    objects: usize,
}

impl Copy {
    fn of(feed: &Feed) -> Self {
        let collection = Collection::new(feed.spec().clone());
        Self {
            collection,
            objects: 0,
        }
    }

    /// Takes messages until there is nothing more to say; checks each root.
    fn follow(&mut self, feed: &mut Feed, now: u64) -> usize {
        let mut messages = 0;
        let mut named = BTreeSet::new();
        let mut resets = None;
        loop {
            let mut budget = Budget::default();
            let Some(part) = feed.fill(ME, at(now), &mut budget).unwrap() else {
                return messages;
            };
            messages += 1;
            if part.wants_buckets {
                let prefixes = self.collection.bucket_prefixes();
                feed.held(ME, &prefixes).unwrap();
                continue;
            }
            resets = part.resets.or(resets);
            for (key, object) in part.changes {
                self.objects += usize::from(object.is_some());
                named.insert(key.clone());
                match object {
                    Some(object) => drop(self.collection.put(key, object.json()).unwrap()),
                    None => drop(self.collection.remove(&key)),
                }
            }
            let Some(mark) = part.mark else { continue };
            let in_reset = |key: &Key| match &resets {
                None => false,
                Some(Resets::All) => true,
                Some(Resets::Buckets(buckets)) => buckets.contains(&key.bucket()),
            };
            let held = self.collection.iter().map(|o| o.key().clone());
            let kept = held.filter(|key| named.contains(key) || !in_reset(key));
            let kept: BTreeSet<Key> = kept.collect();
            self.collection.retain(&kept);
            assert_eq!(self.collection.root(), mark.root);
            (resets, named) = (None, BTreeSet::new());
        }
    }
}

fn mk_filled(n: usize) -> Feed {
    let mut feed = mk_feed();
    feed.apply((0..n).map(|i| mk_object(&format!("o{i}"), "x")), "1");
    let keys = (0..n).map(|i| key(&format!("o{i}"))).collect();
    feed.complete(&keys, [], "1");
    feed
}

#[test]
fn new_client_gets_everything_and_a_mark() {
    let mut feed = mk_filled(2_000);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    assert_eq!(copy.follow(&mut feed, 0), 1);
    assert_eq!(copy.objects, 2_000);
    assert_eq!(copy.collection.root(), feed.root());
}

#[test]
fn equal_root_sends_no_object() {
    let mut feed = mk_filled(100);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    copy.follow(&mut feed, 0);
    copy.objects = 0;
    let root = copy.collection.root();
    feed.subscribe(ME, Some(root));
    assert_eq!(copy.follow(&mut feed, 1), 1);
    assert_eq!(copy.objects, 0);
}

#[test]
fn other_root_sends_only_buckets_that_differ() {
    let mut feed = mk_filled(10_000);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    copy.follow(&mut feed, 0);
    feed.unsubscribe(ME);
    // Changed, deleted and new while nobody listened.
    feed.apply(
        [
            mk_object("o1", "y"),
            (key("o2"), None),
            mk_object("new", "z"),
        ],
        "2",
    );
    copy.objects = 0;
    let root = copy.collection.root();
    feed.subscribe(ME, Some(root));
    copy.follow(&mut feed, 1);
    assert_eq!(copy.collection.root(), feed.root());
    assert!(copy.objects < 60, "{} objects were sent", copy.objects);
}

#[test]
fn equal_projection_sends_nothing() {
    let mut feed = mk_filled(10);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    copy.follow(&mut feed, 0);
    assert!(!feed.apply([mk_object("o1", "x")], "5"));
    assert_eq!(copy.follow(&mut feed, 1), 0);
}

#[test]
fn large_objects_are_sent_alone_and_messages_are_bounded() {
    let mut feed = mk_feed();
    let large = "l".repeat(ALONE_BYTES + 1);
    let middle = "m".repeat(900 << 10);
    let changes = [
        mk_object("a", &middle),
        mk_object("b", &middle),
        mk_object("c", &large),
        mk_object("d", &middle),
        mk_object("e", &middle),
        mk_object("f", &middle),
    ];
    let keys = changes.iter().map(|(key, _)| key.clone()).collect();
    feed.complete(&keys, changes, "1");
    feed.subscribe(ME, None);
    loop {
        let mut budget = Budget::default();
        let Some(part) = feed.fill(ME, at(0), &mut budget).unwrap() else {
            break;
        };
        let sizes: Vec<usize> = part
            .changes
            .iter()
            .filter_map(|(_, object)| Some(object.as_ref()?.json().len()))
            .collect();
        assert!(sizes.len() == 1 || sizes.iter().all(|size| *size <= ALONE_BYTES));
        assert!(sizes.iter().sum::<usize>() <= MESSAGE_BYTES, "{sizes:?}");
    }
}

#[test]
fn changes_during_a_sweep_are_sent_once_more_only_if_they_were_sent() {
    let mut feed = mk_filled(50_000);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    let mut budget = Budget::default();
    let part = feed.fill(ME, at(0), &mut budget).unwrap().unwrap();
    assert!(part.mark.is_none(), "it must not fit one message");
    // The client is in the middle of its sweep.
    let all: Vec<Change> = (0..50_000)
        .map(|i| mk_object(&format!("o{i}"), "y"))
        .collect();
    feed.apply(all, "2");
    feed.apply([(key("o9"), None)], "3");
    let pending = feed.clients[&ME].pending.len();
    assert!(pending <= part.changes.len() + 100, "{pending}");
    for (key, object) in part.changes {
        let object = object.unwrap();
        copy.collection.put(key, object.json()).unwrap();
    }
    // What was taken of the first message is named, and o9 is deleted or never sent.
    copy.follow_after(&mut feed);
    assert_eq!(copy.collection.root(), feed.root());
}

impl Copy {
    /// Goes on in the middle of a full sweep.
    fn follow_after(&mut self, feed: &mut Feed) {
        loop {
            let mut budget = Budget::default();
            let Some(part) = feed.fill(ME, at(0), &mut budget).unwrap() else {
                return;
            };
            for (key, object) in part.changes {
                match object {
                    Some(object) => drop(self.collection.put(key, object.json()).unwrap()),
                    None => drop(self.collection.remove(&key)),
                }
            }
        }
    }
}

#[test]
fn marks_come_every_ten_seconds() {
    let mut feed = mk_filled(1);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    copy.follow(&mut feed, 0);
    assert_eq!(feed.due(ME), Some(Millis(10_000)));
    assert_eq!(copy.follow(&mut feed, 9_999), 0);
    assert_eq!(copy.follow(&mut feed, 10_000), 1);
    assert_eq!(feed.due(ME), Some(Millis(20_000)));
}

#[test]
fn synced_needs_a_complete_list() {
    let mut feed = mk_feed();
    feed.apply([mk_object("a", "x")], "1");
    feed.set_state(SyncState::Synced, "", at(0));
    assert_eq!(feed.state(), SyncState::Syncing);
    feed.set_state(SyncState::Stale, "gone", at(0));
    assert_eq!(feed.state(), SyncState::Syncing);
    feed.complete(&[key("a")].into(), [], "1");
    assert_eq!(feed.state(), SyncState::Synced);
}

#[test]
fn interrupted_feed_keeps_its_objects_and_ages() {
    let mut feed = mk_filled(3);
    feed.set_state(SyncState::Forbidden, "no", at(5_000));
    let mark = feed.mark(at(8_000));
    assert_eq!(mark.totals.objects, 3);
    assert_eq!(
        (mark.state, mark.age),
        (SyncState::Forbidden, Duration::from_secs(3))
    );
    feed.set_state(SyncState::Synced, "", at(9_000));
    assert_eq!(feed.mark(at(9_000)).age, Duration::ZERO);
}

#[test]
fn client_that_does_not_read_costs_bounded_memory() {
    let mut feed = mk_filled(1);
    feed.subscribe(ME, None);
    let mut copy = Copy::of(&feed);
    copy.follow(&mut feed, 0);
    for i in 0..2 * MAX_EXTRA_KEYS {
        let name = format!("fresh{i}");
        feed.apply([mk_object(&name, "x")], "1");
        feed.apply([(key(&name), None)], "1");
    }
    let mut budget = Budget::default();
    let refused = feed.fill(ME, at(0), &mut budget).map(|_| ());
    assert_eq!(refused, Err(Error::TooFarBehind));
}

#[test]
fn unfinished_list_sends_no_object_and_takes_none_away() {
    let mut feed = mk_filled(100);
    let mut copy = Copy::of(&feed);
    feed.subscribe(ME, None);
    copy.follow(&mut feed, 0);
    let (root, held) = (copy.collection.root(), std::mem::take(&mut copy.objects));
    assert_eq!(held, 100);

    // Another control plane begins to list, and loses its permission before it has finished.
    let mut other = mk_feed();
    other.apply((0..10).map(|i| mk_object(&format!("o{i}"), "x")), "1");
    other.subscribe(ME, Some(root));
    other.set_state(SyncState::Forbidden, "no", at(1));
    let part = other.fill(ME, at(1), &mut Budget::default());
    let part = part.unwrap().unwrap();
    assert!(part.changes.is_empty() && part.resets.is_none() && !part.wants_buckets);
    let mark = part.mark.unwrap();
    assert_eq!(
        (mark.state, mark.detail.as_str()),
        (SyncState::Syncing, "no")
    );

    // The list ends with what the client has: no object is sent.
    let keys = (0..100).map(|i| key(&format!("o{i}"))).collect();
    let rest = (10..100).map(|i| mk_object(&format!("o{i}"), "x"));
    other.complete(&keys, rest, "2");
    assert_eq!(copy.follow(&mut other, 2), 1);
    assert_eq!(copy.objects, 0);
    assert_eq!(other.root(), root);
}
