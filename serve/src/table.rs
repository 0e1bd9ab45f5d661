//! The open connections of a port: who has how many, and which makes room for another one.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use crate::Limits;

/// The open connections of a port.
pub(crate) struct Table {
    limits: Limits,
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    peers: HashMap<IpAddr, HashMap<u64, Arc<Entry>>>,
    total: usize,
    next: u64,
}

/// One connection. It leaves the table when this is dropped, or earlier to make room.
pub(crate) struct Slot {
    table: Arc<Table>,
    peer: IpAddr,
    id: u64,
    entry: Arc<Entry>,
}

struct Entry {
    accepted: Instant,
    /// Milliseconds of the table's life at which the last request ended.
    last: AtomicU64,
    in_flight: AtomicUsize,
    requested: AtomicBool,
    evicted: CancellationToken,
}

/// A request in flight.
pub(crate) struct Busy {
    table: Arc<Table>,
    entry: Arc<Entry>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            began: Instant::now(),
            open: Mutex::default(),
        })
    }

    /// Takes a place for a connection. None if there is none, and no other connection can make room because all have
    /// requests in flight.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Slot> {
        let mut open = self.lock();
        let of_peer = open.peers.get(&peer).map_or(0, HashMap::len);
        if of_peer >= self.limits.connections_per_peer {
            open.evict(peer)?;
        } else if open.total >= self.limits.connections {
            open.evict_any()?;
        }
        let id = open.next;
        open.next += 1;
        open.total += 1;
        let entry = Arc::new(Entry {
            accepted: Instant::now(),
            last: AtomicU64::new(self.millis()),
            in_flight: AtomicUsize::new(0),
            requested: AtomicBool::new(false),
            evicted: CancellationToken::new(),
        });
        let of_peer = open.peers.entry(peer).or_default();
        of_peer.insert(id, entry.clone());
        Some(Slot {
            table: self.clone(),
            peer,
            id,
            entry,
        })
    }

    /// Closes an idle connection: the process has no file descriptors left.
    pub(crate) fn make_room(&self) {
        self.lock().evict_any();
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open
            .lock()
            .expect("the table's lock must not be poisoned")
    }
}

// === impl Open ===

impl Open {
    /// Closes the idlest connection of the peer that has the most; of another one if those all have requests in
    /// flight. A peer with few connections keeps them, however long it was silent.
    fn evict_any(&mut self) -> Option<()> {
        let mut peers: Vec<_> = self
            .peers
            .iter()
            .map(|(ip, all)| (all.len(), *ip))
            .collect();
        peers.sort_unstable_by(|a, b| b.cmp(a));
        peers.into_iter().find_map(|(_, peer)| self.evict(peer))
    }

    /// Closes the idlest connection of a peer.
    fn evict(&mut self, peer: IpAddr) -> Option<()> {
        let all = self.peers.get(&peer)?;
        let idle = all.iter().filter(|(_, entry)| entry.is_idle());
        let (id, entry) = idle.min_by_key(|(id, entry)| (entry.last.load(Relaxed), **id))?;
        entry.evicted.cancel();
        let id = *id;
        self.remove(peer, id);
        Some(())
    }

    fn remove(&mut self, peer: IpAddr, id: u64) {
        let Some(all) = self.peers.get_mut(&peer) else {
            return;
        };
        if all.remove(&id).is_some() {
            self.total -= 1;
        }
        if all.is_empty() {
            self.peers.remove(&peer);
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Marks a request as in flight until the result is dropped.
    pub(crate) fn busy(&self) -> Busy {
        self.entry.in_flight.fetch_add(1, Relaxed);
        self.entry.requested.store(true, Relaxed);
        Busy {
            table: self.table.clone(),
            entry: self.entry.clone(),
        }
    }

    /// Ends when this connection has to make room.
    pub(crate) async fn evicted(&self) {
        self.entry.evicted.cancelled().await;
    }

    /// How long the connection may stay as it is. Zero: it has been idle for too long.
    pub(crate) fn left(&self) -> Duration {
        let limits = &self.table.limits;
        if !self.entry.is_idle() {
            return limits.idle;
        }
        if !self.entry.requested.load(Relaxed) {
            // The handshake has as much time again.
            return (limits.first_request * 2).saturating_sub(self.entry.accepted.elapsed());
        }
        let silent = self.table.millis() - self.entry.last.load(Relaxed);
        limits.idle.saturating_sub(Duration::from_millis(silent))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.table.lock().remove(self.peer, self.id);
    }
}

// === impl Entry ===

impl Entry {
    fn is_idle(&self) -> bool {
        self.in_flight.load(Relaxed) == 0
    }
}

// === impl Busy ===

impl Drop for Busy {
    fn drop(&mut self) {
        self.entry.last.store(self.table.millis(), Relaxed);
        self.entry.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_table(connections: usize, connections_per_peer: usize) -> Arc<Table> {
        Table::new(Limits {
            connections,
            connections_per_peer,
            ..Limits::reviews()
        })
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_evicted(slot: &Slot) -> bool {
        slot.entry.evicted.is_cancelled()
    }

    #[test]
    fn a_peer_makes_room_for_itself() {
        let table = mk_table(10, 2);
        let other = table.admit(ip(2)).unwrap();
        let first = table.admit(ip(1)).unwrap();
        let second = table.admit(ip(1)).unwrap();
        let busy = first.busy();
        let _third = table.admit(ip(1)).unwrap();
        assert!(is_evicted(&second) && !is_evicted(&first) && !is_evicted(&other));
        drop(busy);
        let _fourth = table.admit(ip(1)).unwrap();
        assert_eq!(table.lock().total, 3);
    }

    #[test]
    fn the_peer_with_the_most_connections_makes_room_for_others() {
        let table = mk_table(4, 3);
        // Silent for longest, but alone.
        let quiet = table.admit(ip(1)).unwrap();
        let many: Vec<_> = (0..3).map(|_| table.admit(ip(2)).unwrap()).collect();
        let _new = table.admit(ip(3)).unwrap();
        assert!(!is_evicted(&quiet));
        assert!(is_evicted(&many[0]) && !is_evicted(&many[1]));
    }

    #[test]
    fn requests_in_flight_are_never_closed_for_others() {
        let table = mk_table(2, 2);
        let slots = [table.admit(ip(1)).unwrap(), table.admit(ip(2)).unwrap()];
        let _busy = slots.each_ref().map(Slot::busy);
        assert!(table.admit(ip(3)).is_none());
        assert!(!slots.iter().any(is_evicted));
    }

    #[test]
    fn places_are_returned_once() {
        let table = mk_table(2, 1);
        let first = table.admit(ip(1)).unwrap();
        let second = table.admit(ip(1)).unwrap();
        drop((first, second));
        let open = table.lock();
        assert_eq!((open.total, open.peers.len()), (0, 0));
    }
}
