//! The world of one seed: a clock, a queue, and everything that has a state.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use assent_core::{
    Digest, Millis, RevisionId, Version,
    fleet::{CountedReplicas, Name},
    plane::{Event, Plane},
    rollout::{Output, PolicyId, Timing},
    session::{Report, StreamKind},
    status::PolicyStatus,
};

use crate::{
    client::{Character, Client},
    network::Link,
    rng::Rng,
    store::Store,
    wire::{Claim, Down, Up},
};

/// Faults happen until then; afterwards everything must converge.
pub(crate) const HEALED: Millis = Millis(120_000);

/// Grace, drains and the progress deadline several times over.
pub(crate) const END: Millis = Millis(HEALED.0 + 600_000);

pub(crate) const GRACE: Duration = Duration::from_secs(30);

pub(crate) const TIMING: Timing = Timing {
    progress: Duration::from_secs(60),
    drain: Duration::from_secs(20),
    quiet: Duration::from_secs(5),
    longest_drain: Duration::from_secs(60),
    delete_drain: Duration::from_secs(10),
};

/// How long after a webhook changed somebody may still ask for what it named before:
/// shorter than every drain.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);

/// What happens next, to whom.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    User,
    Fault,
    Heal,
    /// A client tries to connect.
    Connect {
        client: usize,
        token: u64,
    },
    /// Its first message arrives.
    Arrive {
        link: u64,
    },
    Down {
        link: u64,
        down: Box<Down>,
    },
    Up {
        link: u64,
        up: Box<Up>,
    },
    /// A client has loaded what it was sent.
    Loaded {
        client: usize,
        token: u64,
        nonce: String,
    },
    SecondThoughts {
        client: usize,
        token: u64,
    },
    Start {
        client: usize,
    },
    /// Ends notice that a stream is over.
    ClientCloses {
        link: u64,
    },
    PlaneCloses {
        link: u64,
    },
    /// What a stream has to say reaches the plane, which is one process with the stream.
    Report {
        link: u64,
        report: Option<Box<Report>>,
        claim: Claim,
    },
    /// The plane's own timers.
    Wake {
        epoch: u64,
    },
    /// An object changed.
    Observe {
        epoch: u64,
        id: PolicyId,
    },
    Vetted {
        epoch: u64,
        id: PolicyId,
        generation: i64,
    },
    /// What was put off is to be done after all.
    PutOff {
        epoch: u64,
        action: Box<(PolicyId, Output)>,
    },
    /// The oldest action reaches the store; the plane hears of it.
    Land {
        epoch: u64,
    },
    Landed {
        epoch: u64,
        event: Box<Event>,
    },
    PlaneStart,
    PlaneSynced {
        epoch: u64,
    },
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Millis,
    queue: BinaryHeap<Reverse<(Millis, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    seq: u64,
    pub(crate) clients: Vec<Client>,
    pub(crate) links: BTreeMap<u64, Link>,
    pub(crate) next_link: u64,
    pub(crate) store: Store,
    pub(crate) control: Option<Control>,
    pub(crate) epoch: u64,
    pub(crate) counted: CountedReplicas,
    /// Contents that may not load everywhere.
    pub(crate) shaky: BTreeSet<Digest>,
    pub(crate) contents: u64,
    /// Partitioned clients, and until when.
    pub(crate) partitioned: BTreeMap<usize, Millis>,
    pub(crate) history: History,
    /// What happened, for people; kept only on request, since it costs more than the rest.
    pub(crate) log: Option<Vec<String>>,
}

/// One life of the control plane.
pub(crate) struct Control {
    pub(crate) plane: Plane,
    pub(crate) streams: u64,
    pub(crate) actions: VecDeque<(PolicyId, Output)>,
    pub(crate) busy: bool,
    /// A action is done that the plane has not heard of.
    pub(crate) unheard: bool,
    pub(crate) wake: Option<Millis>,
    /// Statuses as of the last check.
    pub(crate) statuses: BTreeMap<PolicyId, PolicyStatus>,
    /// What each replica last let this life of the plane believe.
    pub(crate) beliefs: BTreeMap<Name, (String, Claim)>,
    /// The processes whose word a flip that was asked for relies on.
    pub(crate) relied_on: BTreeMap<RevisionId, BTreeSet<(Name, String)>>,
}

