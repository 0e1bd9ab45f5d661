//! A simulation of many processes and one API server, with lost and delayed messages, pauses,
//! restarts, and clocks that differ from the true time.

use std::collections::BTreeMap;

use super::*;

/// Requests and responses take time; each may be late or lost.
struct World {
    now: u64,
    random: u64,
    queue: BTreeMap<(u64, u64), Event>,
    count: u64,
    lease: Option<Record>,
    version: u64,
    nodes: Vec<Node>,
    /// Whether faults happen.
    faults: bool,
    /// Terms in the order in which they began.
    terms: Vec<u64>,
    /// The highest term that evaluators have seen. They report it to whoever leads.
    evaluators: u64,
}

struct Node {
    name: String,
    machine: Machine,
    /// Counts restarts and requests: a response to an older one is dropped.
    life: u64,
    request: u64,
    /// Only the newest alarm is effective.
    alarm: u64,
    paused_until: u64,
    /// Clocks differ in their start and in their speed.
    offset: u64,
    speed: u64,
    leaving: bool,
}

enum Event {
    Wake(usize, u64),
    Arrive(usize, u64, u64, Ask),
    Answer(usize, u64, u64, Input),
    Report(usize, u64, u64),
}

enum Ask {
    Read,
    Write(Draft),
}

const TIMEOUT: u64 = 5_000;

impl World {
    fn new(seed: u64, size: u64) -> Self {
        let mut world = Self {
            now: 0,
            random: seed,
            queue: BTreeMap::new(),
            count: 0,
            lease: None,
            version: 0,
            nodes: Vec::new(),
            faults: true,
            terms: Vec::new(),
            evaluators: 0,
        };
        for number in 0..size {
            let name = format!("n{number}");
            let node = Node {
                machine: mk_machine(&name),
                name,
                life: 0,
                request: 0,
                alarm: 0,
                paused_until: 0,
                offset: world.below(1_000_000),
                // In thousandths: up to five percent slow or fast.
                speed: 950 + world.below(101),
                leaving: false,
            };
            world.nodes.push(node);
            let at = world.below(20_000);
            world.push(at, Event::Wake(world.nodes.len() - 1, 0));
        }
        world
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn push(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.queue.insert((at, self.count), event);
    }

    fn local(&self, node: usize) -> Millis {
        let node = &self.nodes[node];
        Millis(node.offset + self.now * node.speed / 1_000)
    }

    /// The true time of a local time, rounded up.
    fn true_time(&self, node: usize, at: Millis) -> u64 {
        let node = &self.nodes[node];
        (at.0.saturating_sub(node.offset) * 1_000).div_ceil(node.speed)
    }

    fn run(&mut self, until: u64) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > until {
                self.push(at, event);
                break;
            }
            self.now = at;
            self.mishap();
            match event {
                Event::Wake(node, alarm) => {
                    if self.nodes[node].alarm == alarm {
                        self.step(node, Input::Tick, at);
                    }
                }
                Event::Report(node, life, seen) => {
                    if self.nodes[node].life == life {
                        self.step(node, Input::Outranked(seen), at);
                    }
                }
                Event::Arrive(node, life, request, ask) => self.arrive(node, life, request, ask),
                Event::Answer(node, life, request, input) => {
                    let of = &self.nodes[node];
                    if (of.life, of.request) == (life, request) {
                        self.nodes[node].request += 1;
                        self.step(node, input, at);
                    }
                }
            }
            self.check();
        }
        self.now = until;
    }

    /// Now and then a process is paused, is killed and restarts, or leaves and restarts.
    fn mishap(&mut self) {
        if !self.faults || self.below(60) > 0 {
            return;
        }
        let node = usize::try_from(self.below(self.nodes.len() as u64)).unwrap();
        match self.below(3) {
            0 => self.nodes[node].paused_until = self.now + self.below(60_000),
            1 => self.restart(node),
            _ if !self.nodes[node].leaving && self.nodes[node].paused_until <= self.now => {
                self.nodes[node].leaving = true;
                self.step(node, Input::Leave, self.now);
            }
            _ => {}
        }
    }

    fn restart(&mut self, node: usize) {
        let at = self.now + self.below(10_000);
        let of = &mut self.nodes[node];
        of.machine = mk_machine(&of.name);
        (of.life, of.paused_until, of.leaving) = (of.life + 1, 0, false);
        self.wake(node, at);
    }

    fn wake(&mut self, node: usize, at: u64) {
        self.nodes[node].alarm += 1;
        let alarm = self.nodes[node].alarm;
        self.push(at, Event::Wake(node, alarm));
    }

    fn step(&mut self, node: usize, input: Input, at: u64) {
        let life = self.nodes[node].life;
        if self.nodes[node].paused_until > at {
            // Inputs that arrive during a pause are seen when it ends.
            let (resumes, request) = (self.nodes[node].paused_until, self.nodes[node].request);
            return match input {
                Input::Tick => self.wake(node, resumes),
                Input::Outranked(seen) => self.push(resumes, Event::Report(node, life, seen)),
                input => self.push(resumes, Event::Answer(node, life, request, input)),
            };
        }
        let now = self.local(node);
        let mut out = Vec::new();
        self.nodes[node].machine.step(now, input, &mut out);
        for output in out {
            match output {
                Output::Read => self.ask(node, Ask::Read),
                Output::Write(draft) => self.ask(node, Ask::Write(draft)),
                Output::Role(Role::Leader { transitions }) => {
                    self.terms.push(transitions);
                    self.stream(node, transitions);
                }
                Output::Role(Role::Follower { .. }) => {}
                Output::Left => return self.restart(node),
            }
        }
        if let Some(deadline) = self.nodes[node].machine.deadline() {
            let at = self.true_time(node, deadline).max(self.now + 1);
            self.wake(node, at);
        }
    }

    /// Evaluators connect to a leader, and take its term or report theirs.
    fn stream(&mut self, node: usize, term: u64) {
        if term >= self.evaluators {
            self.evaluators = term;
            return;
        }
        let life = self.nodes[node].life;
        let (at, seen) = (self.now + self.below(3_000), self.evaluators);
        self.push(at, Event::Report(node, life, seen));
    }

    /// The API server goes back to an old state, and every process restarts.
    fn restore(&mut self, term: u64) {
        let lease = self.lease.as_mut().unwrap();
        lease.transitions = term;
        lease.version = format!("restored-{}", lease.version);
        self.terms.clear();
        for node in 0..self.nodes.len() {
            self.restart(node);
        }
    }

    fn ask(&mut self, node: usize, ask: Ask) {
        let (life, request) = (self.nodes[node].life, self.nodes[node].request);
        let nothing = match ask {
            Ask::Read => Input::Read(None),
            Ask::Write(_) => Input::Written(None),
        };
        let at = self.now + TIMEOUT;
        self.push(at, Event::Answer(node, life, request, nothing));
        if let Some(delay) = self.delay() {
            self.push(self.now + delay, Event::Arrive(node, life, request, ask));
        }
    }

    /// How long a message takes; `None` if it is lost. A late one may arrive long after its
    /// sender gave up.
    fn delay(&mut self) -> Option<u64> {
        if !self.faults {
            return Some(1 + self.below(20));
        }
        match self.below(10) {
            0 | 1 => None,
            2 => Some(self.below(20_000)),
            _ => Some(1 + self.below(300)),
        }
    }

    fn arrive(&mut self, node: usize, life: u64, request: u64, ask: Ask) {
        let answer = match ask {
            Ask::Read => Input::Read(Some(self.lease.clone())),
            Ask::Write(draft) => Input::Written(self.write(draft)),
        };
        if let Some(delay) = self.delay() {
            self.push(self.now + delay, Event::Answer(node, life, request, answer));
        }
    }

    fn write(&mut self, draft: Draft) -> Option<Record> {
        let current = self.lease.as_ref().map(|lease| lease.version.clone());
        if current != draft.version {
            return None;
        }
        self.version += 1;
        self.lease = Some(Record {
            version: self.version.to_string(),
            holder: draft.holder,
            address: draft.address,
            transitions: draft.transitions,
            lease: draft.lease,
        });
        self.lease.clone()
    }

    /// The processes that lead at this moment, each by its own clock.
    fn leaders(&self) -> Vec<&str> {
        let leads = |(number, node): &(usize, &Node)| {
            let held = node.machine.held();
            held.is_some_and(|(_, until)| self.local(*number) < until)
        };
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(leads).map(|(_, node)| &*node.name).collect()
    }

    fn check(&self) {
        let leaders = self.leaders();
        assert!(leaders.len() <= 1, "leaders at {}: {leaders:?}", self.now);
        let rises = self.terms.is_sorted_by(|one, next| one < next);
        assert!(rises, "terms {:?}", self.terms);
    }
}

