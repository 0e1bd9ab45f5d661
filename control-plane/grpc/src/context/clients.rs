//! Context streams by replica: the newest one wins, and its last acknowledged marks are kept for
//! people who look.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use assent_context::{CollectionId, Mark, feed::ClientId};
use assent_core::fleet::Name;
use tokio::sync::watch;
use tonic::Status;

use crate::registry::Key;

/// All open context streams.
#[derive(Debug, Default)]
pub(crate) struct ContextClients(Mutex<HashMap<Key, Entry>>);

#[derive(Debug)]
struct Entry {
    client: ClientId,
    end: watch::Sender<Option<Status>>,
    marks: BTreeMap<CollectionId, Mark>,
}

// === impl ContextClients ===

impl ContextClients {
    /// Registers a stream and ends the one that the replica had before. The receiver tells when
    /// and how this one must end.
    pub(super) fn enter(&self, key: &Key, client: ClientId) -> watch::Receiver<Option<Status>> {
        let (end, ended) = watch::channel(None);
        let marks = BTreeMap::new();
        let entry = Entry { client, end, marks };
        if let Some(old) = self.lock().insert(key.clone(), entry) {
            let text =
                "another context stream was opened under this replica's name: the newest one wins";
            old.end.send_replace(Some(Status::aborted(text)));
        }
        ended
    }

    /// Removes a stream, unless a newer one has taken its place.
    pub(super) fn leave(&self, key: &Key, client: ClientId) {
        let mut all = self.lock();
        if all.get(key).is_some_and(|entry| entry.client == client) {
            all.remove(key);
        }
    }

    /// The client has taken these marks.
    pub(super) fn acknowledge(&self, key: &Key, client: ClientId, marks: Vec<Mark>) {
        let mut all = self.lock();
        let entry = all.get_mut(key).filter(|entry| entry.client == client);
        if let Some(entry) = entry {
            let marks = marks.into_iter().map(|mark| (mark.collection, mark));
            entry.marks.extend(marks);
        }
    }

    /// The client was told to forget a collection.
    pub(super) fn forget(&self, key: &Key, id: &CollectionId) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.marks.remove(id);
        }
    }

    pub(super) fn marks(&self, server: &str, replica: &str) -> Vec<Mark> {
        let key = Key {
            server: Name::from(server),
            replica: Name::from(replica),
        };
        let all = self.lock();
        let entry = all.get(&key);
        entry.map_or_else(Vec::new, |entry| entry.marks.values().cloned().collect())
    }

    /// Ends the streams of replicas that lost their permission.
    pub(crate) fn close_where(&self, is_over: impl Fn(&str, &str) -> bool, status: &Status) {
        let all = self.lock();
        let over = all
            .iter()
            .filter(|(key, _)| is_over(&key.server, &key.replica));
        for (_, entry) in over {
            entry.end.send_replace(Some(status.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