/// What must be remembered to judge what comes later.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) versions: BTreeSet<Version>,
    pub(crate) contents: BTreeSet<(RevisionId, Digest)>,
    /// Clients that may lack a webhook's path: they were not there, or not counted.
    pub(crate) excused: BTreeSet<(usize, RevisionId)>,
    /// Paths that a webhook named recently.
    pub(crate) asked: BTreeMap<RevisionId, Millis>,
    pub(crate) flips: usize,
    pub(crate) restarts: usize,
}

// === impl World ===

impl World {
    pub(crate) fn new(seed: u64, logs: bool) -> Self {
        let mut rng = Rng::new(seed);
        let counted = if rng.percent(50) {
            CountedReplicas::All
        } else {
            CountedReplicas::Expected
        };
        let clients = (0..2 + rng.below(3))
            .map(|n| mk_client(n, &mut rng))
            .collect();
        let mut world = Self {
            rng,
            now: Millis(0),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            seq: 0,
            clients,
            links: BTreeMap::new(),
            next_link: 1,
            store: Store::default(),
            control: None,
            epoch: 0,
            counted,
            shaky: BTreeSet::new(),
            contents: 0,
            partitioned: BTreeMap::new(),
            history: History::default(),
            log: logs.then(Vec::new),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.at(Millis(0), Happening::PlaneStart);
        for client in 0..self.clients.len() {
            let late = if self.rng.percent(20) { 60_000 } else { 2_000 };
            let after = self.rng.millis(0, late);
            self.after(after, Happening::Start { client });
        }
        for _ in 0..4 + self.rng.below(14) {
            let after = self.rng.millis(0, HEALED.0);
            self.after(after, Happening::User);
        }
        for _ in 0..self.rng.below(14) {
            let after = self.rng.millis(0, HEALED.0);
            self.after(after, Happening::Fault);
        }
        self.at(HEALED, Happening::Heal);
    }

    pub(crate) fn at(&mut self, at: Millis, happening: Happening) {
        self.seq += 1;
        self.queue.push(Reverse((at, self.seq)));
        self.happenings.insert(self.seq, happening);
    }

    pub(crate) fn after(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    /// The next thing that happens, with the clock at it.
    pub(crate) fn next(&mut self) -> Option<Happening> {
        let Reverse((at, seq)) = self.queue.pop()?;
        self.now = at;
        let happening = self.happenings.remove(&seq);
        Some(happening.expect("what is queued must be there"))
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.now >= HEALED
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>7} {}", self.now.0, line()));
        }
    }

    /// The replicas that must be there: those in the cluster's list.
    pub(crate) fn expected(&self) -> Vec<Name> {
        if self.counted == CountedReplicas::All {
            return Vec::new();
        }
        let listed = self
            .clients
            .iter()
            .filter(|c| c.is_honest() || !self.is_healed());
        // The last one only follows.
        let listed = listed.take(self.clients.len().saturating_sub(1).max(1));
        listed.map(|c| c.name.as_str().into()).collect()
    }

    pub(crate) fn server() -> Arc<str> {
        "default".into()
    }
}

fn mk_client(n: usize, rng: &mut Rng) -> Client {
    let character = match (n, rng.below(20)) {
        (0, _) => Character::Honest,
        (_, 0) => Character::Yes,
        (_, 1) => Character::WrongVersion,
        (_, 2) => Character::UnknownNonce,
        (_, 3) => Character::Flood,
        (_, 4) => Character::Fickle,
        (_, 5) => Character::Silent,
        (_, 6..9) => Character::Slow,
        _ => Character::Honest,
    };
    let kind = if rng.percent(25) {
        StreamKind::StateOfTheWorld
    } else {
        StreamKind::Delta
    };
    Client::new(format!("evaluator-{n}"), kind, character)
}
