#![allow(clippy::unwrap_used)]
use assent_core::RouteState;

use super::*;
use crate::{
    announced::tests::{mk_policy, mk_set},
    failure::Stage,
};

fn open(dir: &Path) -> Result<Store, Error> {
    Store::open(dir, Seal::Digest)
}

fn saved(dir: &Path) -> Announced {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 2, "y"));
    let set = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Candidate)]);
    let policies = [a, b].map(|p| (p.revision.clone(), p)).into();
    open(dir)
        .unwrap()
        .save(&policies, set.routes(), true)
        .unwrap();
    set
}

#[test]
fn a_set_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(dir.path()).unwrap().load().unwrap(), None);
    let set = saved(dir.path());
    let restored = open(dir.path()).unwrap().load().unwrap().unwrap();
    assert_eq!(restored, Restored { set, whole: true });
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path());
    let path = dir.path().join("set");
    let good = fs::read(&path).unwrap();
    let store = open(dir.path()).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(
            matches!(store.load(), Err(Error::Damaged { .. })),
            "bit {at}"
        );
        fs::write(&path, &good[..at]).unwrap();
        assert!(
            matches!(store.load(), Err(Error::Damaged { .. })),
            "cut {at}"
        );
    }
    fs::write(&path, &good).unwrap();
    assert!(store.load().unwrap().is_some());
}

#[test]
fn a_forged_set_with_a_right_checksum_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let set = saved(dir.path());
    let store = open(dir.path()).unwrap();
    let policies: Vec<_> = set
        .offers()
        .values()
        .map(|o| o.body.clone().unwrap())
        .collect();
    let policies: Vec<&Arc<Policy>> = policies.iter().collect();
    // Routes are left out, the version is the old one.
    let body = crate::wire::write_set(&set.version(), &policies, &[]);
    let digest = Digest::of(&[&[1], body.as_slice()].concat());
    let forged = [seal::BY_DIGEST, &[1], digest.as_bytes(), &body].concat();
    fs::write(dir.path().join("set"), forged).unwrap();
    assert!(matches!(store.load(), Err(Error::Damaged { .. })));
}

#[test]
fn an_unreadable_set_is_an_error_and_not_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    fs::create_dir(dir.path().join("set")).unwrap();
    assert!(matches!(store.load(), Err(Error::Io { .. })));
}

#[test]
fn a_damaged_module_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let digest = Digest::of(b"wasm");
    assert_eq!(store.module(&digest), None);
    store.keep_module(&digest, b"wasm").unwrap();
    assert_eq!(store.module(&digest).unwrap(), b"wasm");
    fs::write(dir.path().join("modules").join(digest.hex()), b"wasn").unwrap();
    assert_eq!(store.module(&digest), None);
    assert!(!store.has_module(&digest));
}

#[test]
fn sweeping_leaves_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
    store.keep_module(&a, b"a").unwrap();
    store.keep_module(&b, b"b").unwrap();
    store.sweep(&[a].into()).unwrap();
    assert!(store.has_module(&a) && !store.has_module(&b));
}

#[test]
fn only_markers_of_a_dead_process_poison() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (Digest::of(b"good"), Digest::of(b"bad"));
    let revision = assent_core::RevisionId::from_wire("cluster/a/1-x");
    {
        let store = open(dir.path()).unwrap();
        drop(store.attempt(&good, &revision, Stage::Compile));
        // A process that dies drops nothing.
        std::mem::forget(store.attempt(&bad, &revision, Stage::SelfTest));
    }
    for _ in 0..2 {
        let crashed = open(dir.path()).unwrap().crashed(&HashSet::new());
        assert_eq!(crashed.failures.keys().collect::<Vec<_>>(), [&bad]);
        let failure = &crashed.failures[&bad];
        assert_eq!((failure.stage, failure.retryable), (Stage::SelfTest, false));
        assert!(
            failure.message.contains("cluster/a/1-x"),
            "{}",
            failure.message
        );
    }
}

#[test]
fn content_that_was_served_is_tried_again_and_waits_after_the_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let what = Digest::of(b"served");
    let revision = assent_core::RevisionId::from_wire("cluster/a/1-x");
    let die = || std::mem::forget(store.attempt(&what, &revision, Stage::Compile));
    die();
    let crashed = store.crashed(&[what].into());
    assert_eq!(crashed, Crashed::default());
    for times in 2..5 {
        die();
        // The set on disk may not have it any more.
        let crashed = store.crashed(&HashSet::new());
        let failure = &crashed.failures[&what];
        assert_eq!((failure.stage, failure.retryable), (Stage::Compile, true));
        assert_eq!(crashed.in_a_row, times);
    }
    // An attempt that ends, however it ends, is the end of the row.
    drop(store.attempt(&what, &revision, Stage::Compile));
    assert_eq!(store.crashed(&HashSet::new()), Crashed::default());
    die();
    assert_eq!(store.crashed(&[what].into()), Crashed::default());
}

