//! Latency while one of many policies is exchanged again and again.

use std::time::{Duration, Instant};

use super::{
    Bench,
    client::{Client, allowed},
    loading,
    measure::{Rate, WARM_UP},
    process::Process,
};
use crate::report::{Unit, ms, quantile};

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Settings,
    Artefact,
    Portable,
}

/// Connections under which tails are compared: busy, but not a queue.
const CONNECTIONS: usize = 8;

/// Measures without swaps, then with swaps of each kind.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.args.swapped_of.max(1);
    bench.plane.module_store.offer_artefacts(true);
    let set = loading::many(bench, count);
    bench.plane.publish(set);
    let evaluator = Process::evaluator(&bench.plane, &bench.certificate, "swap")?;
    let (tls, paths) = (bench.certificate.client(), bench.plane.paths());
    let mut client = Client::open(evaluator.address, tls, CONNECTIONS, paths, allowed).await?;
    let without = Rate::of(&mut client, &evaluator, bench.time).await?;
    let name = |what: &str| format!("1 of {count} swapped: {what}");
    bench.runs.row(name("never"), without.cells());
    let mut generation = 1;
    for how in [How::Settings, How::Artefact, How::Portable] {
        let time = bench.time;
        let (rate, applied) = tokio::join!(
            Rate::of(&mut client, &evaluator, time),
            swaps(bench, how, count, &mut generation)
        );
        let (rate, mut applied) = (rate?, applied?);
        let mut cells = rate.cells();
        let share = |rate: &Rate| rate.p99().as_secs_f64();
        cells.push(("p99 of never", Unit::Times, share(&rate) / share(&without)));
        cells.push(("swaps", Unit::Number, applied.len() as f64));
        let median = ms(quantile(&mut applied, 0.5));
        cells.push(("publish to ACK p50", Unit::Milliseconds, median));
        bench.runs.row(name(how.words()), cells);
    }
    Ok(())
}

/// Exchanges the policies in turn for as long as a rate is measured; each gets a generation
/// that nobody has seen. Requests keep to the first one's path.
async fn swaps(
    bench: &mut Bench,
    how: How,
    count: usize,
    generation: &mut i64,
) -> anyhow::Result<Vec<Duration>> {
    bench
        .plane
        .module_store
        .offer_artefacts(how == How::Artefact);
    let (start, pause) = (Instant::now(), Duration::from_millis(bench.args.pause));
    let mut applied = Vec::new();
    while start.elapsed() < WARM_UP + bench.time {
        tokio::time::sleep(pause).await;
        *generation += 1;
        let index = usize::try_from(*generation)? % count;
        let number = match how {
            How::Settings => index,
            How::Artefact | How::Portable => count + usize::try_from(*generation)?,
        };
        let guest = bench.guests.usual().variant(number);
        bench.plane.module_store.put(&guest);
        let next = guest.revision(&format!("policy-{index}"), *generation);
        applied.push(bench.plane.swap(index, next).await?);
    }
    Ok(applied)
}

// === impl How ===

impl How {
    fn words(self) -> &'static str {
        match self {
            How::Settings => "settings",
            How::Artefact => "module, artefact",
            How::Portable => "module, compiled",
        }
    }
}
