//! What requests may take of the evaluator while they are read: places and memory, per peer and in total.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use assent_wasm::{MemoryBudget, Reservation};

use super::Overloaded;

/// The requests that are being read.
pub(crate) struct Intake {
    bodies: MemoryBudget,
    /// Bytes of unfinished bodies of one peer.
    per_peer: u64,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    requests: usize,
    by_address: HashMap<IpAddr, Peer>,
}

#[derive(Default)]
struct Peer {
    requests: usize,
    bytes: u64,
}

/// A request that is being read. What it takes of its peer's share is returned with it.
pub(crate) struct Reading {
    intake: Arc<Intake>,
    peer: IpAddr,
    memory: Reservation,
}

/// The memory that the bytes of a request take until its evaluation has ended.
pub(crate) struct RequestMemory {
    _memory: Reservation,
}

/// Requests of one peer that may be read at the same time. Bodies arrive within milliseconds: an API server under load
/// has far fewer on their way, and slow senders leave places for others.
const REQUESTS_PER_PEER: usize = 1_024;

/// Requests of all peers: what is held for one without a body takes a few KiB.
const REQUESTS: usize = 16_384;

/// The share of one peer in the memory for bodies: slow senders leave most of it to others.
const SHARE_OF_PEER: u64 = 4;

// === impl Intake ===

impl Intake {
    /// `bodies`: bytes of all requests together.
    pub(crate) fn new(bodies: u64) -> Self {
        Self {
            bodies: MemoryBudget::new(bodies),
            per_peer: bodies / SHARE_OF_PEER,
            peers: Mutex::default(),
        }
    }

    /// Takes a place for a request of which nothing has been read yet.
    pub(crate) fn begin(self: &Arc<Self>, peer: IpAddr) -> Result<Reading, Overloaded> {
        let mut peers = self.lock();
        if peers.requests >= REQUESTS {
            return Err(Overloaded::Requests);
        }
        let share = peers.by_address.entry(peer).or_default();
        if share.requests >= REQUESTS_PER_PEER {
            return Err(Overloaded::Peer);
        }
        share.requests += 1;
        peers.requests += 1;
        drop(peers);
        Ok(Reading {
            intake: self.clone(),
            peer,
            memory: self.bodies.reservation(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers
            .lock()
            .expect("the intake's lock must not be poisoned")
    }
}

// === impl Reading ===

impl Reading {
    /// Reserves memory for bytes that have arrived.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let bytes = bytes as u64;
        let mut peers = self.intake.lock();
        let share = peers.by_address.entry(self.peer).or_default();
        if share.bytes.saturating_add(bytes) > self.intake.per_peer {
            return Err(Overloaded::Peer);
        }
        let grown = self.memory.grow(bytes);
        grown.map_err(|_| Overloaded::Memory)?;
        share.bytes += bytes;
        Ok(())
    }

    /// The body is complete: it no longer counts for its peer, only for all.
    pub(crate) fn complete(mut self) -> RequestMemory {
        let empty = self.intake.bodies.reservation();
        let memory = self.leave(empty);
        RequestMemory { _memory: memory }
    }

    fn leave(&mut self, instead: Reservation) -> Reservation {
        let memory = std::mem::replace(&mut self.memory, instead);
        let mut peers = self.intake.lock();
        if let Some(share) = peers.by_address.get_mut(&self.peer) {
            share.bytes = share.bytes.saturating_sub(memory.bytes());
        }
        memory
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let empty = self.intake.bodies.reservation();
        drop(self.leave(empty));
        let mut peers = self.intake.lock();
        peers.requests -= 1;
        if let Some(share) = peers.by_address.get_mut(&self.peer) {
            share.requests -= 1;
            if share.requests == 0 {
                peers.by_address.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_peer_has_its_share_of_unfinished_bodies() {
        let intake = Arc::new(Intake::new(400));
        let (mut one, mut two) = (intake.begin(A).unwrap(), intake.begin(A).unwrap());
        one.grow(60).unwrap();
        two.grow(40).unwrap();
        assert_eq!(two.grow(1), Err(Overloaded::Peer));
        intake.begin(B).unwrap().grow(100).unwrap();
        // A complete body counts for all, no longer for its peer.
        let complete = one.complete();
        two.grow(60).unwrap();
        assert_eq!(intake.bodies.used(), 160);
        drop((complete, two));
        assert_eq!(intake.bodies.used(), 0);
        assert!(intake.lock().by_address.is_empty());
    }

    #[test]
    fn all_bodies_share_one_budget() {
        let intake = Arc::new(Intake::new(400));
        let held: Vec<_> = (0..4)
            .map(|_| {
                let mut reading = intake.begin(A).unwrap();
                reading.grow(100).unwrap();
                reading.complete()
            })
            .collect();
        let mut one_more = intake.begin(B).unwrap();
        assert_eq!(one_more.grow(1), Err(Overloaded::Memory));
        drop(held);
        one_more.grow(1).unwrap();
    }

    #[test]
    fn a_peer_can_not_take_all_places() {
        let intake = Arc::new(Intake::new(1));
        let held: Vec<_> = (0..REQUESTS_PER_PEER)
            .map(|_| intake.begin(A).unwrap())
            .collect();
        assert!(matches!(intake.begin(A), Err(Overloaded::Peer)));
        assert!(intake.begin(B).is_ok());
        drop(held);
        assert!(intake.lock().by_address.is_empty());
    }
}
