#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use assent_api::API_VERSION;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::decide::{self, decide};
use crate::directory::{Document, Scan};

fn options() -> parse::Options {
    parse::Options {
        standalone: true,
        ..parse::Options::default()
    }
}

fn mk_value(name: &str, module: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"module": module, "revisionHistoryLimit": 2, "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
    })
}

fn mk_policy(name: &str, module: &str) -> Parsed {
    parse::policy(&mk_value(name, module), &options()).unwrap()
}

fn mk_module(bytes: Option<&[u8]>) -> ModuleFile {
    ModuleFile {
        path: "/p.wasm".into(),
        digest: bytes.map(Digest::of).ok_or_else(|| "gone".to_owned()),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn key() -> PolicyKey {
    PolicyKey::cluster("p")
}

struct Fixture {
    dir: TempDir,
    store: Option<StateStore>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, damaged) = StateStore::open(dir.path()).unwrap();
        assert!(damaged.is_empty());
        Self {
            dir,
            store: Some(store),
        }
    }

    fn store(&mut self) -> &mut StateStore {
        self.store.as_mut().unwrap()
    }

    fn observe(&mut self, module: &str) -> Observed {
        self.store()
            .observe("p.yaml", &mk_policy("p", module), None, now())
    }

    /// As after a restart: only what was committed is there.
    fn reopen(&mut self) -> Vec<Damaged> {
        self.store = None;
        let (store, damaged) = StateStore::open(self.dir.path()).unwrap();
        self.store = Some(store);
        damaged
    }

    fn record(&self) -> &PolicyRecord {
        self.store.as_ref().unwrap().get(&key()).unwrap()
    }

    /// Makes the present generation a revision and points the dispatch at it.
    fn activate(&mut self) {
        let record = self.record().clone();
        let name = record.revision_id().short().to_owned();
        let revision = RevisionRecord {
            name: name.clone(),
            generation: record.generation,
            spec: record.effective_spec().to_owned(),
            module_url: "registry://example.com/p:v1".into(),
            module_digest: Digest::of(record.effective_spec().as_bytes()).to_string(),
            module_size: 3,
            timeout_ms: 2_000,
            memory_bytes: 128 << 20,
            abi: "wapc".into(),
            content_digest: Digest::of(b"content").to_string(),
            settings: "{}".into(),
            host_capabilities: Vec::new(),
            signer: None,
            phase: Phase::Candidate,
            created_at: now(),
        };
        let before = record.active.clone();
        let store = self.store();
        store.add_revision(record.uid, revision);
        store.set_active(record.uid, Some(&name), now());
        store.set_phase(record.uid, &name, Phase::Active);
        if let Some(before) = before {
            store.set_phase(record.uid, &before, Phase::History);
        }
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("objects")).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn generation_counts_changes_of_the_spec() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.observe("example.com/p:v1"), Observed::Created);
    assert_eq!(fixture.record().generation, 1);
    assert_eq!(fixture.observe("example.com/p:v1"), Observed::Unchanged);
    assert_eq!(fixture.observe("example.com/p:v2"), Observed::Changed);
    assert_eq!(fixture.record().generation, 2);
    let uid = fixture.record().uid;
    let expect = format!("cluster/p/2-{}", &uid.simple().to_string()[..8]);
    assert_eq!(fixture.record().revision_id().as_str(), expect);
}

#[test]
fn generation_counts_changes_of_the_module() {
    let mut fixture = Fixture::new();
    let parsed = mk_policy("p", "file:///p.wasm");
    let mut observe = |bytes: Option<&[u8]>| {
        let module = mk_module(bytes);
        let change = fixture
            .store()
            .observe("p.yaml", &parsed, Some(&module), now());
        (change, fixture.record().generation)
    };
    assert_eq!(observe(None), (Observed::Created, 1));
    // Nothing was built before the bytes were known.
    assert_eq!(observe(Some(b"one")), (Observed::Unchanged, 1));
    assert_eq!(observe(Some(b"two")), (Observed::Changed, 2));
    assert_eq!(observe(None), (Observed::Unchanged, 2));
    assert_eq!(observe(Some(b"two")), (Observed::Unchanged, 2));
    assert_eq!(observe(Some(b"one")), (Observed::Changed, 3));
}

#[test]
fn committed_state_survives_a_restart() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.activate();
    fixture.store().commit().unwrap();
    let before = fixture.record().clone();
    fixture.observe("example.com/p:v2");
    assert!(fixture.reopen().is_empty());
    assert_eq!(
        *fixture.record(),
        before,
        "what was not committed is not there"
    );
    assert_eq!(fixture.observe("example.com/p:v1"), Observed::Unchanged);
    let path = fixture.record().active_path().unwrap();
    assert_eq!(path, before.revision_id().as_str());
}

