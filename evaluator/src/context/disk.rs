//! Collections on disk, beside the last good set: a restart without the control plane serves on.
//!
//! A collection is written in parts of a few MiB, so that saving it needs little memory, and then an index that names
//! them. Parts carry the root in their names: a crash between two files leaves the old index with its parts. Every file
//! is sealed as the set is, and what is read must have the root that the index names.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use assent_context::{Collection, CollectionId, Key, Mark, Snapshot, SyncState};
use assent_core::Digest;
use assent_proto::v1;
use assent_wire::context as wire;
use prost::Message as _;

use super::{
    data::{ContextData, View},
    machine::{Limits, Machine},
    stream::Replication,
};
use crate::{metrics::Metrics, store::Store};

/// The directory below the store's.
const DIRECTORY: &str = "context";

/// Bytes of objects per part.
const PART_BYTES: usize = 4 << 20;

/// Between two saves at least; a crash loses no more than the changes of this time, which the stream brings again.
const PAUSE: Duration = Duration::from_secs(10);

/// Saving takes at most this part of the time, however large collections are.
const SHARE: u32 = 20;

/// Saves what was published whenever it changes.
pub(crate) async fn run(store: Arc<Store>, replication: Arc<Replication>, metrics: Metrics) {
    let mut changes = replication.data().changes();
    let mut saved: BTreeMap<CollectionId, Digest> = BTreeMap::new();
    let mut failed = false;
    loop {
        if !failed && changes.changed().await.is_err() {
            return;
        }
        changes.mark_unchanged();
        let (store, data) = (store.clone(), replication.data().clone());
        let limits = replication.limits();
        let before = std::mem::take(&mut saved);
        let began = Instant::now();
        let done = tokio::task::spawn_blocking(move || save(&store, &data, limits, before)).await;
        let took = began.elapsed();
        failed = match done {
            Ok((now, error)) => {
                saved = now;
                if let Some(error) = &error {
                    tracing::warn!(%error, "failed to save objects; serving continues");
                }
                error.is_some()
            }
            Err(_) => return,
        };
        if failed {
            metrics.state_errors.inc();
        }
        tokio::time::sleep(PAUSE.max(took * SHARE)).await;
    }
}

type Saved = BTreeMap<CollectionId, Digest>;

fn save(
    store: &Store,
    data: &ContextData,
    limits: Limits,
    before: Saved,
) -> (Saved, Option<crate::store::Error>) {
    let (mut saved, mut error) = (Saved::new(), None);
    let state = data.load();
    for view in state.views() {
        let id = view.spec.id();
        let Some(snapshot) = &view.snapshot else {
            continue;
        };
        // Secrets are never readable on disk: a restart waits for the stream instead.
        let secret = view.spec.api_version() == "v1" && view.spec.kind() == "Secret";
        if secret && !store.is_confidential() {
            continue;
        }
        if before.get(&id) == Some(&snapshot.root()) {
            saved.insert(id, snapshot.root());
            continue;
        }
        match write(store, view, snapshot, limits) {
            Ok(()) => {
                saved.insert(id, snapshot.root());
            }
            Err(failure) => error = Some(failure),
        }
    }
    if error.is_none() {
        sweep(store, &saved);
    }
    (saved, error)
}

fn write(
    store: &Store,
    view: &View,
    snapshot: &Snapshot,
    limits: Limits,
) -> Result<(), crate::store::Error> {
    let id = view.spec.id();
    let mut changes = Vec::new();
    let (mut bytes, mut parts) = (0, 0u32);
    for object in snapshot.iter() {
        bytes += object.json().len();
        changes.push(v1::ObjectChange {
            namespace: object.key().namespace().to_owned(),
            name: object.key().name().to_owned(),
            object: object.json().clone(),
            ..v1::ObjectChange::default()
        });
        if bytes >= PART_BYTES {
            write_part(
                store,
                id,
                snapshot.root(),
                parts,
                std::mem::take(&mut changes),
            )?;
            (bytes, parts) = (0, parts + 1);
        }
    }
    write_part(store, id, snapshot.root(), parts, changes)?;
    let mark = Mark {
        collection: id,
        root: snapshot.root(),
        resource_version: String::new(),
        observed_at: view.observed_at,
        state: SyncState::Stale,
        detail: String::new(),
        totals: snapshot.totals(),
        age: Duration::ZERO,
    };
    let index = v1::ContextResponse {
        nonce: (parts + 1).to_string(),
        collections: vec![wire::collection_to_proto(&view.spec)],
        marks: vec![wire::mark_to_proto(&mark)],
        limits: Some(v1::ContextLimits {
            memory_bytes: limits.memory_bytes,
            max_staleness_ms: limits.max_staleness.map_or(0, |most| {
                u64::try_from(most.as_millis()).unwrap_or(u64::MAX)
            }),
        }),
        ..v1::ContextResponse::default()
    };
    store.write_sealed(&index_name(id), &index.encode_to_vec())
}

