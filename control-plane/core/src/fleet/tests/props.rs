//! Every fold against a count of replicas times policies, under random histories.

use proptest::{collection::vec, prelude::*};

use super::*;

const NAMES: [&str; 4] = ["w", "x", "y", "z"];
const POLICIES: [(&str, i64); 4] = [("a", 1), ("a", 2), ("b", 1), ("c", 1)];

#[derive(Clone, Debug)]
enum Step {
    Expect(u8),
    Open {
        who: usize,
        instance: u8,
        stale: bool,
    },
    Take {
        who: usize,
        set: u8,
        rejected: u8,
        late: bool,
    },
    Refuse {
        who: usize,
        set: u8,
        late: bool,
    },
    Close {
        who: usize,
        late: bool,
    },
    Pass(u64),
}

/// One replica as plainly as it can be kept.
#[derive(Clone, Default)]
struct Plain {
    instance: u8,
    stream: u64,
    open: bool,
    until: Option<u64>,
    /// Generations of policies that its last answer has, as bits.
    applied: Option<(u8, u8)>,
    before: Option<(u8, u8)>,
    refused: Option<u8>,
}

struct Oracle {
    counted: CountedReplicas,
    now: u64,
    expected: BTreeSet<&'static str>,
    replicas: BTreeMap<&'static str, Plain>,
    streams: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..NAMES.len();
    let set = || 0u8..16;
    let step = prop_oneof![
        1 => set().prop_map(Step::Expect),
        3 => (who(), 0u8..3, prop::bool::weighted(0.1))
            .prop_map(|(who, instance, stale)| Step::Open { who, instance, stale }),
        5 => (who(), set(), set(), prop::bool::weighted(0.1))
            .prop_map(|(who, set, rejected, late)| Step::Take { who, set, rejected: rejected & set, late }),
        2 => (who(), set(), prop::bool::weighted(0.1))
            .prop_map(|(who, set, late)| Step::Refuse { who, set, late }),
        2 => (who(), prop::bool::weighted(0.1)).prop_map(|(who, late)| Step::Close { who, late }),
        2 => (0u64..40_000).prop_map(Step::Pass),
    ];
    vec(step, 0..60)
}

fn pick(set: u8) -> Vec<(&'static str, i64)> {
    let in_set = |n: &usize| set & (1 << n) != 0;
    (0..POLICIES.len())
        .filter(in_set)
        .map(|n| POLICIES[n])
        .collect()
}

impl Oracle {
    fn fold(&self, policy: usize) -> Fold {
        let bit = 1u8 << policy;
        let mut fold = Fold::default();
        let mut all = true;
        for (name, replica) in &self.replicas {
            if self.counted == CountedReplicas::Expected && !self.expected.contains(name) {
                continue;
            }
            let has = replica
                .applied
                .is_some_and(|(set, rejected)| set & !rejected & bit != 0);
            let offered = replica.applied.is_some_and(|(set, _)| set & bit != 0);
            let refused = replica.refused.is_some_and(|set| set & bit != 0) && !offered;
            let gone = !replica.open && replica.until.is_none();
            fold.wanted += 1;
            fold.degraded |= !has && (replica.applied.is_some() || refused);
            fold.degraded |= gone;
            all &= has && !gone;
            match (replica.open, has, offered || refused) {
                (false, _, _) => fold.disconnected += 1,
                (true, true, _) => fold.applied += 1,
                (true, false, true) => fold.rejected += 1,
                (true, false, false) => fold.behind += 1,
            }
        }
        fold.complete = all && fold.wanted > 0;
        fold
    }

    fn tick(&mut self) {
        let (now, expected) = (self.now, &self.expected);
        for replica in self.replicas.values_mut() {
            replica.until = replica.until.filter(|until| *until > now);
        }
        self.replicas
            .retain(|name, r| r.open || r.until.is_some() || expected.contains(name));
    }

    /// The stream to speak on: the open one, or one that was superseded.
    fn stream(&self, who: usize, late: bool) -> u64 {
        let open = self.replicas.get(NAMES[who]).map_or(0, |r| r.stream);
        open - u64::from(late && open > 0)
    }