/// The first scan after a restart is compared with the stored objects, so that a directory
/// that lost its files meanwhile is noticed.
#[test]
fn decisions_continue_after_a_restart() {
    let mut fixture = Fixture::new();
    let mut documents = Vec::new();
    for i in 0..12 {
        let value = mk_value(&format!("p{i}"), "file:///p.wasm");
        let parsed = parse::policy(&value, &options()).unwrap();
        let module = mk_module(Some(b"one"));
        let file = format!("{i}.yaml");
        fixture
            .store()
            .observe(&file, &parsed, Some(&module), now());
        documents.push(Document {
            file,
            number: 1,
            line: 1,
            object: parse::identify(&value, &options()),
            result: Ok(parse::manifest(&value, &options()).unwrap()),
            module: Some(module),
        });
    }
    fixture.store().commit().unwrap();
    fixture.reopen();
    let objects = fixture.store().objects(&options());
    let full = Scan {
        documents: documents.clone(),
        ..Scan::default()
    };
    let same = decide(&objects, &full, decide::Options::default());
    assert_eq!((same.changed.len(), same.removed.len()), (0, 0));
    documents.truncate(3);
    let lost = Scan {
        documents,
        ..Scan::default()
    };
    let held = decide(&objects, &lost, decide::Options::default());
    let policies = held.held.unwrap().policies;
    fixture.store().set_held(&policies);
    fixture.store().commit().unwrap();
    fixture.reopen();
    let objects = fixture.store().objects(&options());
    assert_eq!(objects.values().filter(|entry| entry.held).count(), 9);
    fixture.store().set_held(&[]);
    let objects = fixture.store().objects(&options());
    assert!(objects.values().all(|entry| !entry.held));
}

#[test]
fn a_recreated_policy_is_another_one() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.observe("example.com/p:v2");
    fixture.activate();
    let old = fixture.record().uid;
    assert_eq!(fixture.store().delete(&key()), Some(old));
    assert_eq!(fixture.store().delete(&key()), None);
    assert!(fixture.store().get(&key()).is_none());
    assert!(fixture.store().by_uid(old).unwrap().deleting, "it drains");
    assert_eq!(fixture.observe("example.com/p:v2"), Observed::Created);
    assert_eq!(fixture.record().generation, 1);
    assert_ne!(fixture.record().uid, old);
    fixture.store().commit().unwrap();
    fixture.reopen();
    assert_eq!(
        fixture.store().records().count(),
        2,
        "both survive a restart in the middle"
    );
    let new = fixture.record().uid;
    fixture.store().forget(new);
    assert!(
        fixture.store().get(&key()).is_some(),
        "only what is being deleted is forgotten"
    );
    fixture.store().forget(old);
    fixture.store().commit().unwrap();
    assert_eq!(fixture.files(), [format!("{new}.json")]);
}

#[test]
fn damaged_records_are_set_aside() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let other = mk_policy("other", "x");
    fixture.store().observe("o.yaml", &other, None, now());
    fixture.store().commit().unwrap();
    let uid = fixture.record().uid;
    let path = fixture.dir.path().join(format!("objects/{uid}.json"));
    let good = fs::read(&path).unwrap();
    let edited = String::from_utf8(good.clone())
        .unwrap()
        .replace("\"generation\": 1", "\"generation\": 9");
    for bytes in [&good[..good.len() / 2], b"", edited.as_bytes(), b"\xff\n"] {
        fs::write(&path, bytes).unwrap();
        let damaged = fixture.reopen();
        assert_eq!(damaged.len(), 1);
        assert_eq!(fs::read(&damaged[0].kept_as).unwrap(), bytes);
        assert!(!damaged[0].error.is_empty() && !path.exists());
        assert!(
            fixture.store().get(&other.key).is_some(),
            "the others are used"
        );
        assert!(fixture.store().get(&key()).is_none());
    }
    assert_eq!(
        fixture.files().len(),
        5,
        "each was kept: {:?}",
        fixture.files()
    );
}

#[test]
fn the_state_belongs_to_one_process() {
    let fixture = Fixture::new();
    let error = StateStore::open(fixture.dir.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("is used by another process"), "{error}");
    drop(fixture.store);
    assert!(StateStore::open(fixture.dir.path()).is_ok());
}

#[test]
fn a_failed_write_is_retried() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let (records, aside) = (
        fixture.dir.path().join("objects"),
        fixture.dir.path().join("aside"),
    );
    fs::rename(&records, &aside).unwrap();
    let error = fixture.store().commit().unwrap_err().to_string();
    assert!(error.starts_with("failed to write "), "{error}");
    fs::rename(&aside, &records).unwrap();
    fixture.store().commit().unwrap();
    fixture.reopen();
    assert_eq!(fixture.record().generation, 1);
}

#[test]
fn an_unchanged_record_is_not_written() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.store().commit().unwrap();
    let path = fixture.dir.path().join("objects").join(&fixture.files()[0]);
    fs::remove_file(&path).unwrap();
    fixture.observe("example.com/p:v1");
    let uid = fixture.record().uid;
    fixture.store().set_active(uid, None, now());
    fixture.store().commit().unwrap();
    assert!(fixture.files().is_empty());
}

