//! The namespace `net`: looks up the addresses of a host.

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

use super::{CallError, HostNamespace};

/// Answers by the system's resolver.
pub(super) struct Net;

pub(super) const OPERATIONS: &[&str] = &["v1/dns_lookup_host"];

/// The system's resolver can't be interrupted: a look-up that outlives its evaluation keeps a thread for some
/// seconds. This bounds the number of such threads.
const MAX_LOOKUPS: usize = 16;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// One look-up in progress.
struct Lookup;

#[derive(Serialize)]
struct Reply {
    ips: BTreeSet<String>,
}

// === impl Net ===

impl HostNamespace for Net {
    fn name(&self) -> &'static str {
        "net"
    }

    fn operations(&self) -> &'static [&'static str] {
        OPERATIONS
    }

    fn is_external(&self) -> bool {
        true
    }

    fn waits(&self, _: &str, _: &[u8]) -> bool {
        true
    }

    fn call(&self, _: &str, payload: &[u8], within: Duration) -> Result<Vec<u8>, CallError> {
        Ok(lookup(payload, within)?)
    }
}

/// Answers `v1/dns_lookup_host`: a host name in JSON, a list of addresses back.
fn lookup(payload: &[u8], timeout: Duration) -> Result<Vec<u8>, String> {
    let host: String = serde_json::from_slice(payload)
        .map_err(|error| format!("failed to read the host name: {error}"))?;
    let permit = Lookup::take().ok_or("too many concurrent look-ups")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = host.clone();
    thread::Builder::new()
        .name("dns-lookup".to_owned())
        .spawn(move || {
            let _permit = permit;
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

// === impl Lookup ===

impl Lookup {
    fn take() -> Option<Self> {
        let taken = RUNNING.try_update(Ordering::SeqCst, Ordering::SeqCst, |running| {
            (running < MAX_LOOKUPS).then_some(running + 1)
        });
        taken.is_ok().then_some(Self)
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}
