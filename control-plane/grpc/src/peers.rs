//! How many connections each address has.
//!
//! The table of `assent-serve` counts by address too, and is not used here: it closes idle connections to make room,
//! and the connection of an evaluator whose policies do not change is idle for hours.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections by address, each address up to a limit. Clones are the same table.
#[derive(Clone, Debug)]
pub struct Peers {
    limit: usize,
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection of an address, counted while it lives.
#[derive(Debug)]
pub struct Place {
    peers: Peers,
    address: IpAddr,
}

// === impl Peers ===

impl Peers {
    /// At most `limit` connections of each address.
    pub fn new(limit: usize) -> Self {
        let counts = Arc::default();
        Self { limit, counts }
    }

    /// Counts a connection; none if the address has as many as it may. Loopback has no limit:
    /// all callers of a standalone control plane share that address.
    pub fn enter(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let mut counts = self.lock();
        let count = counts.entry(address).or_default();
        if *count >= self.limit && !address.is_loopback() {
            return None;
        }
        *count += 1;
        let peers = self.clone();
        Some(Place { peers, address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.peers.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn address_has_a_limit_and_gives_places_back() {
        let peers = Peers::new(2);
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let first = peers.enter(one).unwrap();
        let second = peers.enter(mapped).unwrap();
        assert!(peers.enter(one).is_none() && peers.enter(mapped).is_none());
        let other = peers.enter("10.0.0.2".parse().unwrap());
        assert!(other.is_some(), "others are not affected");
        drop(first);
        let again = peers.enter(one).unwrap();
        drop((second, again, other));
        assert!(peers.lock().is_empty(), "what is unused costs no memory");
    }

    #[test]
    fn loopback_has_no_limit() {
        let peers = Peers::new(1);
        let places: Vec<_> = (0..10)
            .map(|_| peers.enter("127.0.0.1".parse().unwrap()))
            .collect();
        assert!(places.iter().all(Option::is_some));
    }
}