#[test]
fn the_active_revision_cannot_be_deleted() {
    let mut fixture = Fixture::new();
    for i in 1..=2 {
        fixture.observe(&format!("example.com/p:v{i}"));
        fixture.activate();
    }
    let uid = fixture.record().uid;
    let active = fixture.record().active.clone().unwrap();
    // Whatever phase somebody gave it.
    fixture.store().set_phase(uid, &active, Phase::History);
    fixture.store().delete_revision(uid, &active);
    assert!(fixture.record().active_revision().is_some());
    let first = fixture.record().revisions[0].name.clone();
    fixture.store().delete_revision(uid, &first);
    assert_eq!(fixture.record().revisions.len(), 1);
}

#[test]
fn a_revision_record_converts_to_its_spec_and_back() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.activate();
    let record = fixture.record();
    let revision = &record.revisions[0];
    let spec = revision.spec(record).unwrap();
    let mut expect = revision.clone();
    expect.phase = Phase::Candidate;
    let copy = RevisionRecord::new(&spec, &revision.name, revision.created_at);
    assert_eq!(copy, expect);
    assert_eq!(spec.policy_ref.uid, record.uid.to_string());
}

/// A state directory that an earlier version wrote.
#[test]
fn records_of_earlier_versions_are_read() {
    let json = r#"{
  "policy": "cluster/p",
  "uid": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
  "generation": 1,
  "createdAt": "2023-11-14T22:13:20Z",
  "file": "p.yaml",
  "spec": "{}",
  "active": "1-6ba7b810",
  "activeSince": "2023-11-14T22:13:20Z",
  "held": false,
  "deleting": false,
  "revisions": [
    {
      "name": "1-6ba7b810",
      "generation": 1,
      "spec": "{}",
      "moduleUrl": "file:///p.wasm",
      "moduleDigest": "sha256:00",
      "moduleSize": 3,
      "abi": "wapc",
      "contentDigest": "sha256:00",
      "settings": "{}",
      "timeoutMs": 2000,
      "memoryBytes": 1024,
      "phase": "Active",
      "createdAt": "2023-11-14T22:13:20Z"
    }
  ]
}"#;
    let mut fixture = Fixture::new();
    let path = fixture.dir.path().join("objects/p.json");
    let content = format!("{}\n{json}\n", Digest::of(json.as_bytes()));
    fs::write(path, content).unwrap();
    assert!(fixture.reopen().is_empty());
    let record = fixture.record();
    assert_eq!(record.active_path().unwrap(), "cluster/p/1-6ba7b810");
    let status = record.stored_status();
    assert_eq!(status.active.unwrap().since.unwrap().0, now());
    assert!(status.conditions.is_empty());
}

#[test]
fn a_rollback_holds_until_the_manifest_changes() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.activate();
    fixture.observe("example.com/p:v2");
    fixture.activate();
    let first = fixture.record().revisions[0].clone();
    let target = target(fixture.record(), &first);
    assert_eq!(fixture.store().roll_back(&key(), &target), Some(3));
    let digest = first.module_digest;
    assert_eq!(fixture.record().pinned_digest(), Some(digest.as_str()));
    let effective = fixture.record().effective(&options()).unwrap();
    assert_eq!(
        effective.module,
        format!("registry://example.com/p@{digest}")
    );
    fixture.store().commit().unwrap();
    fixture.reopen();
    // The manifest still names v2: that is no change, the rollback holds.
    assert_eq!(fixture.observe("example.com/p:v2"), Observed::Unchanged);
    assert!(fixture.record().overridden.is_some());
    assert_eq!(fixture.observe("example.com/p:v3"), Observed::Changed);
    assert_eq!(
        (
            fixture.record().generation,
            fixture.record().pinned_digest()
        ),
        (4, None)
    );
    let nobody = PolicyKey::cluster("nobody");
    assert_eq!(fixture.store().roll_back(&nobody, &target), None);
}

fn target(record: &PolicyRecord, revision: &RevisionRecord) -> RollbackTarget {
    RollbackTarget {
        generation: revision.generation,
        spec: revision.spec(record).unwrap().policy,
        module_url: revision.module_url.clone(),
        module_digest: revision.module_digest.clone(),
    }
}

#[test]
fn an_annotation_is_acted_on_once() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let wanted = Some(Rollback::Generation(1));
    assert_eq!(fixture.store().new_rollback(&key(), wanted), wanted);
    fixture.store().set_rollback_done(&key(), wanted);
    assert_eq!(fixture.store().new_rollback(&key(), wanted), None);
    assert_eq!(
        fixture
            .store()
            .new_rollback(&key(), Some(Rollback::Previous)),
        Some(Rollback::Previous)
    );
    fixture.store().set_rollback_done(&key(), None);
    assert_eq!(fixture.store().new_rollback(&key(), wanted), wanted);
}

#[test]
fn the_record_keeps_the_parsed_spec() {
    let mut fixture = Fixture::new();
    let parsed = mk_policy("p", "example.com/p:v1");
    fixture.store().observe("p.yaml", &parsed, None, now());
    assert_eq!(
        Arc::from(fixture.record().spec.as_bytes()),
        parsed.spec_json
    );
    assert_eq!(fixture.record().effective(&options()), Ok(parsed));
}
