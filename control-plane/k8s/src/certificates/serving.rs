//! The certificate of the control plane's own listeners, renewed at half of its lifetime.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Authority, Error, ServingLeaf};

/// Clocks are set: a long sleep is cut into these.
const LOOK: Duration = Duration::from_secs(60 * 60);

/// Makes a leaf now, and a new one at half of its life or when another authority signs.
/// Returns the leaf and what keeps it: run that until `shutdown`.
pub fn keep_serving(
    mut authority: watch::Receiver<Arc<Authority>>,
    dns_names: Vec<String>,
    ip_addresses: Vec<IpAddr>,
    shutdown: CancellationToken,
) -> Result<(watch::Receiver<Arc<ServingLeaf>>, impl Future<Output = ()>), Error> {
    let mut signer = authority.borrow_and_update().clone();
    let leaf = signer.serving_leaf(&dns_names, &ip_addresses)?;
    let mut renew_at = leaf.renew_at;
    let (sender, receiver) = watch::channel(Arc::new(leaf));
    let keep = async move {
        loop {
            let wait = renew_at
                .duration_since(SystemTime::now())
                .unwrap_or_default();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait.min(LOOK)) => {}
                Ok(()) = authority.changed() => {}
            }
            let next = authority.borrow_and_update().clone();
            if SystemTime::now() < renew_at && next.signs_like(&signer) {
                continue;
            }
            match next.serving_leaf(&dns_names, &ip_addresses) {
                Ok(leaf) => {
                    renew_at = leaf.renew_at;
                    sender.send_replace(Arc::new(leaf));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to renew the serving certificate; keeping the current one");
                    renew_at = SystemTime::now() + LOOK;
                }
            }
            signer = next;
        }
    };
    Ok((receiver, keep))
}
