//! Benchmarks of Assent: each is one command, prints a table and writes JSON beside it.

mod discovery;
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
    /// Publish to last acknowledgement, memory per stream, reconnects, rejecting and stuck clients
    Discovery(discovery::Args),
    /// Folding the answers of ten thousand replicas over a thousand policies, in memory
    Fold(fleet::Args),
    /// Reviews over HTTPS per ABI, many policies loaded, swaps under load
    Evaluator(evaluator::Args),
    /// The server of `discovery`; it runs this itself
    #[command(hide = true)]
    Serve(server::Args),
    /// The evaluator of `evaluator`; it runs this itself
    #[command(hide = true)]
    EvaluatorUnderTest(evaluator::under_test::Args),
    /// The echo server of `evaluator`; it runs this itself
    #[command(hide = true)]
    EvaluatorEcho(evaluator::echo::Args),
}

fn main() -> anyhow::Result<()> {
    match Program::parse().command {
        Command::Discovery(args) => discovery::run(args),
        Command::Fold(args) => fleet::run(&args),
        Command::Evaluator(args) => evaluator::run(args),
        Command::Serve(args) => server::run(args),
        Command::EvaluatorUnderTest(args) => evaluator::under_test::run(args),
        Command::EvaluatorEcho(args) => evaluator::echo::run(args),
    }
}
