//! What the control plane's decisions cost, in memory: they must grow with the change, not
//! with the number of policies or replicas.

use std::{path::PathBuf, time::Duration};

use assent_core::Digest;
use clap::Args as ClapArgs;

use crate::{
    machine,
    report::{Report as Table, Runs, Unit, ms, us},
};

mod cluster;
mod world;

use cluster::Cluster;
use world::World;

/// Bytes that are hashed in order to measure how long that takes.
const HASHED_BYTES: usize = 128 << 20;

/// Parameters of the benchmark.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Policies of the small and of the large control plane for restores
    #[arg(long, num_args = 2, default_values_t = [1_000, 10_000])]
    restore: Vec<usize>,
    /// Policies of the small and of the large control plane for edits
    #[arg(long, num_args = 2, default_values_t = [100, 10_000])]
    edit: Vec<usize>,
    /// Edits per measurement
    #[arg(long, default_value_t = 100)]
    edits: usize,
    /// Replicas of each PolicyServer
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Replicas that send heartbeats
    #[arg(long, default_value_t = 1_000)]
    heartbeats: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The file for the JSON
    #[arg(long, default_value = "bench-control.json")]
    json: PathBuf,
}

/// The work of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Processor time of this thread.
    cpu: Duration,
    /// Statuses that were computed; with a controller, those that were written.
    statuses: usize,
    /// Snapshots that were published.
    publications: usize,
    /// Writes to the API server, statuses among them.
    writes: usize,
    /// Events that were recorded.
    events: usize,
    /// Bytes that were hashed for the versions of published snapshots.
    hashed: usize,
}

/// What one edit costs.
#[derive(Clone, Copy, Debug)]
struct EditCost {
    /// Processor time in microseconds.
    cpu: f64,
    /// The part of it that hashing takes at least, in microseconds.
    hashing: f64,
    /// Bytes that were hashed.
    hashed: f64,
}

/// Something that is measured.
trait Measured {
    fn cost(&mut self) -> &mut Cost;
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args {
        restore,
        edit,
        edits,
        replicas,
        heartbeats,
        runs: count,
        json,
    } = args;
    let parameters = format!(
        "restore {restore:?}, edit {edit:?}, {edits} edits, {replicas} replicas, {heartbeats} heartbeats, {count} runs"
    );
    let mut table = Table::new("control", parameters);
    let mut runs = Runs::default();
    for _ in 0..*count {
        runs.begin();
        plane_restore(&mut runs, restore, *replicas)?;
        plane_edit(&mut runs, edit, *edits, *replicas, 1)?;
        plane_edit(&mut runs, edit, *edits, *replicas, 100)?;
        plane_heartbeats(&mut runs, edit, *heartbeats)?;
        controller_restore(&mut runs, restore, *replicas)?;
        controller_edit(&mut runs, edit, *edits, *replicas)?;
        controller_heartbeats(&mut runs, edit, *heartbeats)?;
    }
    table.runs(runs);
    table.finish(json)
}

/// A control plane starts with stored policies, and its replicas reconnect.
fn plane_restore(runs: &mut Runs, sizes: &[usize], replicas: usize) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for policies in sizes {
        let mut world = World::new(1, replicas);
        let cost = measure(&mut world, |world| world.restore(*policies))?;
        times.push(ms(cost.cpu));
        runs.row(
            format!("plane: restore {policies} policies"),
            [
                ("CPU", Unit::Milliseconds, ms(cost.cpu)),
                (
                    "CPU per policy",
                    Unit::Microseconds,
                    us(cost.cpu) / *policies as f64,
                ),
                ("statuses computed", Unit::Number, cost.statuses as f64),
            ],
        );
    }
    ratio(runs, "plane: restore", &times);
    Ok(())
}

