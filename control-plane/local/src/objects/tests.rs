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
    book: Option<Book>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (book, damaged) = Book::open(dir.path()).unwrap();
        assert!(damaged.is_empty());
        Self {
            dir,
            book: Some(book),
        }
    }

    fn book(&mut self) -> &mut Book {
        self.book.as_mut().unwrap()
    }

    fn observe(&mut self, module: &str) -> Change {
        self.book()
            .observe("p.yaml", &mk_policy("p", module), None, now())
    }

    /// As after a restart: only what was committed is there.
    fn reopen(&mut self) -> Vec<Damaged> {
        self.book = None;
        let (book, damaged) = Book::open(self.dir.path()).unwrap();
        self.book = Some(book);
        damaged
    }

    fn record(&self) -> &Record {
        self.book.as_ref().unwrap().get(&key()).unwrap()
    }

    /// Makes the present generation a revision and points the dispatch at it.
    fn activate(&mut self) {
        let record = self.record().clone();
        let name = record.revision_id().short().to_owned();
        let revision = Revision {
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
            phase: Phase::Candidate,
            created_at: now(),
        };
        let before = record.active.clone();
        let book = self.book();
        book.add_revision(record.uid, revision);
        book.set_active(record.uid, Some(&name), now());
        book.set_phase(record.uid, &name, Phase::Active);
        if let Some(before) = before {
            book.set_phase(record.uid, &before, Phase::History);
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
fn generations_count_changes() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.observe("example.com/p:v1"), Change::Created);
    assert_eq!(fixture.record().generation, 1);
    assert_eq!(fixture.observe("example.com/p:v1"), Change::Unchanged);
    assert_eq!(fixture.observe("example.com/p:v2"), Change::Changed);
    assert_eq!(fixture.record().generation, 2);
    let uid = fixture.record().uid;
    let expect = format!("cluster/p/2-{}", &uid.simple().to_string()[..8]);
    assert_eq!(fixture.record().revision_id().as_str(), expect);
}

#[test]
fn module_bytes_count_too() {
    let mut fixture = Fixture::new();
    let parsed = mk_policy("p", "file:///p.wasm");
    let mut observe = |bytes: Option<&[u8]>| {
        let module = mk_module(bytes);
        let change = fixture
            .book()
            .observe("p.yaml", &parsed, Some(&module), now());
        (change, fixture.record().generation)
    };
    assert_eq!(observe(None), (Change::Created, 1));
    // Nothing was built before the bytes were known.
    assert_eq!(observe(Some(b"one")), (Change::Unchanged, 1));
    assert_eq!(observe(Some(b"two")), (Change::Changed, 2));
    assert_eq!(observe(None), (Change::Unchanged, 2));
    assert_eq!(observe(Some(b"two")), (Change::Unchanged, 2));
    assert_eq!(observe(Some(b"one")), (Change::Changed, 3));
}

#[test]
fn what_is_committed_survives() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.activate();
    fixture.book().commit().unwrap();
    let before = fixture.record().clone();
    fixture.observe("example.com/p:v2");
    assert!(fixture.reopen().is_empty());
    assert_eq!(
        *fixture.record(),
        before,
        "what was not committed is not there"
    );
    assert_eq!(fixture.observe("example.com/p:v1"), Change::Unchanged);
    let path = fixture.record().active_path().unwrap();
    assert_eq!(path, before.revision_id().as_str());
}

/// The book after a restart is what deciding goes on from: a directory that lost its files
/// meanwhile is noticed.
#[test]
fn deciding_goes_on_after_a_restart() {
    let mut fixture = Fixture::new();
    let mut documents = Vec::new();
    for i in 0..12 {
        let value = mk_value(&format!("p{i}"), "file:///p.wasm");
        let parsed = parse::policy(&value, &options()).unwrap();
        let module = mk_module(Some(b"one"));
        let file = format!("{i}.yaml");
        fixture.book().observe(&file, &parsed, Some(&module), now());
        documents.push(Document {
            file,
            number: 1,
            line: 1,
            object: parse::identify(&value, &options()),
            result: Ok(parse::manifest(&value, &options()).unwrap()),
            module: Some(module),
        });
    }
    fixture.book().commit().unwrap();
    fixture.reopen();
    let objects = fixture.book().objects(&options());
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
    fixture.book().set_held(&policies);
    fixture.book().commit().unwrap();
    fixture.reopen();
    let objects = fixture.book().objects(&options());
    assert_eq!(objects.values().filter(|entry| entry.held).count(), 9);
    fixture.book().set_held(&[]);
    let objects = fixture.book().objects(&options());
    assert!(objects.values().all(|entry| !entry.held));
}

#[test]
fn recreated_is_another_policy() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.observe("example.com/p:v2");
    fixture.activate();
    let old = fixture.record().uid;
    assert_eq!(fixture.book().delete(&key()), Some(old));
    assert_eq!(fixture.book().delete(&key()), None);
    assert!(fixture.book().get(&key()).is_none());
    assert!(fixture.book().by_uid(old).unwrap().deleting, "it drains");
    assert_eq!(fixture.observe("example.com/p:v2"), Change::Created);
    assert_eq!(fixture.record().generation, 1);
    assert_ne!(fixture.record().uid, old);
    fixture.book().commit().unwrap();
    fixture.reopen();
    assert_eq!(
        fixture.book().records().count(),
        2,
        "both survive a restart in the middle"
    );
    let new = fixture.record().uid;
    fixture.book().forget(new);
    assert!(
        fixture.book().get(&key()).is_some(),
        "only what is being deleted is forgotten"
    );
    fixture.book().forget(old);
    fixture.book().commit().unwrap();
    assert_eq!(fixture.files(), [format!("{new}.json")]);
}

