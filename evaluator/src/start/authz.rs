//! The port that Envoy asks.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
};

use arc_swap::ArcSwap;
use assent_serve::{Limits, Listener, Server, Shutdown, Transport};
use tokio::net::UnixListener;

use super::Error;
use crate::{
    active::ActiveSet,
    config::{DefaultDecision, RequestsConfig, RequestsListen},
    decision_log::DecisionLog,
    envoy::{CheckHandler, table::Workloads},
    evaluation::Executor,
    metrics::Metrics,
};

/// A bound port.
pub(super) struct Port {
    listener: Listener,
    /// None for a Unix socket.
    addr: Option<SocketAddr>,
    default: DefaultDecision,
    workloads: Workloads,
}

/// What all front ends of an evaluator share.
pub(super) struct Shared {
    pub(super) active: Arc<ActiveSet>,
    pub(super) executor: Arc<Executor>,
    pub(super) metrics: Metrics,
    pub(super) decisions: DecisionLog,
}

const WHAT: &str = "Envoy";

/// Envoy runs as another user than the evaluator: who may connect is decided by the directory of the socket.
const SOCKET_MODE: u32 = 0o666;

// === impl Port ===

impl Port {
    pub(super) fn bind(config: RequestsConfig) -> Result<Self, Error> {
        let RequestsConfig {
            listen,
            default,
            workloads,
        } = config;
        let (listener, addr) = match listen {
            RequestsListen::Tcp(listen) => {
                let (listener, addr) = super::bind(listen, WHAT)?;
                (listener.into(), Some(addr))
            }
            RequestsListen::Unix(path) => {
                let listener = bind_socket(&path);
                let failed = |source| Error::Listen { what: WHAT, source };
                (listener.map_err(failed)?.into(), None)
            }
        };
        Ok(Self {
            listener,
            addr,
            default,
            workloads,
        })
    }

    pub(super) fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Answers calls until the end. On the loopback interface and on a socket they are plain, elsewhere they have the
    /// TLS of the review port.
    pub(super) fn serve(
        self,
        services: Shared,
        secured: Arc<ArcSwap<Transport>>,
        shutdown: Shutdown,
    ) -> impl Future<Output = ()> + Send {
        let local = self.addr.is_none_or(|addr| addr.ip().is_loopback());
        let handler = Arc::new(CheckHandler {
            active: services.active,
            executor: services.executor,
            metrics: services.metrics,
            decisions: services.decisions,
            default: self.default,
            workloads: self.workloads,
        });
        let server = Server {
            listener: self.listener,
            transport: match local {
                true => Arc::new(ArcSwap::from_pointee(Transport::Plain)),
                false => secured,
            },
            limits: Limits::checks(),
            shutdown,
        };
        server.run(move |request, peer: Arc<assent_serve::Peer>| {
            let handler = handler.clone();
            async move { handler.handle(request, &peer).await }
        })
    }
}

/// A socket that a process left behind is replaced; one that is in use is not.
fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    let left = std::fs::symlink_metadata(path);
    if left.is_ok_and(|file| file.file_type().is_socket()) {
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            _ => {}
        }
    }
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let listener = UnixListener::bind(path).map_err(named)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn sockets_left_behind_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authz");
        let first = bind_socket(&path).unwrap();
        assert!(bind_socket(&path).is_err(), "a socket in use must stay");
        drop(first);
        bind_socket(&path).unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(bind_socket(&file).is_err(), "a file must stay");
    }
}
