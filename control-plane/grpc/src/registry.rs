//! Which stream belongs to which replica: the newest one (R28).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use assent_core::fleet::Name;
use dashmap::{DashMap, mapref::entry::Entry as Slot};
use tonic::Status;

use crate::pipe::Pipe;

/// All open streams.
#[derive(Debug)]
pub(crate) struct Registry {
    streams: DashMap<Key, Entry>,
    next: AtomicU64,
}

/// A PolicyServer and one of its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) server: Name,
    pub(crate) replica: Name,
}

#[derive(Debug)]
struct Entry {
    stream: u64,
    instance_uid: Box<str>,
    pipe: Arc<Pipe>,
}

/// The entry of a stream, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) key: Key,
    pub(crate) stream: u64,
    registry: Arc<Registry>,
}

// === impl Registry ===

impl Registry {
    pub(crate) fn new() -> Self {
        // An earlier process must not have used the same numbers recently: nonces of its clients
        // would be taken for nonces of this process. 2^20 streams fit between two of 2^40
        // starting points.
        let start = u64::from(rand::random::<u32>()) << 28 | u64::from(rand::random::<u8>()) << 20;
        Self {
            streams: DashMap::new(),
            next: AtomicU64::new(start),
        }
    }

    /// Registers a stream and closes the one that the replica had before. Numbers are assigned
    /// under the lock of the entry, so that the newest stream has the highest.
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: Key,
        instance_uid: &str,
        pipe: Arc<Pipe>,
    ) -> Registered {
        let slot = self.streams.entry(key.clone());
        let stream = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let entry = Entry {
            stream,
            instance_uid: instance_uid.into(),
            pipe,
        };
        match slot {
            Slot::Occupied(mut old) => old.insert(entry).pipe.close(superseded()),
            Slot::Vacant(free) => drop(free.insert(entry)),
        }
        Registered {
            key,
            stream,
            registry: self.clone(),
        }
    }

    /// The open stream of the replica's process; an empty `instance_uid` matches any process.
    pub(crate) fn find(&self, key: &Key, instance_uid: &str) -> Option<Arc<Pipe>> {
        let entry = self.streams.get(key)?;
        let same = instance_uid.is_empty() || *entry.instance_uid == *instance_uid;
        same.then(|| entry.pipe.clone())
    }

    pub(crate) fn close_server(&self, server: &str, status: &Status) {
        for entry in self.streams.iter().filter(|e| &*e.key().server == server) {
            entry.pipe.close(status.clone());
        }
    }

    pub(crate) fn close_where(&self, is_over: impl Fn(&str, &str) -> bool, status: &Status) {
        for entry in &self.streams {
            if is_over(&entry.key().server, &entry.key().replica) {
                entry.pipe.close(status.clone());
            }
        }
    }

    pub(crate) fn close_all(&self, status: &Status) {
        for entry in &self.streams {
            entry.pipe.close(status.clone());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }
}

// === impl Registered ===

impl Drop for Registered {
    fn drop(&mut self) {
        let stream = self.stream;
        self.registry
            .streams
            .remove_if(&self.key, |_, entry| entry.stream == stream);
    }
}

fn superseded() -> Status {
    Status::aborted("another stream was opened under this replica's name: the newest one wins")
}
