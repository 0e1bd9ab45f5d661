//! Evaluators under load: reviews over HTTPS, many policies, swaps. The evaluator is a process
//! of its own, so that memory and processor time are its own; this one is its control plane
//! and its API server.

use std::{path::PathBuf, time::Duration};

use clap::Args as ClapArgs;

use crate::report::{Report, Runs};

mod certificate;
mod client;
pub(crate) mod echo;
mod guests;
mod lines;
mod loading;
mod measure;
mod module_store;
mod plane;
mod process;
mod raw;
mod swap;
pub(crate) mod text;
mod throughput;
pub(crate) mod under_test;

use certificate::Certificate;
use guests::Guests;
use plane::Plane;

/// What to measure.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Folder with the example policies
    #[arg(long, default_value = "policies")]
    policies: PathBuf,
    /// Numbers of connections that are kept open and busy
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    connections: Vec<usize>,
    /// Numbers of policies loaded at once
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    loaded: Vec<usize>,
    /// Policies of the set in which one is swapped
    #[arg(long, default_value_t = 100)]
    swapped_of: usize,
    /// Pause between two swaps, in milliseconds
    #[arg(long, default_value_t = 100)]
    pause: u64,
    /// How often everything is measured; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds for which each rate is measured
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Where the JSON goes
    #[arg(long, default_value = "bench-evaluator.json")]
    json: PathBuf,
}

/// What every measurement needs.
struct Bench {
    args: Args,
    /// Time for one rate.
    time: Duration,
    guests: Guests,
    plane: Plane,
    certificate: Certificate,
    table: Report,
    runs: Runs,
}

/// The review that is sent: a Deployment of two containers that every example policy allows.
const REVIEW: &[u8] = include_bytes!("../review.json");

/// Runs everything.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let parameters = format!(
        "review of {} bytes, HTTPS, HTTP/1.1, connections {:?}, policies loaded {:?}, \
         1 of {} swapped every {} ms, {} s per rate, {} runs",
        REVIEW.len(),
        args.connections,
        args.loaded,
        args.swapped_of,
        args.pause,
        args.seconds,
        args.runs
    );
    let table = Report::new("evaluator", parameters);
    let guests = Guests::load(&args.policies)?;
    let mut bench = Bench {
        time: Duration::try_from_secs_f64(args.seconds)?,
        plane: Plane::start(guests.engine()).await?,
        certificate: Certificate::new()?,
        guests,
        table,
        runs: Runs::default(),
        args,
    };
    for _ in 0..bench.args.runs {
        bench.runs.begin();
        throughput::run(&mut bench).await?;
        loading::run(&mut bench).await?;
        swap::run(&mut bench).await?;
    }
    lines::compare(&mut bench);
    let runs = std::mem::take(&mut bench.runs);
    bench.table.runs(runs);
    bench.table.finish(&bench.args.json)
}
