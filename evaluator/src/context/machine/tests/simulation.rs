//! An API server, two control planes that follow it with delays, and an evaluator: schedules of changes, lost connections,
//! fail-overs, restarts and messages that were tampered with. What the evaluator publishes must be a state that the API
//! server once had, and in the end the state that it has.

use std::collections::VecDeque;

use assent_context::feed::{Budget, Change, Feed, Moment, Part, Resets};
use assent_core::{Digest, Millis};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::*;

const SCHEDULES: u64 = 200;
const STEPS: usize = 200;

/// Every so many schedules have one object that is so large that it travels alone: hashing it takes long.
const LARGE: u64 = 40;
const NAMES: usize = 12;

/// A control plane's copy, and what of the API server's changes it has not seen yet.
struct Plane {
    feed: Feed,
    behind: VecDeque<Vec<Change>>,
    transitions: u64,
    listing: bool,
}

struct World {
    random: StdRng,
    api: Collection,
    /// Every state that the API server had.
    existed: BTreeSet<Digest>,
    planes: [Plane; 2],
    leader: usize,
    /// The plane that the evaluator is connected to.
    connected: usize,
    client: u64,
    told: bool,
    /// Sent and not received yet.
    wire: VecDeque<v1::ContextResponse>,
    machine: Machine,
    /// The last published state.
    published: Option<Snapshot>,
    now: u64,
    tampered: bool,
    large: bool,
}

fn mk_spec() -> Arc<CollectionSpec> {
    let declared = ContextResource {
        api_version: "v1".into(),
        kind: "Thing".into(),
        ..ContextResource::default()
    };
    Arc::new(CollectionSpec::new(&declared, "things", true).unwrap())
}

// === impl World ===

