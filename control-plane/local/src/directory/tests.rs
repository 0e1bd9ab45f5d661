#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use assent_core::{Digest, PolicyKey};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

const POLICY: &str = "apiVersion: policies.assent.dev/v1alpha1
kind: ClusterAdmissionPolicy
metadata: {name: NAME}
spec:
  module: MODULE
  rules:
  - {apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}
";

fn mk_policy(name: &str, module: &str) -> String {
    POLICY.replace("NAME", name).replace("MODULE", module)
}

struct Fixture {
    dir: TempDir,
    scanner: Scanner,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scanner = Scanner::new(Options::new(dir.path()));
        Self {
            dir,
            scanner,
            now: Instant::now(),
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Looks, after so many milliseconds by the test's own clock.
    fn look(&mut self, after_ms: u64) -> (Scan, Option<Duration>) {
        self.now += Duration::from_millis(after_ms);
        self.scanner.poll(self.now)
    }

    /// Looks until all is settled: manifests first, then modules that they name.
    fn settled(&mut self) -> Scan {
        for _ in 0..3 {
            self.look(100);
        }
        let (scan, again) = self.look(100);
        assert_eq!((again, scan.unsettled.len()), (None, 0));
        scan
    }
}

fn names(scan: &Scan) -> Vec<String> {
    let objects = scan.documents.iter().filter_map(|d| d.object.as_ref());
    objects.map(ToString::to_string).collect()
}

#[test]
fn a_file_is_read_when_it_has_stopped_changing() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", "half: [");
    let (scan, again) = fixture.look(0);
    assert!(scan.documents.is_empty() && scan.unsettled.contains("a.yaml"));
    assert_eq!(again, Some(Duration::from_millis(100)));
    fixture.look(60);
    fixture.write("a.yaml", &mk_policy("a", "x"));
    // The clock starts again with the change.
    let (scan, again) = fixture.look(60);
    assert!(scan.documents.is_empty() && again.is_some());
    let (scan, again) = fixture.look(100);
    assert_eq!((names(&scan), again), (vec!["cluster/a".to_owned()], None));
}

#[test]
fn what_was_good_stands_while_a_file_changes() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &mk_policy("a", "x"));
    let before = fixture.settled();
    fixture.write("a.yaml", "");
    let (scan, again) = fixture.look(50);
    assert_eq!(scan, before);
    assert!(again.is_some());
    fs::remove_file(fixture.dir.path().join("a.yaml")).unwrap();
    let (scan, _) = fixture.look(50);
    assert_eq!(
        scan, before,
        "an editor that removes a file and writes it again loses nothing"
    );
    let scan = fixture.settled();
    assert_eq!(scan, Scan::default());
}

#[test]
fn only_manifests_of_the_top_level() {
    let mut fixture = Fixture::new();
    for (i, name) in [
        "a.yaml",
        "b.yml",
        "d.txt",
        ".e.yaml",
        "f.yaml.swp",
        "g.yaml~",
        "h.cel.yaml",
    ]
    .iter()
    .enumerate()
    {
        fixture.write(name, &mk_policy(&format!("p{i}"), "x"));
    }
    fixture.write("c.json", r#"{"apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer", "metadata": {"name": "s"}}"#);
    fs::create_dir(fixture.dir.path().join("sub.yaml")).unwrap();
    fs::write(
        fixture.dir.path().join("sub.yaml/x.yaml"),
        mk_policy("x", "x"),
    )
    .unwrap();
    let scan = fixture.settled();
    assert_eq!(names(&scan), ["cluster/p0", "cluster/p1", "policyserver/s"]);
}

#[test]
fn documents_say_where_they_are() {
    let mut fixture = Fixture::new();
    let text = format!(
        "{}---\nkind: Pod\n---\na: 1\na: 2\n---\n{}",
        mk_policy("a", "x"),
        mk_policy("b", "x")
    );
    fixture.write("a.yaml", &text);
    fixture.write("b.json", "{\"a\":1,\"a\":2}");
    let scan = fixture.settled();
    let seen: Vec<_> = scan
        .documents
        .iter()
        .map(|d| (d.place(), d.result.as_ref().err().map(ToString::to_string)))
        .collect();
    assert_eq!(seen[0], ("a.yaml".into(), None));
    assert_eq!(seen[1].0, "a.yaml, document 2 (line 8)");
    assert!(
        seen[1]
            .1
            .as_ref()
            .unwrap()
            .starts_with("apiVersion: must be"),
        "{seen:?}"
    );
    assert_eq!(
        seen[2].1.as_deref(),
        Some("line 12, column 1: duplicate key \"a\"; remove one of the two")
    );
    assert_eq!(seen[3], ("a.yaml, document 4 (line 13)".into(), None));
    assert!(
        seen[4]
            .1
            .as_ref()
            .unwrap()
            .starts_with("duplicate key \"a\""),
        "{seen:?}"
    );
}

#[test]
fn a_missing_directory_and_one_that_is_no_directory() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &mk_policy("a", "x"));
    fixture.settled();
    let (path, aside) = (
        fixture.dir.path().to_owned(),
        fixture.dir.path().with_extension("aside"),
    );
    fs::rename(&path, &aside).unwrap();
    assert_eq!(
        fixture.look(100).0,
        Scan {
            state: State::Missing,
            ..Scan::default()
        }
    );
    fs::write(&path, "").unwrap();
    assert!(matches!(fixture.look(100).0.state, State::Unreadable(_)));
    fs::remove_file(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    assert_eq!(names(&fixture.settled()), ["cluster/a"]);
}

