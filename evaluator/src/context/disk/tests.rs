#![allow(clippy::unwrap_used)]

use assent_context::CollectionSpec;
use assent_core::policy::ContextResource;
use serde_json::json;

use super::*;
use crate::store::Seal;

fn mk_collection(objects: u32, size: usize) -> Collection {
    let declared = ContextResource {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        ..ContextResource::default()
    };
    let spec = CollectionSpec::new(&declared, "configmaps", true).unwrap();
    let mut collection = Collection::new(Arc::new(spec));
    for i in 0..objects {
        let object = json!({"metadata": {"name": format!("c{i}"), "namespace": "a"}, "data": {"x": "1".repeat(size)}});
        collection.observe(object).unwrap();
    }
    collection
}

fn publish_new(data: &ContextData, mut collection: Collection) -> Digest {
    let snapshot = collection.snapshot();
    let root = snapshot.root();
    publish(data, snapshot, SystemTime::now() - Duration::from_secs(60));
    root
}

/// The root and the limits that another process finds.
fn restored(store: &Store) -> Option<(Digest, Limits, Duration)> {
    let (data, mut machine) = (ContextData::default(), Machine::new(0));
    restore(store, &mut machine, &data, &Metrics::new());
    let state = data.load();
    let view = state.views().next()?;
    let age = view.age_at(Instant::now());
    Some((view.snapshot.as_ref()?.root(), machine.limits(), age))
}

#[test]
fn collections_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Seal::Digest).unwrap();
    let data = ContextData::default();
    // More than one part.
    let root = publish_new(&data, mk_collection(9, 1 << 20));
    let limits = Limits {
        memory_bytes: 7,
        max_staleness: Some(Duration::from_secs(8)),
    };
    let (saved, error) = save(&store, &data, limits, Saved::new());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(store.list(DIRECTORY).len(), 1 + 3);
    let (found, found_limits, age) = restored(&store).unwrap();
    assert_eq!((found, found_limits), (root, limits));
    assert!(age >= Duration::from_secs(60), "{age:?}");
    // The next state replaces the files of this one.
    let root = publish_new(&data, mk_collection(1, 1));
    let (_, error) = save(&store, &data, limits, saved);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(store.list(DIRECTORY).len(), 2);
    assert_eq!(restored(&store).unwrap().0, root);
}

#[test]
fn damaged_collections_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Seal::Digest).unwrap();
    let data = ContextData::default();
    publish_new(&data, mk_collection(2, 1));
    save(&store, &data, Limits::default(), Saved::new());
    for name in store.list(DIRECTORY) {
        let path = dir.path().join(DIRECTORY).join(&name);
        let good = std::fs::read(&path).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        for wrong in [&bad[..], &good[..good.len() / 2], b""] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(restored(&store), None, "{name}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(restored(&store), None, "{name}");
        std::fs::write(&path, &good).unwrap();
        assert!(restored(&store).is_some());
    }
}
