//! The world of one seed: a clock, a queue, and everything that has a state.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet},
    time::Duration,
};

use assent_controller::{Change, Kind, Now, Outcome};
use assent_core::{
    Digest, Millis,
    plane::StreamEvent,
    session::{Answer, Response},
};
use jiff::Timestamp;

use crate::{
    Verdict,
    api::Api,
    backend::{Cluster, Webhook},
    check::History,
    disturb::Disturbance,
    evaluators::{Evaluator, Link},
    jobs::Job,
    process::Process,
    rng::Rng,
};

/// Faults happen until then; afterwards everything must converge.
pub(crate) const HEALED: Millis = Millis(120_000);

/// Grace, drains, retries and back-off several times over.
pub(crate) const END: Millis = Millis(HEALED.0 + 480_000);

pub(crate) const GRACE: Duration = Duration::from_secs(30);
pub(crate) const DRAIN: Duration = Duration::from_secs(20);
pub(crate) const RESYNC: Duration = Duration::from_secs(60);

/// How long after a webhook changed somebody may still ask for what it named before: shorter than every drain.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);

/// When evaluators are upgraded: some histories begin with old ones.
const UPGRADES: [Millis; 3] = [Millis(0), Millis(5_000), Millis(60_000)];

/// A history takes a few thousand steps. One that takes this many is a loop.
const MAX_STEPS: usize = 150_000;

/// What happens next, to whom. An `epoch` is one leadership: what belongs to an earlier one is void.
pub(crate) enum Happening {
    Disturb(usize),
    Heal,
    /// A process begins to lead.
    Lead,
    /// A watch lists its kind, and later reports a change.
    List {
        epoch: u64,
        kind: Kind,
    },
    Report {
        epoch: u64,
        kind: Kind,
        index: usize,
        change: Box<Change<Webhook>>,
    },
    Wake {
        epoch: u64,
    },
    Resync {
        epoch: u64,
    },
    /// A request reaches the API server.
    Land {
        epoch: u64,
        job: Box<Job>,
    },
    Outcome {
        epoch: u64,
        outcome: Box<Outcome<Cluster>>,
    },
    /// The StatefulSet controller and the kubelet look at a server.
    Reconcile {
        server: String,
    },
    Start {
        pod: String,
        uid: String,
    },
    Ready {
        pod: String,
        instance: u64,
        ready: bool,
    },
    Terminate {
        pod: String,
        uid: String,
    },
    /// The streams of evaluators.
    Connect {
        pod: String,
        instance: u64,
    },
    Send {
        link: u64,
        response: Box<Response>,
    },
    Loaded {
        link: u64,
        response: Box<Response>,
    },
    Answer {
        link: u64,
        answer: Box<Answer>,
    },
    Retry {
        pod: String,
        instance: u64,
    },
    Close {
        link: u64,
    },
    /// What a stream has to say reaches the controller, which is one process with it.
    Told {
        epoch: u64,
        event: Box<StreamEvent>,
    },
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Millis,
    queue: BinaryHeap<Reverse<(Millis, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    sequence: u64,
    steps: usize,
    pub(crate) plan: Vec<Disturbance>,
    pub(crate) api: Api,
    /// Events of the API server that were given to watches.
    pub(crate) reported: usize,
    pub(crate) process: Option<Process>,
    pub(crate) epoch: u64,
    /// The module stores of two replicas of the control plane, which lead in turn.
    pub(crate) modules: [HashSet<Digest>; 2],
    pub(crate) evaluators: BTreeMap<String, Evaluator>,
    pub(crate) links: BTreeMap<u64, Link>,
    pub(crate) next_link: u64,
    pub(crate) instances: u64,
    pub(crate) faults: Faults,
    /// Whether leaders look at everything again from time to time. Nothing may depend on it.
    pub(crate) resyncs: bool,
    /// Evaluators that start before then cannot confirm changes.
    pub(crate) upgraded: Millis,
    /// What vetting and evaluators make of each content, by its number.
    pub(crate) contents: Vec<Content>,
    pub(crate) history: History,
    /// What happened, for people; kept only on request, since it costs more than the rest.
    pub(crate) log: Option<Vec<String>>,
}

/// How one content of a policy fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Good,
    /// Vetting refuses it.
    Invalid,
    /// Vetting accepts it, and no evaluator loads it.
    Rejected,
    /// Some evaluators load it only after a while.
    Flaky,
}

