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

/// A request that is being read. Most bodies are there with their headers: such a request takes memory, and a place only
/// if it has to wait. What it takes of its peer's share is returned with it.
pub(crate) struct Reading {
    intake: Arc<Intake>,
    peer: IpAddr,
    memory: Reservation,
    /// Whether it has a place.
    waits: bool,
}

/// The memory that the bytes of a request take until its evaluation has ended.
pub(crate) struct RequestMemory {
    memory: Reservation,
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

    /// A request of which nothing has been read yet.
    pub(crate) fn begin(self: &Arc<Self>, peer: IpAddr) -> Reading {
        Reading {
            intake: self.clone(),
            peer,
            memory: self.bodies.reservation(),
            waits: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers
            .lock()
            .expect("the intake's lock must not be poisoned")
    }
}

// === impl Reading ===

impl Reading {
    /// Takes a place: the rest of the body has not arrived.
    pub(crate) fn wait(&mut self) -> Result<(), Overloaded> {
        if self.waits {
            return Ok(());
        }
        let bytes = self.memory.bytes();
        let mut peers = self.intake.lock();
        if peers.requests >= REQUESTS {
            return Err(Overloaded::Requests);
        }
        let (requests, held) = match peers.by_address.get(&self.peer) {
            Some(share) => (share.requests, share.bytes),
            None => (0, 0),
        };
        if requests >= REQUESTS_PER_PEER || held.saturating_add(bytes) > self.intake.per_peer {
            return Err(Overloaded::Peer);
        }
        let share = peers.by_address.entry(self.peer).or_default();
        share.requests += 1;
        share.bytes += bytes;
        peers.requests += 1;
        self.waits = true;
        Ok(())
    }

    /// Reserves memory for bytes that have arrived.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let bytes = bytes as u64;
        if !self.waits {
            return self.memory.grow(bytes).map_err(|_| Overloaded::Memory);
        }
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
        self.leave();
        let empty = self.intake.bodies.reservation();
        let memory = std::mem::replace(&mut self.memory, empty);
        RequestMemory { memory }
    }

    /// Gives the place up.
    fn leave(&mut self) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        let bytes = self.memory.bytes();
        let mut peers = self.intake.lock();
        peers.requests -= 1;
        if let Some(share) = peers.by_address.get_mut(&self.peer) {
            share.bytes = share.bytes.saturating_sub(bytes);
            share.requests -= 1;
            if share.requests == 0 {
                peers.by_address.remove(&self.peer);
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.leave();
    }
}

// === impl RequestMemory ===

impl RequestMemory {
    /// Reserves memory for what is made of the request.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Overloaded> {
        let grown = self.memory.grow(bytes as u64);
        grown.map_err(|_| Overloaded::Memory)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn waiting(intake: &Arc<Intake>, peer: IpAddr) -> Result<Reading, Overloaded> {
        let mut reading = intake.begin(peer);
        reading.wait().map(|()| reading)
    }

    #[test]
    fn bytes_that_came_before_waiting_count_for_the_peer() {
        let intake = Arc::new(Intake::new(400));
        let mut reading = intake.begin(A);
        reading.grow(101).unwrap();
        assert_eq!(reading.wait(), Err(Overloaded::Peer));
        drop(reading);
        let mut reading = intake.begin(A);
        reading.grow(100).unwrap();
        reading.wait().unwrap();
        assert_eq!(reading.grow(1), Err(Overloaded::Peer));
        drop(reading);
        assert!(intake.lock().by_address.is_empty());
        assert_eq!((intake.lock().requests, intake.bodies.used()), (0, 0));
    }

    #[test]
    fn a_peer_has_its_share_of_unfinished_bodies() {
        let intake = Arc::new(Intake::new(400));
        let (mut one, mut two) = (waiting(&intake, A).unwrap(), waiting(&intake, A).unwrap());
        one.grow(60).unwrap();
        two.grow(40).unwrap();
        assert_eq!(two.grow(1), Err(Overloaded::Peer));
        waiting(&intake, B).unwrap().grow(100).unwrap();
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
                let mut reading = waiting(&intake, A).unwrap();
                reading.grow(100).unwrap();
                reading.complete()
            })
            .collect();
        let mut one_more = intake.begin(B);
        assert_eq!(one_more.grow(1), Err(Overloaded::Memory));
        drop(held);
        one_more.grow(1).unwrap();
    }

    #[test]
    fn a_peer_can_not_take_all_places() {
        let intake = Arc::new(Intake::new(1));
        let held: Vec<_> = (0..REQUESTS_PER_PEER)
            .map(|_| waiting(&intake, A).unwrap())
            .collect();
        assert!(matches!(waiting(&intake, A), Err(Overloaded::Peer)));
        assert!(waiting(&intake, B).is_ok());
        drop(held);
        assert!(intake.lock().by_address.is_empty());
    }
}
