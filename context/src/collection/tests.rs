#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use assent_core::policy::ContextResource;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{objects::index, snapshot::Query};

fn mk_spec(fields: &[&str], namespaces: &[&str], label_selector: &str) -> Arc<CollectionSpec> {
    let owned = |list: &[&str]| list.iter().map(|&item| item.to_owned()).collect();
    let declared = ContextResource {
        api_version: "v1".into(),
        kind: "Pod".into(),
        fields: owned(fields),
        namespaces: owned(namespaces),
        label_selector: label_selector.into(),
    };
    Arc::new(CollectionSpec::new(&declared, "pods", true).unwrap())
}

fn mk_pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"node": node}},
        "spec": {"nodeName": node, "containers": [{"image": node}, {"image": "x"}]},
        "status": {"phase": "Running"},
    })
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new(namespace, name).unwrap()
}

fn names(objects: &[&Arc<Object>]) -> Vec<String> {
    objects.iter().map(|o| o.key().to_string()).collect()
}

fn query(namespace: Option<&str>, labels: &str, fields: &str, snapshot: &Snapshot) -> Vec<String> {
    let query = Query {
        namespace,
        labels: labels.parse().unwrap(),
        fields: fields.parse().unwrap(),
    };
    names(&snapshot.select(&query))
}

#[test]
fn unprojected_changes_change_nothing() {
    let mut pods = Collection::new(mk_spec(&["spec.nodeName"], &[], ""));
    let mut pod = mk_pod("a", "p", "n1");
    assert_eq!(pods.observe(pod.clone()), Ok(Some(key("a", "p"))));
    let root = pods.root();
    pod["status"]["phase"] = "Failed".into();
    assert_eq!(pods.observe(pod.clone()), Ok(None));
    assert_eq!(pods.root(), root);
    pod["spec"]["nodeName"] = "n2".into();
    assert_eq!(pods.observe(pod), Ok(Some(key("a", "p"))));
    assert_ne!(pods.root(), root);
    let json = pods.get(&key("a", "p")).unwrap().json().clone();
    let expect = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"node":"n1"},"name":"p","namespace":"a"},"spec":{"nodeName":"n2"}}"#;
    assert_eq!(json, expect);
    let totals = Totals {
        objects: 1,
        bytes: expect.len() as u64,
    };
    assert_eq!(pods.totals(), totals);
}

#[test]
fn objects_leave_with_their_labels() {
    let mut pods = Collection::new(mk_spec(&[], &["a", "b"], "node=n1"));
    assert_eq!(pods.observe(mk_pod("c", "p", "n1")), Ok(None));
    assert_eq!(pods.observe(mk_pod("a", "p", "n2")), Ok(None));
    assert!(pods.observe(mk_pod("a", "p", "n1")).unwrap().is_some());
    assert_eq!(
        pods.observe(mk_pod("a", "p", "n2")),
        Ok(Some(key("a", "p")))
    );
    assert_eq!(pods.totals(), Totals::default());
    assert_eq!(pods.root(), Collection::new(mk_spec(&[], &[], "")).root());
}

#[test]
fn objects_of_other_kinds_and_names_are_errors() {
    let mut pods = Collection::new(mk_spec(&[], &[], ""));
    let mut other = mk_pod("a", "p", "n");
    other["kind"] = "Service".into();
    assert!(matches!(pods.observe(other), Err(Error::Kind { .. })));
    assert_eq!(pods.observe(json!({"metadata": {}})), Err(Error::Key));
    assert_eq!(pods.observe(json!(7)), Err(Error::Key));
    let cluster = json!({"metadata": {"name": "p"}});
    assert!(matches!(pods.observe(cluster), Err(Error::Scope(_))));
    let json = br#"{"metadata":{"name":"p","namespace":"a"}}"#;
    assert_eq!(pods.put(key("a", "p"), json), Ok(true));
    assert_eq!(pods.put(key("a", "p"), json), Ok(false));
    for (key, json) in [
        (key("a", "q"), json.as_slice()),
        (key("b", "p"), json),
        (key("a", "p"), b"{}"),
        (key("a", "p"), b"\xff"),
        (
            key("a", "p"),
            b"{\"metadata\":{\"name\":\"p\",\"namespace\":\"a\"}} x",
        ),
    ] {
        assert_eq!(pods.put(key.clone(), json), Err(Error::Malformed(key)));
    }
    assert!(Key::new("a", "").is_none() && Key::new("a/b", "c").is_none());
    assert!(Key::new("a", "b\0c").is_none());
}

#[test]
fn snapshots_do_not_see_later_changes() {
    let mut pods = Collection::new(mk_spec(&[], &[], ""));
    pods.observe(mk_pod("a", "p", "n1")).unwrap();
    let before = pods.snapshot();
    pods.observe(mk_pod("a", "p", "n2")).unwrap();
    pods.observe(mk_pod("a", "q", "n2")).unwrap();
    let after = pods.snapshot();
    assert_eq!(query(None, "", "spec.nodeName=n2", &before), [""; 0]);
    assert_eq!(query(None, "", "spec.nodeName=n2", &after), ["a/p", "a/q"]);
    assert_ne!(before.root(), after.root());
    assert_eq!(before.totals().objects, 1);
}

