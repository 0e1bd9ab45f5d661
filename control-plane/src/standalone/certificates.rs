//! The certificate of the discovery port, read again when its files change.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use assent_grpc::Tls;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often certificate files are checked: they are renewed days before they expire.
const CERTIFICATE_POLL: Duration = Duration::from_secs(10);

pub(super) fn load(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    cert: PathBuf,
    key: PathBuf,
    shutdown: &CancellationToken,
) -> anyhow::Result<Tls> {
    let tls = Tls::from_files(&cert, &key).context("failed to set up TLS for --discovery")?;
    let (reloaded, stop) = (tls.clone(), shutdown.clone());
    tasks.spawn(async move {
        stop.run_until_cancelled(follow_files(reloaded, cert, key))
            .await;
        Ok(())
    });
    Ok(tls)
}

async fn follow_files(tls: Tls, cert: PathBuf, key: PathBuf) {
    let mut seen = modified(&cert, &key);
    loop {
        tokio::time::sleep(CERTIFICATE_POLL).await;
        let now = modified(&cert, &key);
        if now == seen {
            continue;
        }
        // Two files are never replaced at once: a pair that does not match is read again.
        match reload(&tls, &cert, &key) {
            Ok(()) => seen = now,
            Err(error) => warn!("keeping the certificate that was read before: {error:#}"),
        }
    }
}

fn reload(tls: &Tls, cert: &Path, key: &Path) -> anyhow::Result<()> {
    tls.replace_pem(&std::fs::read(cert)?, &std::fs::read(key)?)?;
    info!("certificate reloaded");
    Ok(())
}

fn modified(cert: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    [time(cert), time(key)]
}
