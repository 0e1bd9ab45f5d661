//! Bursts, clients that reject or do not read, and new modules.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{
    Args,
    process::Server,
    streams::{changes, changes_name},
};
use crate::{
    load::{Load, Manner},
    report::{Runs, Unit, ms, us},
    server::Order,
};

/// Policies of the set: a small one, so that clients and not sets are measured.
const POLICIES: usize = 10;

/// Between two changes while clients are watched that do not read.
const STALLED_PAUSE: Duration = Duration::from_secs(2);

/// Everything that is measured with one number of clients.
pub(super) async fn all(args: &Args, last: bool, runs: &mut Runs) -> anyhow::Result<()> {
    let with = format!("{} x {POLICIES}", args.clients);
    burst(args, &with, runs).await?;
    good(args, runs).await?;
    for percent in [1, 10] {
        rejecting(args, percent, &with, runs).await?;
    }
    stuck(args, last, &with, runs).await?;
    module(args, &with, runs).await
}

/// B3: a second full of changes.
async fn burst(args: &Args, with: &str, runs: &mut Runs) -> anyhow::Result<()> {
    let (mut server, load) = open(args, |_| Manner::Honest).await?;
    let seen = &load.seen;
    let (responses, bytes) = (&seen.responses, &seen.bytes);
    let before = (
        responses.load(Ordering::Relaxed),
        bytes.load(Ordering::Relaxed),
    );
    let done = server.order(Order::Burst {
        changes: args.burst,
        over_ms: 1_000,
        acks: args.clients,
    })?;
    let clients = args.clients.max(1) as f64;
    let versions = (responses.load(Ordering::Relaxed) - before.0) as f64 / clients;
    let bytes = (bytes.load(Ordering::Relaxed) - before.1) as f64 / clients;
    let quiet = Duration::from_micros(done.applied_us);
    runs.row(
        format!("B3 {with}: burst of {}", args.burst),
        [
            ("snapshots published", Unit::Number, done.published as f64),
            ("versions per client", Unit::Number, versions),
            ("bytes per client", Unit::Bytes, bytes),
            ("last change to last ACK", Unit::Milliseconds, ms(quiet)),
        ],
    );
    Ok(())
}

/// B2 with the clients of this part, unless the matrix has it, to compare with.
async fn good(args: &Args, runs: &mut Runs) -> anyhow::Result<()> {
    if args.streams.contains(&args.clients) && args.policies.contains(&POLICIES) {
        return Ok(());
    }
    let (mut server, load) = open(args, |_| Manner::Honest).await?;
    let what = changes_name(args.clients, POLICIES);
    changes(args, &mut server, &load, args.clients, &what, runs).await
}

/// B6: some refuse every update.
async fn rejecting(args: &Args, percent: usize, with: &str, runs: &mut Runs) -> anyhow::Result<()> {
    let share = 100 / percent;
    let (mut server, load) = open(args, |n| every(share, n, Manner::Rejecting)).await?;
    let bad = args.clients.div_ceil(share);
    let before = load.seen.rejected.load(Ordering::Relaxed);
    let what = format!("B6 {with}: {percent} % reject");
    let good = args.clients - bad;
    changes(args, &mut server, &load, good, &what, runs).await?;
    // The last of them may still be on their way.
    tokio::time::sleep(Duration::from_millis(args.pause)).await;
    let sends = load.seen.rejected.load(Ordering::Relaxed) - before;
    let versions = (args.changes * bad).max(1) as f64;
    let sends = (
        "sends per rejected version",
        Unit::Number,
        sends as f64 / versions,
    );
    let compared = compared(args, &what, runs);
    runs.row(what, compared.into_iter().chain([sends]));
    Ok(())
}

/// B7: some stop reading; in the last run they are watched for a while.
async fn stuck(args: &Args, last: bool, with: &str, runs: &mut Runs) -> anyhow::Result<()> {
    const SHARE: usize = 20;
    let (mut server, load) = open(args, |n| every(SHARE, n, Manner::Stuck)).await?;
    let good = args.clients - args.clients.div_ceil(SHARE);
    let what = format!("B7 {with}: 5 % do not read");
    changes(args, &mut server, &load, good, &what, runs).await?;
    let compared = compared(args, &what, runs);
    runs.row(&what, compared);
    if !last {
        return Ok(());
    }
    let (before, _) = server.memory()?;
    let start = Instant::now();
    let mut generation = 1_000;
    while start.elapsed() < Duration::from_secs(args.stalled_seconds) {
        generation += 1;
        server.order(Order::Change {
            policy: 0,
            generation,
            module_bytes: 0,
            acks: good,
        })?;
        tokio::time::sleep(STALLED_PAUSE).await;
    }
    let (after, peak) = server.memory()?;
    runs.row(
        format!("B7 {with}: after {} s of it", args.stalled_seconds),
        [
            ("before", Unit::Megabytes, before as f64 / 1e6),
            ("after", Unit::Megabytes, after as f64 / 1e6),
            ("peak", Unit::Megabytes, peak as f64 / 1e6),
        ],
    );
    Ok(())
}

/// B10: everyone fetches a new module.
async fn module(args: &Args, with: &str, runs: &mut Runs) -> anyhow::Result<()> {
    let (mut server, load) = open(args, |_| Manner::Fetching).await?;
    let cpu = server.cpu()?;
    let done = server.order(Order::Change {
        policy: 0,
        generation: 2,
        module_bytes: args.module_bytes,
        acks: args.clients,
    })?;
    let cpu = server.cpu()?.saturating_sub(cpu);
    let (_, peak) = server.memory()?;
    let fetched = load.seen.modules.load(Ordering::Relaxed);
    runs.row(
        format!("B10 {with}: new module, {} bytes", args.module_bytes),
        [
            (
                "publish to last ACK",
                Unit::Milliseconds,
                ms(Duration::from_micros(done.applied_us)),
            ),
            ("fetched", Unit::Megabytes, fetched as f64 / 1e6),
            (
                "CPU per client",
                Unit::Microseconds,
                us(cpu) / args.clients.max(1) as f64,
            ),
            ("peak", Unit::Megabytes, peak as f64 / 1e6),
        ],
    );
    Ok(())
}

/// A server, and clients who have all taken the first set.
async fn open(args: &Args, manner: impl Fn(usize) -> Manner) -> anyhow::Result<(Server, Load)> {
    let mut server = Server::start(POLICIES, None)?;
    let load = Load::open(server.address, 0..args.clients, manner).await?;
    server.order(Order::Settle { acks: args.clients })?;
    Ok((server, load))
}

fn every(share: usize, n: usize, manner: Manner) -> Manner {
    match n.is_multiple_of(share) {
        true => manner,
        false => Manner::Honest,
    }
}

/// A row's median so far against that of clients that all do as they should.
fn compared(args: &Args, what: &str, runs: &Runs) -> Option<(&'static str, Unit, f64)> {
    let own = runs.median(what, "p50")?;
    let good = runs.median(&changes_name(args.clients, POLICIES), "p50")?;
    Some(("p50 of B2", Unit::Times, own / good))
}