fn mk_machine(name: &str) -> Machine {
    Machine::new(name, "somewhere", Timing::default(), 1)
}

/// Runs ten minutes with faults, then one without.
fn check(seed: u64, size: u64) -> usize {
    let mut world = World::new(seed, size);
    world.run(600_000);
    world.faults = false;
    for node in &mut world.nodes {
        node.paused_until = 0;
    }
    world.run(660_000);
    assert_eq!(
        world.leaders().len(),
        1,
        "seed {seed}: nobody leads after the faults"
    );
    world.terms.len()
}

#[test]
fn at_most_one_process_leads_and_terms_only_rise() {
    let mut terms = 0;
    for seed in 0..400 {
        terms += check(seed, 2 + seed % 4);
    }
    // The histories are meaningful only if leadership changed often.
    assert!(terms > 4_000, "{terms}");
}

#[test]
fn restored_lease_is_raised_above_what_evaluators_have_seen() {
    for seed in 0..200 {
        let mut world = World::new(seed, 2 + seed % 4);
        world.run(600_000);
        world.faults = seed % 2 == 0;
        let seen = world.evaluators;
        assert!(seen > 1, "seed {seed}");
        world.restore(seen / 2);
        world.run(1_200_000);
        world.faults = false;
        for node in &mut world.nodes {
            node.paused_until = 0;
        }
        world.run(1_400_000);
        let leader = world.leaders();
        assert_eq!(leader.len(), 1, "seed {seed}: nobody leads in peace");
        let last = world.terms.last().copied().unwrap_or_default();
        assert!(last > seen, "seed {seed}: {last} is not above {seen}");
        assert_eq!(world.evaluators, last, "seed {seed}: they follow it");
    }
}
