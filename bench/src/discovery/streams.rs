//! Clients that do as they should: idle, changes, restarts.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{Args, process::Server};
use crate::{
    load::{Load, Manner},
    report::{Runs, Unit, ms, quantile, us},
    server::Order,
};

/// Streams that are there before memory is looked at: code that runs for the first time is
/// no memory of a stream.
const FEW: usize = 50;

/// B1: streams that nothing happens on.
pub(super) async fn idle(
    args: &Args,
    streams: usize,
    policies: usize,
    runs: &mut Runs,
) -> anyhow::Result<()> {
    let mut server = Server::start(policies, None)?;
    let _few = Load::open(server.address, 0..FEW, |_| Manner::Honest).await?;
    server.order(Order::Settle { acks: FEW })?;
    let (before, _) = server.memory()?;
    let all = FEW + streams;
    let _load = Load::open(server.address, FEW..all, |_| Manner::Honest).await?;
    server.order(Order::Settle { acks: all })?;
    let cpu = server.cpu()?;
    let wait = Duration::from_secs(args.idle_seconds);
    tokio::time::sleep(wait).await;
    let cpu = server.cpu()?.saturating_sub(cpu);
    let memory = server.memory()?.0.saturating_sub(before);
    runs.row(
        format!("B1 {streams} x {policies}: idle"),
        [
            (
                "memory per stream",
                Unit::Kilobytes,
                memory as f64 / 1_024.0 / streams.max(1) as f64,
            ),
            (
                "CPU of one core, permille",
                Unit::Number,
                1e3 * cpu.as_secs_f64() / wait.as_secs_f64().max(1.0),
            ),
        ],
    );
    Ok(())
}

/// B5, B2 and B4: connecting without state, single changes, a restart with equal content.
pub(super) async fn matrix(
    args: &Args,
    streams: usize,
    policies: usize,
    runs: &mut Runs,
) -> anyhow::Result<()> {
    let name = format!("{streams} x {policies}");
    let mut server = Server::start(policies, None)?;
    let start = Instant::now();
    let load = Load::open(server.address, 0..streams, |_| Manner::Honest).await?;
    server.order(Order::Settle { acks: streams })?;
    let synced = start.elapsed();
    let (_, peak) = server.memory()?;
    runs.row(
        format!("B5 {name}: connect without state"),
        [
            ("all synced", Unit::Milliseconds, ms(synced)),
            ("peak", Unit::Megabytes, peak as f64 / 1e6),
        ],
    );
    let what = changes_name(streams, policies);
    changes(args, &mut server, &load, streams, &what, runs).await?;
    restart(server, &load, streams, policies, &name, runs)
}

/// What the row of single changes is called.
pub(super) fn changes_name(streams: usize, policies: usize) -> String {
    format!("B2 {streams} x {policies}: one change")
}

/// Times single changes until the last of `acks` replicas has answered.
pub(super) async fn changes(
    args: &Args,
    server: &mut Server,
    load: &Load,
    acks: usize,
    what: &str,
    runs: &mut Runs,
) -> anyhow::Result<()> {
    let (mut applied, mut publish) = (Vec::new(), Vec::new());
    let bytes = load.seen.bytes.load(Ordering::Relaxed);
    let cpu = server.cpu()?;
    for n in 0..args.changes {
        tokio::time::sleep(Duration::from_millis(args.pause)).await;
        let done = server.order(Order::Change {
            policy: 0,
            generation: 2 + i64::try_from(n)?,
            module_bytes: 0,
            acks,
        })?;
        applied.push(Duration::from_micros(done.applied_us));
        publish.push(Duration::from_micros(done.publish_us));
    }
    let changes = args.changes.max(1) as f64;
    let cpu = us(server.cpu()?.saturating_sub(cpu)) / changes;
    let bytes = load.seen.bytes.load(Ordering::Relaxed) - bytes;
    runs.row(
        what,
        [
            ("p50", Unit::Milliseconds, ms(quantile(&mut applied, 0.5))),
            ("p99", Unit::Milliseconds, ms(quantile(&mut applied, 0.99))),
            ("max", Unit::Milliseconds, ms(quantile(&mut applied, 1.0))),
            (
                "publish call p50",
                Unit::Microseconds,
                us(quantile(&mut publish, 0.5)),
            ),
            (
                "publish call max",
                Unit::Microseconds,
                us(quantile(&mut publish, 1.0)),
            ),
            ("CPU per change", Unit::Milliseconds, cpu / 1e3),
            (
                "CPU per stream and change",
                Unit::Microseconds,
                cpu / acks.max(1) as f64,
            ),
            (
                "bytes per stream and change",
                Unit::Bytes,
                bytes as f64 / changes / acks.max(1) as f64,
            ),
        ],
    );
    Ok(())
}

/// Restarts the server with equal content under everyone's feet.
fn restart(
    mut server: Server,
    load: &Load,
    streams: usize,
    policies: usize,
    name: &str,
    runs: &mut Runs,
) -> anyhow::Result<()> {
    let address = server.address;
    // Back to what a fresh server has, so that the content is equal.
    server.order(Order::Change {
        policy: 0,
        generation: 1,
        module_bytes: 0,
        acks: streams,
    })?;
    let before = load.seen.resources.load(Ordering::Relaxed);
    drop(server);
    let mut server = Server::start(policies, Some(address))?;
    let start = Instant::now();
    server.order(Order::Settle { acks: streams })?;
    let took = start.elapsed();
    let resources = load.seen.resources.load(Ordering::Relaxed) - before;
    let (_, peak) = server.memory()?;
    runs.row(
        format!("B4 {name}: restart, equal content"),
        [
            ("all confirmed", Unit::Milliseconds, ms(took)),
            ("resources sent", Unit::Number, resources as f64),
            ("peak", Unit::Megabytes, peak as f64 / 1e6),
        ],
    );
    Ok(())
}