fn write_part(
    store: &Store,
    id: CollectionId,
    root: Digest,
    part: u32,
    changes: Vec<v1::ObjectChange>,
) -> Result<(), crate::store::Error> {
    let name = part_name(id, root, part);
    let body = v1::ContextResponse {
        // A part under another name is not that part.
        nonce: name.clone(),
        changes,
        ..v1::ContextResponse::default()
    };
    store.write_sealed(&name, &body.encode_to_vec())
}

/// What an earlier process kept. A collection that is damaged is left out: the stream brings it again.
pub(crate) fn restore(store: &Store, machine: &mut Machine, data: &ContextData, metrics: &Metrics) {
    for name in store.list(DIRECTORY) {
        let Some(id) = name.parse::<CollectionId>().ok() else {
            continue;
        };
        match read(store, id) {
            Ok((mut collection, limits, observed_at)) => {
                publish(data, collection.snapshot(), observed_at);
                machine.restore(collection, limits);
            }
            Err(why) => {
                metrics.state_errors.inc();
                tracing::error!(collection = %id, why, "failed to load objects from disk; ignoring them");
            }
        }
    }
}

fn publish(data: &ContextData, snapshot: Snapshot, observed_at: SystemTime) {
    // By two clocks: of all that is here only this age may be wrong by their difference.
    let age = SystemTime::now().duration_since(observed_at);
    data.publish(View {
        spec: snapshot.spec().clone(),
        snapshot: Some(snapshot),
        state: SyncState::Stale,
        detail: "read from disk; there was no word of the control plane since".to_owned(),
        age: age.unwrap_or_default(),
        received: Instant::now(),
        observed_at,
    });
}

fn read(store: &Store, id: CollectionId) -> Result<(Collection, Limits, SystemTime), String> {
    let index = decode(store, &index_name(id))?;
    let parts: u32 = index.nonce.parse().map_err(|_| "it names no parts")?;
    let limits = index.limits.map(Limits::from).unwrap_or_default();
    let collection = index.collections.into_iter().next();
    let spec = wire::collection(collection.ok_or("it names no collection")?);
    let spec = spec.map_err(|error| error.to_string())?;
    let mark = index.marks.into_iter().next().ok_or("it has no mark")?;
    let mark = wire::mark(mark).map_err(|error| error.to_string())?;
    if spec.id() != id || mark.collection != id {
        return Err("it is of another collection".to_owned());
    }
    let mut collection = Collection::new(spec);
    for part in 0..parts {
        let name = part_name(id, mark.root, part);
        let body = decode(store, &name)?;
        if body.nonce != name {
            return Err(format!("{name} is another part"));
        }
        for change in body.changes {
            let key = Key::new(&change.namespace, &change.name);
            let put = collection.put(key.ok_or("an object has no name")?, &change.object);
            put.map_err(|error| error.to_string())?;
        }
    }
    if collection.root() != mark.root {
        return Err("the objects do not have the root of the index".to_owned());
    }
    Ok((collection, limits, mark.observed_at))
}

fn decode(store: &Store, name: &str) -> Result<v1::ContextResponse, String> {
    let body = store.read_sealed(name)?;
    v1::ContextResponse::decode(body.as_slice()).map_err(|error| error.to_string())
}

/// Removes everything that the saved collections do not need.
fn sweep(store: &Store, saved: &Saved) {
    let keep: BTreeSet<String> = saved
        .iter()
        .flat_map(|(id, root)| [id.to_string(), part_prefix(*id, *root)])
        .collect();
    for name in store.list(DIRECTORY) {
        let prefix = name
            .rsplit_once('.')
            .map_or(name.as_str(), |(prefix, _)| prefix);
        if !keep.contains(prefix) {
            store.remove(&format!("{DIRECTORY}/{name}"));
        }
    }
}

fn index_name(id: CollectionId) -> String {
    format!("{DIRECTORY}/{id}")
}

fn part_name(id: CollectionId, root: Digest, part: u32) -> String {
    format!("{DIRECTORY}/{}.{part}", part_prefix(id, root))
}

fn part_prefix(id: CollectionId, root: Digest) -> String {
    let root = root.hex();
    format!("{id}-{}", &root[..16])
}

#[cfg(test)]
mod tests;
