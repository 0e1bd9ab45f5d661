//! One policy per ABI over HTTPS; beside it an echo of the same bytes, the raw call, and both in one
//! process.

use std::collections::HashMap;

use super::{
    Bench,
    client::{Client, allowed, echoed},
    guests::Guest,
    measure::{Cell, Rate},
    process::Process,
    raw::{Calls, Raw},
};
use crate::report::Unit;

/// What the parts cost, to be compared with the whole.
struct Parts {
    /// Processor time of an echo in microseconds, by the number of connections.
    echo_us: HashMap<usize, f64>,
    one: Calls,
    two: Calls,
    /// Processor time of an echo that makes the call, by the number of connections.
    together_us: HashMap<usize, f64>,
}

/// What the host costs by itself.
pub(super) const BEYOND: &str = "CPU beyond echo with call";

/// The same as a ratio.
pub(super) const OF_TOGETHER: &str = "CPU of echo with call";

/// A rate against that of the raw call.
pub(super) const OF_RAW: &str = "rate of raw, 1 thread";

/// How well two threads do.
pub(super) const OF_ONE: &str = "of 1 thread";

/// Measures all.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Process::echo(&bench.certificate)?;
    let echo_us = echo(bench, &server, "echo").await?;
    drop(server);
    let guests = bench.guests.all().to_vec();
    let set = guests.iter().map(|guest| {
        bench.plane.module_store.put(guest);
        guest.revision(guest.name, 1)
    });
    let set = set.collect();
    bench.plane.module_store.offer_artefacts(true);
    bench.plane.publish(set);
    let evaluator = Process::evaluator(&bench.plane, &bench.certificate, "throughput")?;
    let paths = bench.plane.paths();
    for (guest, path) in guests.iter().zip(paths) {
        let (one, two) = raw(bench, guest)?;
        let server = Process::echo_with(&bench.certificate, &bench.args.policies, guest.label)?;
        let what = format!("{}: echo with call", guest.label);
        let parts = Parts {
            echo_us: echo_us.clone(),
            one,
            two,
            together_us: echo(bench, &server, &what).await?,
        };
        drop(server);
        for connections in bench.args.connections.clone() {
            let tls = bench.certificate.client();
            let paths = vec![path.clone()];
            let mut client =
                Client::open(evaluator.address, tls, connections, paths, allowed).await?;
            let rate = Rate::of(&mut client, &evaluator, bench.time).await?;
            let mut cells = rate.cells();
            cells.extend(parts.compare(connections, &rate));
            bench.runs.row(row(guest.label, connections), cells);
        }
    }
    Ok(())
}

async fn echo(
    bench: &mut Bench,
    server: &Process,
    what: &str,
) -> anyhow::Result<HashMap<usize, f64>> {
    let mut cpu = HashMap::new();
    for connections in bench.args.connections.clone() {
        let (tls, paths) = (bench.certificate.client(), vec!["/".to_owned()]);
        let mut client = Client::open(server.address, tls, connections, paths, echoed).await?;
        let rate = Rate::of(&mut client, server, bench.time).await?;
        bench.runs.row(row(what, connections), rate.cells());
        cpu.insert(connections, rate.cpu_us);
    }
    Ok(cpu)
}

fn raw(bench: &mut Bench, guest: &Guest) -> anyhow::Result<(Calls, Calls)> {
    let (one, two) = tokio::task::block_in_place(|| {
        let raw = Raw::prepare(bench.guests.engine(), guest)?;
        let one = raw.call(1, bench.time)?;
        Ok::<_, anyhow::Error>((one, raw.call(2, bench.time)?))
    })?;
    let cells = |calls: &Calls| {
        vec![
            ("calls/s", Unit::Number, calls.per_second.round()),
            ("CPU per call", Unit::Microseconds, calls.cpu_us),
        ]
    };
    let what = format!("{}: raw call, 1 thread", guest.label);
    bench.runs.row(what, cells(&one));
    let mut values = cells(&two);
    values.push((OF_ONE, Unit::Times, two.per_second / one.per_second));
    bench.runs.row(two_threads(guest.label), values);
    Ok((one, two))
}

/// What a row is called.
pub(super) fn row(label: &str, connections: usize) -> String {
    format!("{label}: {connections} connections")
}

/// What the row of the raw call on two threads is called.
pub(super) fn two_threads(label: &str) -> String {
    format!("{label}: raw call, 2 threads")
}

// === impl Parts ===

impl Parts {
    /// The whole against the sum of its parts.
    fn compare(&self, connections: usize, rate: &Rate) -> Vec<Cell> {
        let echo = self.echo_us.get(&connections).copied().unwrap_or(f64::NAN);
        let sum = echo + self.one.cpu_us;
        let together = self.together_us.get(&connections);
        let together = together.copied().unwrap_or(f64::NAN);
        vec![
            ("CPU of echo + raw", Unit::Times, rate.cpu_us / sum),
            (
                "CPU beyond echo + raw",
                Unit::Microseconds,
                rate.cpu_us - sum,
            ),
            (BEYOND, Unit::Microseconds, rate.cpu_us - together),
            (OF_TOGETHER, Unit::Times, rate.cpu_us / together),
            (OF_RAW, Unit::Times, rate.per_second() / self.one.per_second),
            (
                "rate of raw, 2 threads",
                Unit::Times,
                rate.per_second() / self.two.per_second,
            ),
        ]
    }
}