#[test]
fn fields_are_selected_through_lists() {
    let mut pods = Collection::new(mk_spec(&[], &[], ""));
    for (name, node) in [("p", "n1"), ("q", "n2"), ("r", "")] {
        pods.observe(mk_pod("a", name, node)).unwrap();
    }
    let all = pods.snapshot();
    let image = |fields: &str| query(None, "", fields, &all);
    assert_eq!(image("spec.containers.image=n1"), ["a/p"]);
    assert_eq!(image("spec.containers.image=x"), ["a/p", "a/q", "a/r"]);
    assert_eq!(image("spec.containers.image!=n1"), ["a/q", "a/r"]);
    assert_eq!(image("spec.containers.image!=x"), [""; 0]);
    assert_eq!(image("spec.absent="), ["a/p", "a/q", "a/r"]);
    assert_eq!(image("spec.nodeName!=n1,metadata.name!=r"), ["a/q"]);
}

#[test]
fn differing_buckets_make_copies_equal() {
    let spec = mk_spec(&["spec.nodeName"], &[], "");
    let (mut one, mut other) = (Collection::new(spec.clone()), Collection::new(spec));
    for i in 0..500 {
        one.observe(mk_pod("a", &format!("p{i}"), "n")).unwrap();
        if i % 100 != 0 {
            other.observe(mk_pod("a", &format!("p{i}"), "n")).unwrap();
        }
    }
    other.observe(mk_pod("b", "extra", "n")).unwrap();
    let differ = one.differing_buckets(&other.bucket_prefixes()).unwrap();
    assert!(differ.len() <= 6, "{differ:?}");
    for bucket in differ {
        let stale: Vec<Key> = other
            .bucket(bucket)
            .iter()
            .map(|o| o.key().clone())
            .collect();
        stale.iter().for_each(|key| {
            other.remove(key);
        });
        for object in one.bucket(bucket) {
            other.put(object.key().clone(), object.json()).unwrap();
        }
    }
    assert_eq!(one.root(), other.root());
    assert_eq!(one.totals(), other.totals());
    assert_eq!(one.differing_buckets(&[[0u8; 8]]), None);
    assert_eq!(one.differing_buckets(&vec![[0u8; 7]; BUCKETS]), None);
    assert_eq!(one.bucket(u16::MAX).len(), 0);
}

/// What a bucket and a root are, written once more.
fn naive_root(objects: &BTreeMap<(String, String), Vec<u8>>) -> Digest {
    let frame = |out: &mut Vec<u8>, text: &str| {
        out.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        out.extend(text.as_bytes());
    };
    let mut buckets = vec![(0u32, Vec::new()); BUCKETS];
    for ((namespace, name), json) in objects {
        let mut key = b"assent.key.v1".to_vec();
        frame(&mut key, namespace);
        frame(&mut key, name);
        let digest = Digest::of(&key);
        let number = u16::from_be_bytes([digest.as_bytes()[0], digest.as_bytes()[1]]);
        let (count, bytes) = &mut buckets[usize::from(number) % BUCKETS];
        *count += 1;
        frame(bytes, namespace);
        frame(bytes, name);
        bytes.extend(Digest::of(json).as_bytes());
    }
    let mut root = b"assent.root.v1".to_vec();
    for (count, bytes) in buckets {
        let mut bucket = b"assent.bucket.v1".to_vec();
        bucket.extend(count.to_be_bytes());
        bucket.extend(bytes);
        root.extend(Digest::of(&bucket).as_bytes());
    }
    Digest::of(&root)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Enough objects for several chunks, and as many deletions.
    #[test]
    fn collections_equal_sorted_maps(
        changes in proptest::collection::vec(("[a-b]", 0u16..700, 0u8..4), 0..1_500),
        wanted in ("[a-b]", "[a-d]"),
    ) {
        let mut pods = Collection::new(mk_spec(&[], &[], ""));
        let mut naive = BTreeMap::new();
        for (namespace, number, node) in changes {
            let name = format!("p{number}");
            let entry = (namespace.clone(), name.clone());
            if node == 0 {
                let removed = pods.remove(&key(&namespace, &name));
                prop_assert_eq!(removed, naive.remove(&entry).is_some());
                continue;
            }
            let node = char::from(b'a' + node).to_string();
            let pod = mk_pod(&namespace, &name, &node);
            let (_, json) = pods.project(pod.clone()).unwrap().unwrap();
            let changed = pods.observe(pod).unwrap().is_some();
            prop_assert_eq!(changed, naive.insert(entry, json.clone().unwrap()) != json);
        }
        let snapshot = pods.snapshot();
        prop_assert_eq!(snapshot.root(), naive_root(&naive));
        let bytes: usize = naive.values().map(Vec::len).sum();
        prop_assert_eq!(pods.totals(), Totals { objects: naive.len() as u64, bytes: bytes as u64 });
        let found: Vec<_> = snapshot.iter().map(|o| (o.key().namespace().to_owned(), o.key().name().to_owned())).collect();
        prop_assert_eq!(&found, &naive.keys().cloned().collect::<Vec<_>>());
        let (namespace, node) = wanted;
        let path = "spec.nodeName".parse().unwrap();
        let expect: Vec<String> = naive
            .iter()
            .filter(|((ns, _), json)| *ns == namespace && index::values(json, &path) == [node.clone()])
            .map(|((namespace, name), _)| format!("{namespace}/{name}"))
            .collect();
        prop_assert_eq!(query(Some(&namespace), "", &format!("spec.nodeName={node}"), &snapshot), expect.clone());
        prop_assert_eq!(query(Some(&namespace), &format!("node={node}"), "", &snapshot), expect);
        for ((namespace, name), json) in &naive {
            prop_assert_eq!(snapshot.get(namespace, name).unwrap().json(), json);
        }
    }
}