impl World {
    fn new(seed: u64) -> Self {
        let spec = mk_spec();
        let mut api = Collection::new(spec.clone());
        let plane = || Plane {
            feed: Feed::new(spec.clone()),
            behind: VecDeque::new(),
            transitions: 0,
            listing: true,
        };
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            existed: [api.root()].into(),
            planes: [plane(), plane()],
            api,
            leader: 0,
            connected: 0,
            client: 0,
            told: false,
            wire: VecDeque::new(),
            machine: Machine::new(0),
            published: None,
            now: 0,
            tampered: false,
            large: seed.is_multiple_of(LARGE),
        };
        world.connect(0);
        world
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random.random_range(0..below)
    }

    fn moment(&self) -> Moment {
        Moment {
            at: Millis(self.now),
            date: SystemTime::UNIX_EPOCH,
        }
    }

    fn step(&mut self) {
        self.now += 500;
        match self.pick(16) {
            0..4 => self.change(),
            4..7 => self.follow(),
            7..10 => self.send(),
            10..13 => self.receive(),
            13 => match self.pick(4) {
                0 => self.fail_over(),
                1 => self.restart(),
                _ => self.connect(self.leader),
            },
            14 => match self.pick(3) {
                // A standby that does not know yet that it lost, or never led.
                0 => self.connect(1 - self.leader),
                1 => self.start_plane(),
                _ => self.interrupt(),
            },
            _ => self.tamper(),
        }
    }

    /// Some objects change at once.
    fn change(&mut self) {
        let mut changes = Vec::new();
        for _ in 0..=self.pick(3) {
            let number = self.pick(NAMES);
            let key = Key::new("a", &format!("o{number}")).unwrap();
            if self.pick(4) == 0 {
                self.api.remove(&key);
                changes.push((key, None));
                continue;
            }
            let size = if number == 0 && self.large {
                1_100_000
            } else {
                1
            };
            let data = format!("{}{}", "x".repeat(size), self.pick(1_000));
            let object =
                json!({"metadata": {"name": format!("o{number}"), "namespace": "a"}, "data": data});
            let (key, json) = self.api.project(object.clone()).unwrap().unwrap();
            self.api.observe(object).unwrap();
            changes.push((key, json));
        }
        self.existed.insert(self.api.root());
        for plane in &mut self.planes {
            plane.behind.push_back(changes.clone());
        }
    }

    /// A control plane sees something: a part of its list, or the next change.
    fn follow(&mut self) {
        let number = self.pick(2);
        let all: Vec<Change> = self.listed();
        let keys: BTreeSet<Key> = all.iter().map(|(key, _)| key.clone()).collect();
        let half = self.pick(2) == 0;
        let plane = &mut self.planes[number];
        // Only a first list is seen page by page.
        match (plane.listing, half && !plane.feed.is_complete()) {
            (true, true) => {
                let page = all.into_iter().take(3);
                plane.feed.apply(page, "");
            }
            (true, false) => {
                plane.feed.complete(&keys, all, "1");
                plane.behind.clear();
                plane.listing = false;
            }
            (false, _) => {
                if let Some(changes) = plane.behind.pop_front() {
                    plane.feed.apply(changes, "2");
                }
            }
        }
    }

    fn listed(&self) -> Vec<Change> {
        let objects = self.api.iter();
        objects
            .map(|o| (o.key().clone(), Some(o.json().to_vec())))
            .collect()
    }

    /// The watch of a control plane breaks, or its permission is withdrawn; it lists again.
    fn interrupt(&mut self) {
        let states = [SyncState::Stale, SyncState::Forbidden, SyncState::Synced];
        let state = states[self.pick(3)];
        let (number, now) = (self.pick(2), self.moment());
        let plane = &mut self.planes[number];
        plane.feed.set_state(state, "interrupted", now);
        plane.listing = true;
        plane.behind.clear();
    }

    /// A control plane starts again with nothing in memory.
    fn start_plane(&mut self) {
        let number = self.pick(2);
        self.planes[number].feed = Feed::new(mk_spec());
        self.planes[number].listing = true;
        self.planes[number].behind.clear();
        if self.connected == number {
            self.connect(self.leader);
        }
    }

    fn fail_over(&mut self) {
        self.leader = 1 - self.leader;
        self.planes[self.leader].transitions = self.planes[1 - self.leader].transitions + 1;
    }

    /// The evaluator starts again with what it has on disk.
    fn restart(&mut self) {
        let seen = self.machine.lease_transitions();
        self.machine = Machine::new(seen);
        if let Some(kept) = &self.published {
            let mut collection = Collection::new(kept.spec().clone());
            for object in kept.iter() {
                collection.put(object.key().clone(), object.json()).unwrap();
            }
            self.machine.restore(collection, Limits::default());
        }
        self.connect(self.leader);
    }

    /// What was under way is lost.
    fn connect(&mut self, to: usize) {
        self.planes[self.connected].feed.unsubscribe(self.client);
        self.wire.clear();
        self.client += 1;
        self.connected = to;
        self.told = false;
        let held = self.machine.held();
        let root = held.first().map(|held| held.root.clone());
        let root = root.filter(|root| !root.is_empty());
        let root = root.map(|root| wire::root(&root).unwrap());
        self.planes[to].feed.subscribe(self.client, root);
    }

    fn send(&mut self) {
        if self.wire.len() >= 4 {
            return;
        }
        let (client, now) = (self.client, self.moment());
        let plane = &mut self.planes[self.connected];
        let part = plane.feed.fill(client, now, &mut Budget::default());
        let Some(part) = part.unwrap() else { return };
        let told = std::mem::replace(&mut self.told, true);
        let message = message(plane, part, told);
        self.wire.push_back(message);
    }

    fn receive(&mut self) {
        let Some(message) = self.wire.pop_front() else {
            return;
        };
        let mut out = Vec::new();
        self.machine.receive(message, &mut out);
        let mut reconnect = false;
        for output in out {
            match output {
                Output::Publish(Published {
                    snapshot: Some(snapshot),
                    ..
                }) => self.publish(snapshot),
                Output::Answer(answer) => {
                    let feed = &mut self.planes[self.connected].feed;
                    for held in answer.held {
                        feed.held(self.client, &held.buckets).unwrap();
                    }
                }
                Output::Reconnect(_) => reconnect = true,
                _ => {}
            }
        }
        if reconnect {
            self.connect(self.leader);
        }
    }

    fn publish(&mut self, snapshot: Snapshot) {
        let root = snapshot.root();
        assert!(
            self.existed.contains(&root),
            "the API server never had what was published: {:?}",
            snapshot
                .iter()
                .map(|o| o.key().to_string())
                .collect::<Vec<_>>()
        );
        self.published = Some(snapshot);
    }

    /// Something on the way forges an object, or loses a change.
    fn tamper(&mut self) {
        let Some(last) = self.wire.back_mut() else {
            return;
        };
        let Some(change) = last.changes.last_mut() else {
            return;
        };
        self.tampered = true;
        match change.deleted || change.name.ends_with('1') {
            true => drop(last.changes.pop()),
            false => {
                let name = &change.name;
                let forged = format!(
                    r#"{{"apiVersion":"v1","data":"forged","kind":"Thing","metadata":{{"name":"{name}","namespace":"a"}}}}"#
                );
                change.object = Bytes::from(forged);
            }
        }
    }

    /// No more faults: everything is seen, sent and received.
    fn finish(&mut self) {
        self.connect(self.leader);
        let all = self.listed();
        let keys: BTreeSet<Key> = all.iter().map(|(key, _)| key.clone()).collect();
        self.planes[self.leader].feed.complete(&keys, all, "3");
        for _ in 0..100 {
            self.now += 11_000;
            self.send();
            self.receive();
        }
        let published = self.published.as_ref().map(Snapshot::root);
        assert_eq!(published, Some(self.api.root()));
    }
}

/// As the control plane writes it.
fn message(plane: &Plane, part: Part, told: bool) -> v1::ContextResponse {
    let id = plane.feed.spec().id().to_string();
    let resets = part.resets.map(|resets| match resets {
        Resets::All => (Vec::new(), true),
        Resets::Buckets(buckets) => (buckets.into_iter().map(u32::from).collect(), false),
    });
    let changes = part
        .changes
        .into_iter()
        .map(|(key, object)| v1::ObjectChange {
            collection: id.clone(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            deleted: object.is_none(),
            object: object.map(|o| o.json().clone()).unwrap_or_default(),
        });
    let spec = wire::collection_to_proto(plane.feed.spec());
    v1::ContextResponse {
        nonce: "n".into(),
        control_plane: Some(v1::ControlPlane {
            lease_transitions: plane.transitions,
            ..v1::ControlPlane::default()
        }),
        collections: (!told).then_some(spec).into_iter().collect(),
        changes: changes.collect(),
        marks: part.mark.iter().map(wire::mark_to_proto).collect(),
        want_buckets: part.wants_buckets.then(|| id.clone()).into_iter().collect(),
        resets: resets
            .map(|(buckets, all)| v1::BucketReset {
                collection: id,
                buckets,
                all,
            })
            .into_iter()
            .collect(),
        ..v1::ContextResponse::default()
    }
}

#[test]
fn evaluator_publishes_states_that_existed_and_ends_with_the_last() {
    let mut tampered = 0;
    for seed in 0..SCHEDULES {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        tampered += usize::from(world.tampered);
        world.finish();
    }
    assert!(
        tampered > 10,
        "only {tampered} schedules had a forged message"
    );
}
