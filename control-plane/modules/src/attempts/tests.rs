#![allow(clippy::unwrap_used)]

use tempfile::TempDir;

use super::*;

const MEMORY: u64 = 1 << 30;

fn open(dir: &TempDir) -> Attempts {
    Attempts::open(dir.path(), MEMORY, SystemTime::now()).unwrap()
}

/// Begins to vet a module; the process dies.
fn die(dir: &TempDir, digest: Digest) {
    std::mem::forget(open(dir).begin(digest).unwrap());
}

fn marks(dir: &TempDir) -> usize {
    fs::read_dir(dir.path().join("attempts")).unwrap().count()
}

#[test]
fn attempt_that_ends_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let attempts = open(&dir);
    let digest = Digest::of(b"a");
    let (first, second) = (
        attempts.begin(digest).unwrap(),
        attempts.begin(digest).unwrap(),
    );
    assert!(!first.is_careful());
    drop(first);
    // The other one still runs.
    assert_eq!(marks(&dir), 1);
    drop(second);
    assert_eq!(marks(&dir), 0);
    assert!(!open(&dir).begin(digest).unwrap().is_careful());
}

#[test]
fn module_is_refused_after_the_second_death() {
    let dir = TempDir::new().unwrap();
    let (bad, good) = (Digest::of(b"bad"), Digest::of(b"good"));
    die(&dir, bad);
    let attempts = open(&dir);
    assert!(attempts.begin(bad).unwrap().is_careful());
    // It survived that time.
    assert!(!attempts.begin(bad).unwrap().is_careful());
    die(&dir, bad);
    die(&dir, bad);
    for _ in 0..3 {
        let attempts = open(&dir);
        let refused = attempts.begin(bad).unwrap_err();
        assert!(matches!(refused, Error::Refused { deaths: 2 }));
        let text = refused.to_string();
        assert!(text.starts_with("brought the control plane down"), "{text}");
        assert!(!attempts.begin(good).unwrap().is_careful());
    }
}

#[test]
fn more_memory_is_a_reason_to_try_again() {
    let dir = TempDir::new().unwrap();
    let digest = Digest::of(b"a");
    die(&dir, digest);
    die(&dir, digest);
    let less = Attempts::open(dir.path(), MEMORY / 2, SystemTime::now()).unwrap();
    less.begin(digest).unwrap_err();
    let more = Attempts::open(dir.path(), 2 * MEMORY, SystemTime::now()).unwrap();
    assert!(!more.begin(digest).unwrap().is_careful());
}

#[test]
fn old_marks_are_forgotten() {
    let dir = TempDir::new().unwrap();
    let digest = Digest::of(b"a");
    die(&dir, digest);
    die(&dir, digest);
    open(&dir);
    let hours = |hours: u64| SystemTime::now() + Duration::from_secs(hours * 3600);
    let later = Attempts::open(dir.path(), MEMORY, hours(23)).unwrap();
    later.begin(digest).unwrap_err();
    let later = Attempts::open(dir.path(), MEMORY, hours(25)).unwrap();
    assert_eq!(marks(&dir), 0);
    assert!(!later.begin(digest).unwrap().is_careful());
}

#[test]
fn damaged_marks_are_removed() {
    let dir = TempDir::new().unwrap();
    open(&dir);
    let marked = dir.path().join("attempts");
    let digest = Digest::of(b"a");
    fs::write(marked.join(digest.hex()), "{").unwrap();
    fs::write(marked.join(format!("{}.new", digest.hex())), "").unwrap();
    let attempts = open(&dir);
    assert_eq!(marks(&dir), 0);
    attempts.begin(digest).unwrap();
}
