//! Benchmarks of Assent: each is one command, prints a table and writes JSON beside it.

#[cfg(feature = "evaluator")]
mod context;
mod control;
mod discovery;
#[cfg(feature = "evaluator")]
mod evaluator;
mod fleet;
mod load;
mod machine;
mod report;
mod server;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Assent. Use a release build on an idle machine.
#[derive(Debug, Parser)]
#[command(name = "assent-bench", version)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Streams: publish to last acknowledgement, memory, reconnects, bursts, bad clients, modules
    Discovery(discovery::Args),
    /// Decisions of the control plane with many policies and replicas, in memory
    Control(control::Args),
    /// Policies that read other objects: reads, changes, reconnects
    #[cfg(feature = "evaluator")]
    Context(context::Args),
    /// Folding the answers of ten thousand replicas over a thousand policies, in memory
    Fold(fleet::Args),
    /// Reviews over HTTPS per ABI, many policies loaded, swaps under load
    #[cfg(feature = "evaluator")]
    Evaluator(evaluator::Args),
    /// Policies written as text: building, evaluations beside `opa run --server`, memory
    #[cfg(feature = "evaluator")]
    Text(evaluator::text::Args),
    /// The server of `discovery`; it runs this itself
    #[command(hide = true)]
    Serve(server::Args),
    /// The evaluator of `evaluator`; it runs this itself
    #[cfg(feature = "evaluator")]
    #[command(hide = true)]
    EvaluatorUnderTest(evaluator::under_test::Args),
    /// The echo server of `evaluator`; it runs this itself
    #[cfg(feature = "evaluator")]
    #[command(hide = true)]
    EvaluatorEcho(evaluator::echo::Args),
}

fn main() -> anyhow::Result<()> {
    match Program::parse().command {
        Command::Discovery(args) => discovery::run(args),
        Command::Control(args) => control::run(&args),
        #[cfg(feature = "evaluator")]
        Command::Context(args) => context::run(args),
        Command::Fold(args) => fleet::run(&args),
        #[cfg(feature = "evaluator")]
        Command::Evaluator(args) => evaluator::run(args),
        #[cfg(feature = "evaluator")]
        Command::Text(args) => evaluator::text::run(args),
        Command::Serve(args) => server::run(args),
        #[cfg(feature = "evaluator")]
        Command::EvaluatorUnderTest(args) => evaluator::under_test::run(args),
        #[cfg(feature = "evaluator")]
        Command::EvaluatorEcho(args) => evaluator::echo::run(args),
    }
}