/// One policy changes at a time, until the new generation is enforced and the old one gone.
fn plane_edit(
    runs: &mut Runs,
    sizes: &[usize],
    edits: usize,
    replicas: usize,
    per_server: usize,
) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    let what = match per_server {
        1 => "on one PolicyServer".to_owned(),
        n => format!("on PolicyServers of {n}"),
    };
    for policies in sizes {
        let servers = if per_server == 1 {
            1
        } else {
            policies.div_ceil(per_server)
        };
        let mut world = World::new(servers, replicas);
        world.restore(*policies)?;
        let cost = measure(&mut world, |world| {
            (0..edits).try_for_each(|n| world.edit(n * policies / edits.max(1)))
        })?;
        let edit = EditCost::of(&cost, edits)?;
        costs.push(edit);
        runs.row(
            format!("plane: 1 of {policies} edited, {what}"),
            [
                ("CPU per edit", Unit::Microseconds, edit.cpu),
                ("of it hashing, at least", Unit::Microseconds, edit.hashing),
                ("hashed per edit", Unit::Kilobytes, edit.hashed / 1_000.0),
                (
                    "statuses per edit",
                    Unit::Number,
                    cost.statuses as f64 / edits as f64,
                ),
                (
                    "snapshots per edit",
                    Unit::Number,
                    cost.publications as f64 / edits as f64,
                ),
            ],
        );
    }
    edit_ratio(runs, &format!("plane: edit {what}"), &costs);
    Ok(())
}

/// Every replica sends a heartbeat; nothing else happens.
fn plane_heartbeats(runs: &mut Runs, sizes: &[usize], replicas: usize) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for policies in sizes {
        let mut world = World::new(1, replicas);
        world.restore(*policies)?;
        let cost = measure(&mut world, World::heartbeats)?;
        let per_heartbeat = us(cost.cpu) / replicas as f64;
        times.push(per_heartbeat);
        runs.row(
            format!("plane: heartbeats of {replicas} replicas, {policies} policies"),
            [
                ("CPU per heartbeat", Unit::Microseconds, per_heartbeat),
                ("statuses computed", Unit::Number, cost.statuses as f64),
            ],
        );
    }
    ratio(runs, "plane: heartbeat", &times);
    Ok(())
}

/// Compares edits with and without what hashing costs: a version is one SHA-256 over the whole
/// set, so that this part grows with the set however an edit is implemented.
fn edit_ratio(runs: &mut Runs, what: &str, costs: &[EditCost]) {
    if let [small, large] = costs {
        let rest = |cost: &EditCost| cost.cpu - cost.hashing;
        runs.row(
            format!("{what}: large against small"),
            [
                ("CPU", Unit::Times, large.cpu / small.cpu),
                (
                    "CPU without hashing",
                    Unit::Times,
                    rest(large) / rest(small),
                ),
            ],
        );
    }
}

fn ratio(runs: &mut Runs, what: &str, times: &[f64]) {
    if let [small, large] = times {
        let name = format!("{what}: large against small");
        runs.row(name, [("CPU", Unit::Times, large / small)]);
    }
}

/// A new leader lists enforced policies, replicas reconnect; then everything is looked at
/// again.
fn controller_restore(runs: &mut Runs, sizes: &[usize], replicas: usize) -> anyhow::Result<()> {
    let (mut restores, mut resyncs) = (Vec::new(), Vec::new());
    for policies in sizes {
        let mut cluster = Cluster::new(replicas)?;
        let lists = cluster.lists(*policies)?;
        let cost = measure(&mut cluster, |cluster| cluster.restore(lists))?;
        restores.push(ms(cost.cpu));
        runs.row(
            format!("controller: restore {policies} policies"),
            [
                ("CPU", Unit::Milliseconds, ms(cost.cpu)),
                ("statuses written", Unit::Number, cost.statuses as f64),
            ],
        );
        let cost = measure(&mut cluster, Cluster::resync)?;
        resyncs.push(ms(cost.cpu));
        runs.row(
            format!("controller: resync {policies} policies"),
            [
                ("CPU", Unit::Milliseconds, ms(cost.cpu)),
                ("writes", Unit::Number, cost.writes as f64),
            ],
        );
    }
    ratio(runs, "controller: restore", &restores);
    ratio(runs, "controller: resync", &resyncs);
    Ok(())
}