#[test]
fn a_marker_of_an_older_version_is_of_new_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let what = Digest::of(b"old");
    let path = dir.path().join("attempts").join(what.hex());
    fs::write(path, "compile cluster/a/1-x").unwrap();
    let crashed = store.crashed(&HashSet::new());
    assert_eq!(crashed.failures[&what].stage, Stage::Compile);
    assert!(!crashed.failures[&what].retryable);
}

#[test]
fn a_leadership_term_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(store.term().unwrap(), 0);
    store.keep_term(7).unwrap();
    assert_eq!(store.term().unwrap(), 7);
    fs::write(dir.path().join(TERM), "seven").unwrap();
    assert!(matches!(store.term(), Err(Error::Damaged { .. })));
    store.keep_term(8).unwrap();
    assert_eq!(store.term().unwrap(), 8);
}

#[test]
fn one_directory_has_one_evaluator() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(Error::Locked(_))));
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.write("tls.key", b"secret").unwrap();
    let mode = fs::metadata(dir.path().join("tls.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(store.read("tls.key").unwrap(), b"secret");
}

/// A set in which `a` has settings that come from Secrets.
fn save_confidential(dir: &Path, seal: Seal) -> (Store, Announced) {
    let mut a = Policy::clone(&mk_policy("a", 1, "x"));
    a.content.settings_json = (*b"{\"token\":\"hunter2\"}").into();
    a.content.settings_salt = (*b"pepper").into();
    a.content_digest = a.content.digest();
    let (a, b) = (Arc::new(a), mk_policy("b", 2, "y"));
    let set = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Active)]);
    let policies = [a, b].map(|p| (p.revision.clone(), p)).into();
    let store = Store::open(dir, seal).unwrap();
    store.save(&policies, set.routes(), true).unwrap();
    let file = fs::read(dir.join("set")).unwrap();
    for secret in [&b"hunter2"[..], b"pepper"] {
        let mut windows = file.windows(secret.len());
        assert!(!windows.any(|window| window == secret));
    }
    (store, set)
}

#[test]
fn settings_from_secrets_are_kept_with_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(key.path(), "0123456789abcdef0123456789abcdef").unwrap();
    let seal = Seal::read(key.path(), "default").unwrap();
    let (store, set) = save_confidential(dir.path(), seal);
    let restored = store.load().unwrap().unwrap();
    assert_eq!(restored, Restored { set, whole: true });
}

#[test]
fn settings_from_secrets_are_left_out_without_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (store, set) = save_confidential(dir.path(), Seal::Digest);
    let restored = store.load().unwrap().unwrap();
    assert!(!restored.whole);
    assert_eq!(restored.set.version(), set.version());
    let bodies: Vec<bool> = restored
        .set
        .offers()
        .values()
        .map(|o| o.body.is_ok())
        .collect();
    assert_eq!(bodies, [false, true], "only the other policy is served");
}

#[test]
fn forged_term_and_markers_are_ignored_with_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(key.path(), "0123456789abcdef0123456789abcdef").unwrap();
    let seal = Seal::read(key.path(), "default").unwrap();
    let store = Store::open(dir.path(), seal).unwrap();
    store.keep_term(7).unwrap();
    assert_eq!(store.term().unwrap(), 7);
    fs::write(dir.path().join("leadership"), "18446744073709551615\n").unwrap();
    assert_eq!(store.term().unwrap(), 0);
    let what = Digest::of(b"new content");
    let revision = assent_core::RevisionId::from_wire("cluster/a/1-5f2a9c1e");
    let marker = dir.path().join("attempts").join(what.hex());
    fs::write(&marker, "self_test 1 new cluster/a/1-5f2a9c1e").unwrap();
    assert_eq!(store.crashed(&HashSet::new()), Crashed::default());
    // The evaluator's own marker counts, for that content alone.
    std::mem::forget(store.attempt(&what, &revision, Stage::SelfTest));
    let other = Digest::of(b"other content");
    fs::copy(&marker, dir.path().join("attempts").join(other.hex())).unwrap();
    let crashed = store.crashed(&HashSet::new());
    assert_eq!(crashed.failures.keys().collect::<Vec<_>>(), [&what]);
}
