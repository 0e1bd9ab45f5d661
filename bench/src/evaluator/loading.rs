//! Starting with many policies: how soon ready, and with how much memory.

use std::{sync::Arc, time::Duration};

use assent_core::Policy;

use super::{Bench, measure::megabytes, process::Process};
use crate::report::{Unit, ms};

/// Buffers of the start are given back within it.
const SETTLE: Duration = Duration::from_secs(1);

/// How an evaluator starts that need not compile.
pub(super) const ARTEFACTS: &str = "from artefacts";

/// From starting the process to ready.
pub(super) const READY: &str = "ready after";

/// Measures every number of policies, compiled by the evaluator and from artefacts.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    for count in bench.args.loaded.clone() {
        let set = many(bench, count);
        bench.plane.publish(set);
        let cold = start(bench, count, "cold", None).await?;
        start(bench, count, ARTEFACTS, Some(cold)).await?;
    }
    Ok(())
}

/// So many policies, each with a module of its own.
pub(crate) fn many(bench: &Bench, count: usize) -> Vec<Arc<Policy>> {
    let one = |n: usize| {
        let guest = bench.guests.usual().variant(n);
        bench.plane.module_store.put(&guest);
        guest.revision(&format!("policy-{n}"), 1)
    };
    (0..count).map(one).collect()
}

/// What a row is called.
pub(super) fn row(count: usize, how: &str) -> String {
    format!("{count} policies: {how}")
}

async fn start(
    bench: &mut Bench,
    count: usize,
    how: &str,
    cold: Option<Duration>,
) -> anyhow::Result<Duration> {
    bench.plane.module_store.offer_artefacts(cold.is_some());
    let id = format!("loading-{count}-{}", cold.is_some());
    let process = Process::evaluator(&bench.plane, &bench.certificate, &id)?;
    let cpu = process.cpu()?;
    tokio::time::sleep(SETTLE).await;
    let (idle, peak) = process.memory()?;
    let mut cells = vec![
        (READY, Unit::Milliseconds, ms(process.to_ready)),
        ("CPU until ready", Unit::Milliseconds, ms(cpu)),
        ("memory idle", Unit::Megabytes, megabytes(idle)),
        ("peak", Unit::Megabytes, megabytes(peak)),
    ];
    if let Some(cold) = cold {
        let of_cold = process.to_ready.as_secs_f64() / cold.as_secs_f64();
        cells.push(("of cold", Unit::Times, of_cold));
    }
    bench.runs.row(row(count, how), cells);
    Ok(process.to_ready)
}
