//! The evaluator under test, as its own program would run it.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use assent_evaluator::{Config, Evaluator, TlsFiles};
use clap::Args as ClapArgs;
use http::Uri;

use crate::server::{read_line, say};

/// What the evaluator is told.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Where discovery is served
    #[arg(long)]
    discovery: Uri,
    /// Name of this replica
    #[arg(long)]
    id: String,
    /// Certificate chain as PEM
    #[arg(long)]
    cert: PathBuf,
    /// Private key as PEM
    #[arg(long)]
    key: PathBuf,
}

/// Short against every time to ready that is told, and cheap.
const POLL: Duration = Duration::from_millis(1);

/// Compiling a hundred modules takes most of a minute on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Says its address when it is ready, and serves until standard input ends.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        discovery,
        id,
        cert,
        key,
    } = args;
    let mut config = Config::loopback(discovery, id);
    config.tls = Some(TlsFiles { cert, key });
    let evaluator = Evaluator::start(config).await?;
    let ready = async {
        while evaluator.ready().is_err() {
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(PATIENCE, ready).await.is_err() {
        let why = evaluator.ready().err().unwrap_or("it just became ready");
        bail!("the evaluator is not ready: {why}");
    }
    say(&evaluator.listen_addr().to_string())?;
    while read_line().await?.is_some() {}
    Ok(())
}