    fn apply(&mut self, fleet: &mut Fleet, step: &Step) {
        let now = Millis(self.now);
        match *step {
            Step::Expect(set) => {
                let names = NAMES.iter().enumerate();
                let names = names
                    .filter(|(n, _)| set & (1 << n) != 0)
                    .map(|(_, name)| *name);
                self.expected = names.collect();
                for name in &self.expected {
                    self.replicas.entry(name).or_insert_with(|| Plain {
                        until: Some(now.0 + 60_000),
                        ..Plain::default()
                    });
                }
                let expected = &self.expected;
                // A stream's number is never zero.
                self.replicas
                    .retain(|name, r| r.stream > 0 || expected.contains(name));
                self.tick();
                fleet.expect(now, self.expected.iter().map(|n| Name::from(*n)));
            }
            Step::Open {
                who,
                instance,
                stale,
            } => self.open(fleet, who, instance, stale),
            Step::Take {
                who,
                set,
                rejected,
                late,
            } => {
                let snapshot = mk_snapshot(&pick(set));
                let rejected_ids = pick(rejected);
                let named: Vec<_> = rejected_ids
                    .iter()
                    .map(|(n, g)| mk_rejection(n, *g))
                    .collect();
                fleet.reported(
                    now,
                    NAMES[who],
                    self.stream(who, late),
                    mk_applied(&snapshot, &named),
                );
                if let Some(replica) = self.listening(who, late) {
                    replica.applied = Some((set, rejected));
                    replica.refused = None;
                }
            }
            Step::Refuse { who, set, late } => {
                let report = mk_refused(&mk_snapshot(&pick(set)), None);
                fleet.reported(now, NAMES[who], self.stream(who, late), report);
                if let Some(replica) = self.listening(who, late) {
                    replica.applied = replica.before.or(Some((0, 0)));
                    replica.refused = Some(set);
                }
            }
            Step::Close { who, late } => {
                fleet.closed(now, NAMES[who], self.stream(who, late));
                if let Some(replica) = self.listening(who, late) {
                    replica.open = false;
                    replica.until = Some(now.0 + 60_000);
                }
            }
            Step::Pass(millis) => {
                self.now += millis;
                self.tick();
                fleet.tick(Millis(self.now));
            }
        }
    }

    fn open(&mut self, fleet: &mut Fleet, who: usize, instance: u8, stale: bool) {
        let node = mk_node(NAMES[who], &instance.to_string());
        if stale && self.replicas.get(NAMES[who]).is_some_and(|r| r.open) {
            let stream = self.replicas[NAMES[who]].stream - 1;
            return fleet.opened(Millis(self.now), node, String::new(), stream);
        }
        // In twos, so that there is always a number just before that nobody has.
        self.streams += 2;
        fleet.opened(Millis(self.now), node, String::new(), self.streams);
        let known = self.replicas.get(NAMES[who]).cloned().unwrap_or_default();
        // A replica that was only expected has no process yet, so any is another.
        let taken = known.applied.filter(|_| known.instance == instance);
        let replica = Plain {
            instance,
            stream: self.streams,
            open: true,
            applied: taken,
            before: taken,
            ..Plain::default()
        };
        self.replicas.insert(NAMES[who], replica);
    }

    fn listening(&mut self, who: usize, late: bool) -> Option<&mut Plain> {
        let replica = self.replicas.get_mut(NAMES[who]);
        replica.filter(|r| r.open && !late)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fold_is_what_a_count_of_everything_says(
        steps in steps(),
        everyone in any::<bool>(),
    ) {
        let counted = if everyone { CountedReplicas::All } else { CountedReplicas::Expected };
        let mut fleet = Fleet::new(counted, GRACE);
        let mut oracle = Oracle {
            counted,
            now: 0,
            expected: BTreeSet::new(),
            replicas: BTreeMap::new(),
            streams: 0,
        };
        for step in &steps {
            oracle.apply(&mut fleet, step);
            for (policy, (name, generation)) in POLICIES.iter().enumerate() {
                let revision = mk_revision(name, *generation);
                let fold = fleet.fold(&revision);
                prop_assert_eq!(fold, oracle.fold(policy), "{:?} after {:?}", revision, step);
                assert_rows(&fleet, &revision, &fold);
            }
        }
        // Nobody is kept who neither is there nor has to be.
        prop_assert_eq!(fleet.replicas().count(), oracle.replicas.len());
    }
}
