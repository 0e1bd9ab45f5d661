//! The controller in a cluster that misbehaves, under virtual time: one seed is one history, and every history is
//! checked as it happens.
//!
//! The controller and the plane are the real ones, and so are the sessions of streams. Everything around them is a
//! model: an API server with versions, conditional writes, finalizers and watches that lag; requests that fail, or
//! that are performed without a response; leaders that end between any two requests; other people who delete and edit
//! what the control plane wrote; evaluators that connect, reject and vanish.
//!
//! `ASSENT_SIM_SEEDS` is the number of seeds, `ASSENT_SIM_SEED` the first one. A history that fails is made as small
//! as possible: `ASSENT_SIM_SKIP` lists the disturbances that are left out, and `ASSENT_SIM_LOG` prints all of it.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, env, thread};

use world::World;

mod api;
mod backend;
mod check;
mod disturb;
mod evaluators;
mod executor;
mod jobs;
mod pods;
mod process;
#[path = "../../../core/tests/simulation/rng.rs"]
mod rng;
mod routes;
mod seen;
mod statuses;
mod world;

/// Enough to meet each pair of faults often, and a matter of seconds.
const SEEDS: u64 = 1_600;

/// Lines of a failed history that are worth reading.
const TAIL: usize = 150;

/// What is wrong with a history.
pub(crate) type Verdict = Result<(), String>;

/// Reports how to see a history again that ended in a panic, be it of a check or of the controller.
struct Repeat(u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "repeat: ASSENT_SIM_SEED={} ASSENT_SIM_SEEDS=1 cargo test -p assent-controller --test simulation",
                self.0
            );
        }
    }
}

#[test]
fn every_history_keeps_the_invariants() {
    let first = number("ASSENT_SIM_SEED").unwrap_or(0);
    let count = number("ASSENT_SIM_SEEDS").unwrap_or(SEEDS);
    let skip = skipped();
    let mut seen = seen::Seen::default();
    for seed in first..first + count {
        let _repeat = Repeat(seed);
        let mut world = World::new(seed, &skip, false);
        if world.run().is_err() {
            fail(seed, skip);
        }
        seen.add(&world.history.seen);
    }
    // A simulation in which nothing happens proves nothing.
    if count >= 500 {
        seen.assert_everything_happened();
    }
    eprintln!("{count} histories: {seen:?}");
}

/// Makes a history that failed smaller, and shows it.
fn fail(seed: u64, skip: BTreeSet<usize>) -> ! {
    let (skip, count) = shrink(seed, skip);
    let mut world = World::new(seed, &skip, true);
    let broken = world.run().expect_err("a seed must be one history");
    let log = world.log.take().unwrap_or_default();
    let all = env::var_os("ASSENT_SIM_LOG").is_some();
    let from = if all {
        0
    } else {
        log.len().saturating_sub(TAIL)
    };
    let skipped: Vec<String> = skip.iter().map(ToString::to_string).collect();
    panic!(
        "seed {seed} at {} ms: {broken}\n{}\n{} of {count} disturbances are needed: ASSENT_SIM_SKIP={}",
        world.now.0,
        log[from..].join("\n"),
        count - skip.len(),
        skipped.join(","),
    );
}

/// Leaves out every disturbance without which the history still fails.
fn shrink(seed: u64, mut skip: BTreeSet<usize>) -> (BTreeSet<usize>, usize) {
    let count = World::new(seed, &skip, false).disturbances();
    loop {
        let before = skip.len();
        for n in 0..count {
            if skip.insert(n) && World::new(seed, &skip, false).run().is_ok() {
                skip.remove(&n);
            }
        }
        if skip.len() == before {
            return (skip, count);
        }
    }
}

fn skipped() -> BTreeSet<usize> {
    let text = env::var("ASSENT_SIM_SKIP").unwrap_or_default();
    text.split(',').filter_map(|n| n.parse().ok()).collect()
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}
