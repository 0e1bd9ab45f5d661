//! `assent-evaluator`: see the library.

use assent_evaluator::args::Args;
use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // Named here, so that no dependency chooses one; a second installation is no error.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    args.run().await
}