#[test]
fn damaged_records_are_set_aside_and_told() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let other = mk_policy("other", "x");
    fixture.book().observe("o.yaml", &other, None, now());
    fixture.book().commit().unwrap();
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
            fixture.book().get(&other.key).is_some(),
            "the others are used"
        );
        assert!(fixture.book().get(&key()).is_none());
    }
    assert_eq!(
        fixture.files().len(),
        5,
        "each was kept: {:?}",
        fixture.files()
    );
}

#[test]
fn the_state_is_for_one_process() {
    let fixture = Fixture::new();
    let error = Book::open(fixture.dir.path()).unwrap_err().to_string();
    assert!(error.contains("is used by another process"), "{error}");
    drop(fixture.book);
    assert!(Book::open(fixture.dir.path()).is_ok());
}

#[test]
fn a_failed_write_is_tried_again() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let (records, aside) = (
        fixture.dir.path().join("objects"),
        fixture.dir.path().join("aside"),
    );
    fs::rename(&records, &aside).unwrap();
    let error = fixture.book().commit().unwrap_err().to_string();
    assert!(error.starts_with("failed to write "), "{error}");
    fs::rename(&aside, &records).unwrap();
    fixture.book().commit().unwrap();
    fixture.reopen();
    assert_eq!(fixture.record().generation, 1);
}

#[test]
fn nothing_changed_nothing_written() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.book().commit().unwrap();
    let path = fixture.dir.path().join("objects").join(&fixture.files()[0]);
    fs::remove_file(&path).unwrap();
    fixture.observe("example.com/p:v1");
    let uid = fixture.record().uid;
    fixture.book().set_active(uid, None, now());
    fixture.book().commit().unwrap();
    assert!(fixture.files().is_empty());
}

#[test]
fn history_is_trimmed() {
    let mut fixture = Fixture::new();
    for i in 1..=6 {
        fixture.observe(&format!("example.com/p:v{i}"));
        fixture.activate();
    }
    let kept: Vec<_> = fixture
        .record()
        .revisions
        .iter()
        .map(|r| (r.generation, r.phase))
        .collect();
    assert_eq!(
        kept,
        [(4, Phase::History), (5, Phase::History), (6, Phase::Active)]
    );
    // What is pointed at stays, whatever phase somebody gave it.
    let uid = fixture.record().uid;
    let active = fixture.record().active.clone().unwrap();
    fixture.book().set_phase(uid, &active, Phase::History);
    fixture.book().drop_revision(uid, &active);
    assert!(fixture.record().active_revision().is_some());
    let first = fixture.record().revisions[0].name.clone();
    fixture.book().drop_revision(uid, &first);
    assert_eq!(fixture.record().revisions.len(), 2);
}

#[test]
fn going_back() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    fixture.activate();
    let error = fixture
        .book()
        .rollback(&key(), Rollback::Previous)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "cluster/p has no revision before the active one; it has revisions of generations 1"
    );
    fixture.observe("example.com/p:v2");
    fixture.activate();
    assert_eq!(
        fixture.book().rollback(&key(), Rollback::Previous).unwrap(),
        3
    );
    let digest = fixture.record().revisions[0].module_digest.clone();
    assert_eq!(fixture.record().pinned_digest(), Some(digest.as_str()));
    let effective = fixture.record().effective(&options()).unwrap();
    assert_eq!(
        effective.module,
        format!("registry://example.com/p@{digest}")
    );
    fixture.book().commit().unwrap();
    fixture.reopen();
    // The manifest still says v2: that is no change, the rollback holds.
    assert_eq!(fixture.observe("example.com/p:v2"), Change::Unchanged);
    assert!(fixture.record().overridden.is_some());
    assert_eq!(fixture.observe("example.com/p:v3"), Change::Changed);
    assert_eq!(
        (
            fixture.record().generation,
            fixture.record().pinned_digest()
        ),
        (4, None)
    );
    assert!(
        fixture
            .book()
            .rollback(&key(), Rollback::Generation(99))
            .is_err()
    );
    assert_eq!(
        fixture
            .book()
            .rollback(&key(), Rollback::Generation(2))
            .unwrap(),
        5
    );
    let nobody = PolicyKey::cluster("nobody");
    assert!(matches!(
        fixture.book().rollback(&nobody, Rollback::Previous),
        Err(Error::NoPolicy(_))
    ));
}

#[test]
fn an_annotation_is_acted_on_once() {
    let mut fixture = Fixture::new();
    fixture.observe("example.com/p:v1");
    let wanted = Some(Rollback::Generation(1));
    assert_eq!(fixture.book().new_rollback(&key(), wanted), wanted);
    fixture.book().rollback_seen(&key(), wanted);
    assert_eq!(fixture.book().new_rollback(&key(), wanted), None);
    assert_eq!(
        fixture
            .book()
            .new_rollback(&key(), Some(Rollback::Previous)),
        Some(Rollback::Previous)
    );
    fixture.book().rollback_seen(&key(), None);
    assert_eq!(fixture.book().new_rollback(&key(), wanted), wanted);
}

#[test]
fn the_parsed_spec_is_what_is_kept() {
    let mut fixture = Fixture::new();
    let parsed = mk_policy("p", "example.com/p:v1");
    fixture.book().observe("p.yaml", &parsed, None, now());
    assert_eq!(
        Arc::from(fixture.record().spec.as_bytes()),
        parsed.spec_json
    );
    assert_eq!(fixture.record().effective(&options()), Some(parsed));
}
