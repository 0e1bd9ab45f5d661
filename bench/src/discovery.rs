//! Discovery under load: a server process, and thousands of streams from this one.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::{
    fleet,
    report::{Report, Runs},
};

mod clients;
mod process;
mod streams;

/// What to measure.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Numbers of streams
    #[arg(long, value_delimiter = ',', default_value = "100,1000,5000")]
    streams: Vec<usize>,
    /// Numbers of policies
    #[arg(long, value_delimiter = ',', default_value = "10,1000")]
    policies: Vec<usize>,
    /// Numbers of streams that are opened and left alone
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    idle: Vec<usize>,
    /// How long they are left alone, in seconds
    #[arg(long, default_value_t = 20)]
    idle_seconds: u64,
    /// Streams of bursts, of clients that reject or do not read, and of those that fetch modules
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Changes of one policy that are timed
    #[arg(long, default_value_t = 20)]
    changes: usize,
    /// Pause between two changes, in milliseconds
    #[arg(long, default_value_t = 200)]
    pause: u64,
    /// Changes in a burst of one second
    #[arg(long, default_value_t = 1_000)]
    burst: u32,
    /// How long clients that do not read are watched, in seconds; in the last run only
    #[arg(long, default_value_t = 300)]
    stalled_seconds: u64,
    /// Size of a new module, in bytes
    #[arg(long, default_value_t = 1 << 20)]
    module_bytes: usize,
    /// Replicas whose answers are folded in memory
    #[arg(long, default_value_t = 10_000)]
    fold_replicas: usize,
    /// Policies that they are folded for
    #[arg(long, default_value_t = 1_000)]
    fold_policies: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Everything once and small, to see that it works: a minute
    #[arg(long)]
    quick: bool,
    /// Where the JSON goes
    #[arg(long, default_value = "bench-discovery.json")]
    json: PathBuf,
}

/// Runs everything as often as it is asked for.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let args = if args.quick { args.small() } else { args };
    let mut table = Report::new("discovery", args.describe());
    let mut runs = Runs::default();
    for run in 1..=args.runs {
        runs.begin();
        for (streams, policies) in args.idle() {
            streams::idle(&args, streams, policies, &mut runs).await?;
        }
        for policies in &args.policies {
            for streams in &args.streams {
                streams::matrix(&args, *streams, *policies, &mut runs).await?;
            }
        }
        clients::all(&args, run == args.runs, &mut runs).await?;
        fleet::fold(args.fold_replicas, args.fold_policies, &mut runs)?;
    }
    table.runs(runs);
    table.finish(&args.json)
}

// === impl Args ===

impl Args {
    /// Streams and policies of what is idle: all numbers of streams with the fewest policies,
    /// and the first one with the most, because that must not matter.
    fn idle(&self) -> Vec<(usize, usize)> {
        let (fewest, most) = (self.policies.iter().min(), self.policies.iter().max());
        let with = |policies: &usize| (*policies, self.idle.as_slice());
        let few = fewest.map(with);
        let many = most.filter(|most| Some(*most) != fewest).map(with);
        let many = many.map(|(policies, idle)| (policies, &idle[..idle.len().min(1)]));
        let pairs = few.into_iter().chain(many);
        pairs
            .flat_map(|(policies, idle)| idle.iter().map(move |streams| (*streams, policies)))
            .collect()
    }

    fn small(self) -> Self {
        Self {
            streams: vec![20, 100],
            policies: vec![10, 100],
            idle: vec![100],
            idle_seconds: 2,
            clients: 100,
            changes: 5,
            pause: 100,
            burst: 100,
            stalled_seconds: 4,
            module_bytes: 1 << 18,
            fold_replicas: 1_000,
            fold_policies: 100,
            runs: 1,
            quick: true,
            json: self.json,
        }
    }

    fn describe(&self) -> String {
        let Self {
            streams,
            policies,
            idle,
            idle_seconds,
            clients,
            changes,
            pause,
            burst,
            stalled_seconds,
            module_bytes,
            fold_replicas,
            fold_policies,
            runs,
            quick,
            json: _,
        } = self;
        let size = if *quick { "quick: " } else { "" };
        format!(
            "{size}{runs} runs; streams {streams:?} x policies {policies:?}, {changes} changes \
             {pause} ms apart; idle {idle:?} for {idle_seconds} s; {clients} clients: bursts of \
             {burst}, stalled for {stalled_seconds} s, modules of {module_bytes} bytes; fold \
             {fold_replicas} x {fold_policies}; one connection per stream"
        )
    }
}
