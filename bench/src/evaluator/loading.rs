//! Starting with many policies: how soon ready, and with how much memory.

use std::{sync::Arc, time::Duration};

use assent_core::Policy;

use super::{
    Bench,
    measure::{megabytes, ratio},
    process::Process,
};
use crate::report;

/// Buffers of the start are given back within it.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures every number of policies, compiled by the evaluator and from artefacts.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    for count in bench.args.loaded.clone() {
        let set = many(bench, count);
        bench.plane.publish(set);
        let cold = start(bench, count, "cold", None).await?;
        start(bench, count, "from artefacts", Some(cold)).await?;
    }
    Ok(())
}

/// So many policies, each with a module of its own.
pub(crate) fn many(bench: &Bench, count: usize) -> Vec<Arc<Policy>> {
    let one = |n: usize| {
        let guest = bench.guests.usual().variant(n);
        bench.plane.shelf.put(&guest);
        guest.revision(&format!("policy-{n}"), 1)
    };
    (0..count).map(one).collect()
}

async fn start(
    bench: &mut Bench,
    count: usize,
    how: &str,
    cold: Option<Duration>,
) -> anyhow::Result<Duration> {
    bench.plane.shelf.offer_artefacts(cold.is_some());
    let id = format!("loading-{count}-{}", cold.is_some());
    let process = Process::evaluator(&bench.plane, &bench.certificate, &id)?;
    let cpu = process.cpu()?;
    tokio::time::sleep(SETTLE).await;
    let (idle, peak) = process.memory()?;
    let mut cells = vec![
        ("ready after", report::millis(process.to_ready)),
        ("CPU until ready", report::millis(cpu)),
        ("memory idle", megabytes(idle)),
        ("peak", megabytes(peak)),
    ];
    if let Some(cold) = cold {
        let of_cold = ratio(process.to_ready.as_secs_f64(), cold.as_secs_f64());
        cells.push(("of cold", of_cold));
    }
    bench.table.row(format!("{count} policies: {how}"), cells);
    Ok(process.to_ready)
}
