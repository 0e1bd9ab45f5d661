//! Looks up the addresses of a host for a guest.

use std::{
    collections::BTreeSet,
    net::ToSocketAddrs as _,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde::Serialize;

/// The system's resolver can't be interrupted: a look-up that outlives its evaluation keeps a thread for some
/// seconds. There are never more of them than this.
const MOST: usize = 16;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// One look-up under way.
struct Place;

#[derive(Serialize)]
struct Reply {
    ips: BTreeSet<String>,
}

/// Answers `net/v1/dns_lookup_host`: a host name in JSON, a list of addresses back.
pub(super) fn lookup(payload: &[u8], timeout: Duration) -> Result<Vec<u8>, String> {
    let host: String = serde_json::from_slice(payload)
        .map_err(|error| format!("failed to read the host name: {error}"))?;
    let place = Place::take().ok_or("too many look-ups at once")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = host.clone();
    thread::Builder::new()
        .name("dns-lookup".to_owned())
        .spawn(move || {
            let _place = place;
            let _ = sender.send(resolve(&name));
        })
        .map_err(|error| format!("failed to look up {host:?}: {error}"))?;
    let found = receiver
        .recv_timeout(timeout)
        .map_err(|_| format!("the look-up of {host:?} took too long"))?;
    let ips = found.map_err(|error| format!("failed to look up {host:?}: {error}"))?;
    serde_json::to_vec(&Reply { ips }).map_err(|error| error.to_string())
}

fn resolve(host: &str) -> std::io::Result<BTreeSet<String>> {
    Ok((host, 0)
        .to_socket_addrs()?
        .map(|address| address.ip().to_string())
        .collect())
}

// === impl Place ===

impl Place {
    fn take() -> Option<Self> {
        let taken = RUNNING.try_update(Ordering::SeqCst, Ordering::SeqCst, |running| {
            (running < MOST).then_some(running + 1)
        });
        taken.is_ok().then_some(Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}