/// One policy changes at a time, until the new generation is enforced.
fn controller_edit(
    runs: &mut Runs,
    sizes: &[usize],
    edits: usize,
    replicas: usize,
) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for policies in sizes {
        let mut cluster = Cluster::new(replicas)?;
        let lists = cluster.lists(*policies)?;
        cluster.restore(lists)?;
        let cost = measure(&mut cluster, |cluster| {
            (0..edits).try_for_each(|n| cluster.edit(n * policies / edits.max(1)))
        })?;
        let edit = EditCost::of(&cost, edits)?;
        costs.push(edit);
        let edits = edits as f64;
        runs.row(
            format!("controller: 1 of {policies} edited"),
            [
                ("CPU per edit", Unit::Microseconds, edit.cpu),
                ("of it hashing, at least", Unit::Microseconds, edit.hashing),
                ("hashed per edit", Unit::Kilobytes, edit.hashed / 1_000.0),
                ("writes per edit", Unit::Number, cost.writes as f64 / edits),
                (
                    "of them statuses",
                    Unit::Number,
                    cost.statuses as f64 / edits,
                ),
                ("events per edit", Unit::Number, cost.events as f64 / edits),
                (
                    "snapshots per edit",
                    Unit::Number,
                    cost.publications as f64 / edits,
                ),
            ],
        );
    }
    edit_ratio(runs, "controller: edit", &costs);
    Ok(())
}

/// Every replica sends a heartbeat; nothing else happens.
fn controller_heartbeats(runs: &mut Runs, sizes: &[usize], replicas: usize) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for policies in sizes {
        let mut cluster = Cluster::new(replicas)?;
        let lists = cluster.lists(*policies)?;
        cluster.restore(lists)?;
        let cost = measure(&mut cluster, Cluster::heartbeats)?;
        let per_heartbeat = us(cost.cpu) / replicas as f64;
        times.push(per_heartbeat);
        runs.row(
            format!("controller: heartbeats of {replicas} replicas, {policies} policies"),
            [
                ("CPU per heartbeat", Unit::Microseconds, per_heartbeat),
                ("statuses written", Unit::Number, cost.statuses as f64),
            ],
        );
    }
    ratio(runs, "controller: heartbeat", &times);
    Ok(())
}

// === impl EditCost ===

impl EditCost {
    fn of(cost: &Cost, edits: usize) -> anyhow::Result<Self> {
        let hashing = hashing(cost.hashed / edits.max(1))?;
        let edits = edits as f64;
        Ok(Self {
            cpu: us(cost.cpu) / edits,
            hashing: us(hashing),
            hashed: cost.hashed as f64 / edits,
        })
    }
}

/// Processor time of hashing so many bytes, and of nothing else.
fn hashing(bytes: usize) -> anyhow::Result<Duration> {
    // The clock is too coarse for a few kilobytes.
    let times = (HASHED_BYTES / bytes.max(1)).max(1);
    let input = vec![0; bytes];
    let before = machine::thread_cpu()?;
    for _ in 0..times {
        std::hint::black_box(Digest::of(std::hint::black_box(&input)));
    }
    let cpu = machine::thread_cpu()? - before;
    Ok(cpu.div_f64(times as f64))
}

fn measure<W: Measured>(
    world: &mut W,
    work: impl FnOnce(&mut W) -> anyhow::Result<()>,
) -> anyhow::Result<Cost> {
    *world.cost() = Cost::default();
    let before = machine::thread_cpu()?;
    work(world)?;
    let mut cost = std::mem::take(world.cost());
    cost.cpu = machine::thread_cpu()? - before;
    Ok(cost)
}

impl Measured for World {
    fn cost(&mut self) -> &mut Cost {
        &mut self.cost
    }
}

impl Measured for Cluster {
    fn cost(&mut self) -> &mut Cost {
        &mut self.cost
    }
}
