//! Policies that read other objects: what reads cost (X1, X2), and what replication costs (X3, X4).

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::report::{Report as Table, Runs};

mod objects;
mod reads;
mod stream;

/// Parameters of the benchmark.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Objects that the Rego policy reads, and among which a namespace is listed
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Objects among which one is read, and which are replicated
    #[arg(long, default_value_t = 100_000)]
    many: usize,
    /// Evaluators that objects are replicated to
    #[arg(long, default_value_t = 15)]
    clients: usize,
    /// Changes per measurement
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Evaluations per measurement
    #[arg(long, default_value_t = 2_000)]
    evaluations: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Small numbers, to see that it works
    #[arg(long)]
    quick: bool,
    /// Directory of the example policies
    #[arg(long, default_value = "policies")]
    policies: PathBuf,
    /// The file for the JSON
    #[arg(long, default_value = "bench-context.json")]
    json: PathBuf,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    if args.quick {
        (args.objects, args.many, args.clients) = (200, 1_000, 3);
        (args.changes, args.evaluations, args.runs) = (5, 20, 1);
    }
    let Args {
        objects,
        many,
        clients,
        changes,
        evaluations,
        runs: count,
        ..
    } = args;
    let parameters = format!(
        "{objects} and {many} objects, {clients} evaluators, {changes} changes, {evaluations} evaluations, {count} runs"
    );
    let mut table = Table::new("context", parameters);
    let mut runs = Runs::default();
    let runtime = tokio::runtime::Runtime::new()?;
    for _ in 0..count {
        runs.begin();
        reads::rego(&mut runs, &args.policies, objects, evaluations)?;
        reads::host_calls(&mut runs, objects, many, evaluations)?;
        runtime.block_on(stream::changes(
            &mut runs,
            &[many / 1_000, many],
            clients,
            changes,
        ))?;
        runtime.block_on(stream::reconnects(&mut runs, many, clients))?;
    }
    table.runs(runs);
    table.finish(&args.json)
}