#[test]
fn unreadable_files_are_said_not_skipped() {
    let mut fixture = Fixture::new();
    fs::write(fixture.dir.path().join("a.yaml"), b"\xff\xfe").unwrap();
    std::os::unix::fs::symlink("nowhere", fixture.dir.path().join("b.yaml")).unwrap();
    let large = fs::File::create(fixture.dir.path().join("c.yaml")).unwrap();
    large.set_len(MAX_FILE_BYTES + 1).unwrap();
    let expect = [
        ("a.yaml", "not UTF-8"),
        ("b.yaml", "the link leads nowhere"),
        ("c.yaml", "larger than 16777216 bytes"),
    ];
    let expect = expect.map(|(file, why)| (file.to_owned(), why.to_owned()));
    assert_eq!(fixture.settled().unreadable, BTreeMap::from(expect.clone()));
    assert_eq!(
        fixture.settled().unreadable,
        BTreeMap::from(expect),
        "it stays so"
    );
}

#[test]
fn modules_beside_manifests() {
    let mut fixture = Fixture::new();
    fixture.write("p.wasm", "one");
    fixture.write("a.yaml", &mk_policy("a", "file://p.wasm"));
    fixture.write("b.yaml", &mk_policy("b", "file://./missing.wasm"));
    fixture.write("c.yaml", &mk_policy("c", "registry://example.com/c:v1"));
    let absolute = fixture.dir.path().join("p.wasm");
    fixture.write(
        "d.yaml",
        &mk_policy("d", &format!("file://{}", absolute.display())),
    );
    let scan = fixture.settled();
    let digest =
        |scan: &Scan, i: usize| scan.documents[i].module.as_ref().map(|m| m.digest.clone());
    assert_eq!(digest(&scan, 0), Some(Ok(Digest::of(b"one"))));
    assert!(matches!(digest(&scan, 1), Some(Err(why)) if why.contains("missing.wasm")));
    assert_eq!(digest(&scan, 2), None);
    assert_eq!(digest(&scan, 3), Some(Ok(Digest::of(b"one"))));
    assert_eq!(scan.documents[0].module.as_ref().unwrap().path, absolute);
    fixture.write("p.wasm", "two");
    let scan = fixture.settled();
    assert_eq!(digest(&scan, 0), Some(Ok(Digest::of(b"two"))));
}

/// A tool that sets the modification time back can't hide a change of the same size.
#[test]
fn equal_size_and_time_do_not_hide_a_change() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &mk_policy("a", "x1"));
    let path = fixture.dir.path().join("a.yaml");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let before = fixture.settled();
    // The inode's time has the kernel's resolution, a few milliseconds.
    std::thread::sleep(Duration::from_millis(20));
    fixture.write("a.yaml", &mk_policy("a", "x2"));
    fs::File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .set_modified(time)
        .unwrap();
    assert_ne!(fixture.settled(), before);
}

async fn next(scans: &mut mpsc::Receiver<Scan>, until: impl Fn(&Scan) -> bool) -> Scan {
    let deadline = Duration::from_secs(30);
    tokio::time::timeout(deadline, async {
        loop {
            let scan = scans.recv().await.unwrap();
            if until(&scan) {
                return scan;
            }
        }
    })
    .await
    .unwrap()
}

fn put(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join("tmp"), text).unwrap();
    fs::rename(directory.join("tmp"), directory.join(name)).unwrap();
}

#[tokio::test]
async fn watching_sends_what_changed_and_ends_with_its_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policies");
    let (sender, mut scans) = mpsc::channel(1);
    let mut options = Options::new(&path);
    options.settle = Duration::from_millis(20);
    options.rescan = Duration::from_millis(200);
    let watching = tokio::spawn(watch(options, sender));
    assert_eq!(scans.recv().await.unwrap().state, State::Missing);
    fs::create_dir(&path).unwrap();
    put(&path, "a.yaml", &mk_policy("a", "file://p.wasm"));
    let of = |scan: &Scan| {
        scan.documents
            .first()
            .and_then(|d| d.module.clone())
            .map(|m| m.digest)
    };
    next(&mut scans, |scan| matches!(of(scan), Some(Err(_)))).await;
    put(&path, "p.wasm", "one");
    next(&mut scans, |scan| of(scan) == Some(Ok(Digest::of(b"one")))).await;
    put(&path, "b.yaml", &mk_policy("b", "x"));
    let scan = next(&mut scans, |scan| scan.documents.len() == 2).await;
    assert_eq!(
        scan.documents[1].object,
        Some(parse::Object::Policy(PolicyKey::cluster("b")))
    );
    drop(scans);
    watching.await.unwrap();
}
