//! The whole control plane against evaluators, networks and people that misbehave, under
//! virtual time: one seed is one history, and every history is checked as it happens.
//!
//! `ASSENT_SIM_SEEDS` says how many, `ASSENT_SIM_SEED` which is the first.

use std::{env, thread};

use world::{END, Happening, World};

#[path = "simulation/act.rs"]
mod act;
#[path = "simulation/check.rs"]
mod check;
#[path = "simulation/client.rs"]
mod client;
#[path = "simulation/control.rs"]
mod control;
#[path = "simulation/network.rs"]
mod network;
#[path = "simulation/rng.rs"]
mod rng;
#[path = "simulation/store.rs"]
mod store;
#[path = "simulation/streams.rs"]
mod streams;
#[path = "simulation/wire.rs"]
mod wire;
#[path = "simulation/world.rs"]
mod world;

/// Enough to meet each pair of faults often, and a matter of seconds.
const SEEDS: u64 = 3_000;

/// Lines of a failed history that are worth reading.
const TAIL: usize = 60;

/// Says how to see a history again that ended in a panic, be it of a check or of the core.
struct Repeat(u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "repeat: ASSENT_SIM_SEED={} ASSENT_SIM_SEEDS=1 cargo test -p assent-core --test simulation",
                self.0
            );
        }
    }
}

#[test]
fn every_history_keeps_the_invariants() {
    let first = number("ASSENT_SIM_SEED").unwrap_or(0);
    let count = number("ASSENT_SIM_SEEDS").unwrap_or(SEEDS);
    let (mut flips, mut restarts) = (0, 0);
    for seed in first..first + count {
        let _repeat = Repeat(seed);
        let mut world = World::new(seed, false);
        if run(&mut world).is_err() {
            fail(seed);
        }
        flips += world.history.flips;
        restarts += world.history.restarts;
    }
    // A simulation in which nothing happens proves nothing.
    if count >= 100 {
        assert!(
            flips > 0 && restarts > 0,
            "{flips} flips, {restarts} restarts"
        );
    }
}

/// Repeats a history that went wrong, this time with a log.
fn fail(seed: u64) -> ! {
    let mut world = World::new(seed, true);
    let broken = run(&mut world).expect_err("a seed must be one history");
    let log = world.log.unwrap_or_default();
    let from = log.len().saturating_sub(TAIL);
    panic!(
        "seed {seed} at {} ms: {broken}\n{}",
        world.now.0,
        log[from..].join("\n"),
    );
}

fn run(world: &mut World) -> Result<(), String> {
    while let Some(happening) = world.next() {
        if world.now > END {
            break;
        }
        step(world, happening)?;
        world.check_paths()?;
    }
    world.check_end()
}

fn step(world: &mut World, happening: Happening) -> Result<(), String> {
    match happening {
        Happening::User => world.user(),
        Happening::Fault => return world.fault(),
        Happening::Heal => return world.heal(),
        Happening::Connect { client, token } => world.connect(client, token),
        Happening::Arrive { link } => return world.arrive(link),
        Happening::Down { link, down } => world.down(link, *down),
        Happening::Up { link, up } => return world.up(link, *up),
        Happening::Loaded {
            client,
            token,
            nonce,
        } => return world.loaded(client, token, &nonce),
        Happening::SecondThoughts { client, token } => {
            return world.second_thoughts(client, token);
        }
        Happening::Start { client } => world.start(client),
        Happening::ClientCloses { link } => world.client_closes(link),
        Happening::PlaneCloses { link } => world.plane_closes(link),
        Happening::Report {
            link,
            report,
            claim,
        } => return world.report(link, report.map(|r| *r), claim),
        Happening::Wake { epoch } if world.is_epoch(epoch) => return world.settle(),
        Happening::Observe { epoch, id } if world.is_epoch(epoch) => {
            return world.observe(&id, false);
        }
        Happening::Vetted {
            epoch,
            id,
            generation,
        } => return world.vetted(epoch, id, generation),
        Happening::Land { epoch } => return world.land(epoch),
        Happening::Landed { epoch, event } => return world.landed(epoch, *event),
        Happening::PlaneStart => return world.plane_start(),
        Happening::PlaneSynced { epoch } if world.is_epoch(epoch) => {
            return world.apply(assent_core::plane::Event::Synced);
        }
        Happening::PutOff { epoch, action } if world.is_epoch(epoch) => {
            world.queue_action(action.0, action.1);
        }
        Happening::PutOff { .. }
        | Happening::Wake { .. }
        | Happening::Observe { .. }
        | Happening::PlaneSynced { .. } => {}
    }
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}