/// What goes wrong at the moment.
#[derive(Default)]
pub(crate) struct Faults {
    /// Requests fail until then.
    pub(crate) api: Millis,
    /// Watches of a kind lag until then.
    pub(crate) lag: BTreeMap<Kind, Millis>,
    /// Registries do not answer until then.
    pub(crate) registry: Millis,
    /// Evaluators that reach nobody until then.
    pub(crate) partitioned: BTreeMap<String, Millis>,
}

// === impl World ===

impl World {
    pub(crate) fn new(seed: u64, skip: &BTreeSet<usize>, logs: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Disturbance::plan(&mut rng);
        let resyncs = rng.percent(30);
        let mut world = Self {
            rng,
            now: Millis(0),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            steps: 0,
            plan,
            api: Api::default(),
            reported: 0,
            process: None,
            epoch: 0,
            modules: [HashSet::new(), HashSet::new()],
            evaluators: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 1,
            instances: 0,
            faults: Faults::default(),
            resyncs,
            upgraded: UPGRADES[usize::try_from(seed % 3).unwrap()],
            contents: Vec::new(),
            history: History::default(),
            log: logs.then(Vec::new),
        };
        world.begin(skip);
        world
    }

    /// How many things people and machines do to the cluster.
    pub(crate) fn disturbances(&self) -> usize {
        self.plan.len()
    }

    fn begin(&mut self, skip: &BTreeSet<usize>) {
        self.create_server("default");
        self.at(Millis(0), Happening::Lead);
        for n in (0..self.plan.len()).filter(|n| !skip.contains(n)) {
            self.at(self.plan[n].at, Happening::Disturb(n));
        }
        self.at(HEALED, Happening::Heal);
    }

    pub(crate) fn run(&mut self) -> Verdict {
        while let Some(happening) = self.next() {
            if self.now > END {
                break;
            }
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err("F21: the controller does not come to rest".into());
            }
            self.step(happening)?;
            self.report_changes();
            self.check_paths()?;
        }
        self.check_end()
    }

    fn step(&mut self, happening: Happening) -> Verdict {
        match happening {
            Happening::Disturb(n) => self.disturb(n),
            Happening::Heal => self.heal(),
            Happening::Lead => self.lead(),
            Happening::List { epoch, kind } => self.list(epoch, kind),
            Happening::Report {
                epoch,
                kind,
                index,
                change,
            } => self.report(epoch, kind, index, *change),
            Happening::Wake { epoch } => self.wake(epoch),
            Happening::Resync { epoch } => self.resync(epoch),
            Happening::Land { epoch, job } => self.land(epoch, *job),
            Happening::Outcome { epoch, outcome } => self.outcome(epoch, *outcome),
            Happening::Reconcile { server } => {
                self.reconcile(&server);
                Ok(())
            }
            Happening::Start { pod, uid } => {
                self.start(&pod, &uid);
                Ok(())
            }
            Happening::Ready {
                pod,
                instance,
                ready,
            } => {
                self.set_ready(&pod, instance, ready);
                Ok(())
            }
            Happening::Terminate { pod, uid } => {
                self.terminate(&pod, &uid);
                Ok(())
            }
            Happening::Connect { pod, instance } => self.connect(&pod, instance),
            Happening::Send { link, response } => {
                self.receive(link, *response);
                Ok(())
            }
            Happening::Loaded { link, response } => self.loaded(link, &response),
            Happening::Answer { link, answer } => {
                self.answered(link, *answer);
                Ok(())
            }
            Happening::Retry { pod, instance } => {
                self.retry(&pod, instance);
                Ok(())
            }
            Happening::Close { link } => {
                self.close(link);
                Ok(())
            }
            Happening::Told { epoch, event } => self.told(epoch, *event),
        }
    }

    pub(crate) fn at(&mut self, at: Millis, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.happenings.insert(self.sequence, happening);
    }

    /// Something happens `from` to `to` milliseconds from now.
    pub(crate) fn within(&mut self, from: u64, to: u64, happening: Happening) {
        let delay = self.rng.millis(from, to);
        self.at(self.now + delay, happening);
    }

    fn next(&mut self) -> Option<Happening> {
        let Reverse((at, sequence)) = self.queue.pop()?;
        self.now = at;
        self.happenings.remove(&sequence)
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.now >= HEALED
    }

    pub(crate) fn clock(&self) -> Now {
        let millis = 1_700_000_000_000 + i64::try_from(self.now.0).unwrap();
        Now {
            at: self.now,
            date: Timestamp::from_millisecond(millis).unwrap(),
        }
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>7} {}", self.now.0, line()));
        }
    }
}
