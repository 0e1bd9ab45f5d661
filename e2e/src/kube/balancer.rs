//! One address in front of several, as a Service is.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Forwards each connection to the next backend in turn that accepts one. TLS passes through.
pub struct Balancer {
    address: SocketAddr,
    backends: Arc<Backends>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Backends {
    addresses: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

// === impl Balancer ===

impl Balancer {
    /// Listens on a free port of the loopback interface.
    pub async fn start(backends: impl IntoIterator<Item = SocketAddr>) -> Self {
        let listener = TcpListener::bind(crate::up::free_address()).await;
        let listener = listener.expect("address must be free");
        let address = listener
            .local_addr()
            .expect("a bound socket must have an address");
        let shared = Arc::new(Backends::default());
        let balancer = Self {
            address,
            backends: shared.clone(),
            accepting: tokio::spawn(accept(listener, shared)),
        };
        balancer.set(backends);
        balancer
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go to these. Open ones stay where they are.
    pub fn set(&self, backends: impl IntoIterator<Item = SocketAddr>) {
        let mut addresses = self.backends.lock();
        *addresses = backends.into_iter().collect();
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl Backends ===

impl Backends {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<SocketAddr>> {
        self.addresses.lock().expect("lock must not be poisoned")
    }

    /// All of them, each time beginning with the next.
    fn in_turn(&self) -> Vec<SocketAddr> {
        let mut addresses = self.lock().clone();
        if !addresses.is_empty() {
            let first = self.next.fetch_add(1, Ordering::Relaxed) % addresses.len();
            addresses.rotate_left(first);
        }
        addresses
    }

    async fn connect(&self) -> Option<TcpStream> {
        for address in self.in_turn() {
            if let Ok(stream) = TcpStream::connect(address).await {
                return Some(stream);
            }
        }
        None
    }
}

async fn accept(listener: TcpListener, backends: Arc<Backends>) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            continue;
        };
        let backends = backends.clone();
        tokio::spawn(async move {
            // With nobody there the connection is closed, as a Service without endpoints refuses it.
            if let Some(mut backend) = backends.connect().await {
                let _ = copy_bidirectional(&mut client, &mut backend).await;
            }
        });
    }
}
