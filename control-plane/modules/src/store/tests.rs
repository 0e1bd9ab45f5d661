#![allow(clippy::unwrap_used)]

use std::{fs, os::unix::process::ExitStatusExt, process::Command};

use tempfile::TempDir;

use super::*;

const ENGINE: &str = "wasmtime-48/x86_64+sse4.2";

fn mk_store() -> (TempDir, Store) {
    let dir = TempDir::new().unwrap();
    let store = Store::open(dir.path()).unwrap();
    (dir, store)
}

fn keep(modules: &[Digest]) -> Keep {
    Keep {
        modules: modules.iter().copied().collect(),
        engine: Some(ENGINE.to_owned()),
        younger_than: Duration::ZERO,
    }
}

fn after(minutes: u64) -> SystemTime {
    SystemTime::now() + Duration::from_secs(60 * minutes)
}

fn file_of(dir: &TempDir, digest: Digest) -> PathBuf {
    dir.path().join("modules").join(digest.hex())
}

/// Every file below the store, to see that nothing else came into being.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[tokio::test]
async fn what_is_put_is_found_again_after_a_restart() {
    let (dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    assert_eq!(digest, Digest::of(b"module"));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.get(digest).await.unwrap().unwrap(), "module");
    assert_eq!(store.stat(digest).await.unwrap(), Some(6));
    assert_eq!(store.list().await.unwrap(), [digest]);
    assert_eq!(files(dir.path()), [file_of(&dir, digest)]);
}

#[tokio::test]
async fn a_peek_reads_and_changes_nothing() {
    let (dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    let peek = || Store::peek(dir.path(), digest).unwrap();
    assert_eq!(peek().unwrap(), "module");
    fs::write(dir.path().join("tmp/half"), "written").unwrap();
    fs::write(file_of(&dir, digest), "damaged").unwrap();
    assert_eq!(peek(), None);
    assert_eq!(files(dir.path()).len(), 2);
    assert_eq!(Store::peek(&dir.path().join("none"), digest).unwrap(), None);
}

#[tokio::test]
async fn what_was_never_put_is_missing() {
    let (_dir, store) = mk_store();
    let digest = Digest::of(b"other");
    assert_eq!(store.get(digest).await.unwrap(), None);
    assert_eq!(store.stat(digest).await.unwrap(), None);
    assert_eq!(store.get_artefact(ENGINE, digest).await.unwrap(), None);
    assert_eq!(store.stat_artefact(ENGINE, digest).await.unwrap(), None);
    assert_eq!(store.read_at(digest, 0, 1).await.unwrap(), None);
}

#[tokio::test]
async fn a_digest_that_does_not_fit_is_refused() {
    let (dir, store) = mk_store();
    let refused = store
        .put_expected(Digest::of(b"a"), Bytes::from_static(b"b"))
        .await;
    assert!(matches!(refused, Err(Error::Mismatch { .. })));
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn damaged_files_are_removed_and_can_be_put_again() {
    for damage in ["", "modul", "Module", "module and more"] {
        let (dir, store) = mk_store();
        let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
        fs::write(file_of(&dir, digest), damage).unwrap();
        assert_eq!(store.get(digest).await.unwrap(), None, "{damage}");
        assert!(files(dir.path()).is_empty(), "{damage}");
        assert_eq!(store.disk.damaged().get(), 1, "{damage}");
        store.put(Bytes::from_static(b"module")).await.unwrap();
        assert_eq!(store.get(digest).await.unwrap().unwrap(), "module");
    }
}

#[tokio::test]
async fn putting_again_heals_a_damaged_file() {
    let (dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    fs::write(file_of(&dir, digest), "Module").unwrap();
    store.put(Bytes::from_static(b"module")).await.unwrap();
    assert_eq!(fs::read(file_of(&dir, digest)).unwrap(), b"module");
}

#[tokio::test]
async fn readers_share_verified_bytes() {
    let (dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    let loads = (0..50).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.get(digest).await.unwrap().unwrap() })
    });
    let mut held = Vec::new();
    for load in loads.collect::<Vec<_>>() {
        held.push(load.await.unwrap());
    }
    assert!(held.iter().all(|b| b.as_ptr() == held[0].as_ptr()));
    // Not read again: the file is no longer there.
    fs::remove_file(file_of(&dir, digest)).unwrap();
    assert_eq!(store.get(digest).await.unwrap().unwrap(), "module");
}

#[tokio::test]
async fn chunks_are_cut_without_a_copy() {
    let (_dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"0123456789")).await.unwrap();
    let whole = store.get(digest).await.unwrap().unwrap();
    let part = store.read_at(digest, 4, 3).await.unwrap().unwrap();
    assert_eq!(part, "456");
    assert_eq!(part.as_ptr(), whole[4..].as_ptr());
    assert_eq!(store.read_at(digest, 8, 99).await.unwrap().unwrap(), "89");
    assert_eq!(store.read_at(digest, 10, 1).await.unwrap().unwrap(), "");
    for offset in [11, u64::MAX] {
        let beyond = store.read_at(digest, offset, 1).await;
        assert!(matches!(beyond, Err(Error::OutOfRange { size: 10, .. })));
    }
}

#[tokio::test]
async fn artefacts_belong_to_one_engine() {
    let (_dir, store) = mk_store();
    let module = Digest::of(b"module");
    let put = store
        .put_artefact(ENGINE, module, Bytes::from_static(b"native"))
        .await
        .unwrap();
    assert_eq!(put.digest, Digest::of(b"native"));
    assert_eq!(put.size, 6);
    assert_eq!(
        store.stat_artefact(ENGINE, module).await.unwrap(),
        Some(put)
    );
    let native = store.get_artefact(ENGINE, module).await.unwrap().unwrap();
    assert_eq!(native, "native");
    assert_eq!(store.get_artefact("other", module).await.unwrap(), None);
}

#[tokio::test]
async fn a_new_artefact_replaces_the_cached_one() {
    let (_dir, store) = mk_store();
    let module = Digest::of(b"module");
    for native in ["first", "second"] {
        let stat = store
            .put_artefact(ENGINE, module, Bytes::from(native))
            .await
            .unwrap();
        let read = store.get_artefact(ENGINE, module).await.unwrap().unwrap();
        assert_eq!(
            (read.as_ref(), Digest::of(&read)),
            (native.as_bytes(), stat.digest)
        );
    }
}

#[tokio::test]
async fn a_poisoned_artefact_is_not_given_out() {
    let (dir, store) = mk_store();
    let module = Digest::of(b"module");
    let put = || store.put_artefact(ENGINE, module, Bytes::from_static(b"native"));
    put().await.unwrap();
    let file = files(dir.path()).remove(0);
    let sound = fs::read(&file).unwrap();
    for cut in [0, 31, 32, sound.len() - 1] {
        put().await.unwrap();
        fs::write(&file, &sound[..cut]).unwrap();
        assert_eq!(store.get_artefact(ENGINE, module).await.unwrap(), None);
    }
    for flip in [0, 31, 32, sound.len() - 1] {
        put().await.unwrap();
        let mut poisoned = sound.clone();
        poisoned[flip] ^= 1;
        fs::write(&file, &poisoned).unwrap();
        assert_eq!(store.get_artefact(ENGINE, module).await.unwrap(), None);
    }
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn a_fingerprint_can_not_name_a_place_outside() {
    let (dir, store) = mk_store();
    let module = Digest::of(b"module");
    store
        .put_artefact("../../../tmp/x/\0", module, Bytes::from_static(b"n"))
        .await
        .unwrap();
    let [file] = files(dir.path()).try_into().unwrap();
    assert!(file.starts_with(dir.path().join("artefacts")));
    assert_eq!(file.file_name().unwrap().to_str().unwrap(), module.hex());
}

#[tokio::test]
async fn collection_never_removes_what_is_named() {
    let (_dir, store) = mk_store();
    let used = store.put(Bytes::from_static(b"used")).await.unwrap();
    let unused = store.put(Bytes::from_static(b"unused")).await.unwrap();
    for (engine, module) in [(ENGINE, used), (ENGINE, unused), ("old", unused)] {
        store
            .put_artefact(engine, module, Bytes::from_static(b"native"))
            .await
            .unwrap();
    }
    let collected = store.collect(keep(&[used]), after(27)).await.unwrap();
    assert_eq!(collected.files, 3);
    assert_eq!(collected.bytes, 6 + 2 * (32 + 6));
    assert_eq!(store.list().await.unwrap(), [used]);
    assert!(store.stat_artefact(ENGINE, used).await.unwrap().is_some());
    assert!(store.stat_artefact(ENGINE, unused).await.unwrap().is_none());
    assert!(store.stat_artefact("old", unused).await.unwrap().is_none());
    assert_eq!(store.get(unused).await.unwrap(), None);
    let again = store.collect(keep(&[used]), after(27)).await.unwrap();
    assert_eq!(again, Collected::default());
}

#[tokio::test]
async fn collected_bytes_leave_the_cache() {
    let (_dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    store.get(digest).await.unwrap().unwrap();
    store.collect(keep(&[]), after(0)).await.unwrap();
    assert_eq!(store.get(digest).await.unwrap(), None);
}

#[tokio::test]
async fn artefacts_of_a_named_module_stay_while_an_engine_uses_them() {
    let (_dir, store) = mk_store();
    let module = store.put(Bytes::from_static(b"module")).await.unwrap();
    for engine in [ENGINE, "old"] {
        let native = Bytes::from_static(b"native");
        store.put_artefact(engine, module, native).await.unwrap();
    }
    let unknown = Keep {
        engine: None,
        ..keep(&[module])
    };
    let month = 30 * 24 * 60;
    for (keep, now) in [
        (keep(&[module]), after(27)),
        (keep(&[module]), after(23 * 60)),
        (unknown, after(month)),
    ] {
        let collected = store.collect(keep, now).await.unwrap();
        assert_eq!(collected, Collected::default());
    }
    let collected = store.collect(keep(&[module]), after(25 * 60)).await;
    assert_eq!(collected.unwrap().files, 1);
    assert!(store.stat_artefact("old", module).await.unwrap().is_none());
    let collected = store.collect(keep(&[module]), after(month)).await;
    assert_eq!(collected.unwrap().files, 0);
    assert!(store.stat_artefact(ENGINE, module).await.unwrap().is_some());
}

#[tokio::test]
async fn artefact_that_was_asked_for_is_in_use() {
    let (dir, store) = mk_store();
    let module = store.put(Bytes::from_static(b"module")).await.unwrap();
    let native = Bytes::from_static(b"native");
    store.put_artefact("old", module, native).await.unwrap();
    let artefacts = dir.path().join("artefacts");
    let file = files(&artefacts).remove(0);
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(48 * 3600))
        .unwrap();
    store.stat_artefact("old", module).await.unwrap().unwrap();
    let collected = store.collect(keep(&[module]), after(0)).await;
    assert_eq!(collected.unwrap().files, 0);
}

#[tokio::test]
async fn young_files_stay() {
    let (_dir, store) = mk_store();
    store.put(Bytes::from_static(b"module")).await.unwrap();
    let hour = Keep {
        younger_than: Duration::from_secs(3600),
        ..Keep::default()
    };
    let collect = async |now| store.collect(hour.clone(), now).await.unwrap().files;
    assert_eq!(collect(after(59)).await, 0);
    assert_eq!(collect(after(61)).await, 1);
}

#[tokio::test]
async fn module_that_is_put_again_is_young() {
    let (dir, store) = mk_store();
    let digest = store.put(Bytes::from_static(b"module")).await.unwrap();
    let file = fs::File::options()
        .write(true)
        .open(file_of(&dir, digest))
        .unwrap();
    let old = SystemTime::now() - Duration::from_secs(7200);
    file.set_modified(old).unwrap();
    // Put again by somebody who is about to name it.
    store.put(Bytes::from_static(b"module")).await.unwrap();
    let hour = Keep {
        younger_than: Duration::from_secs(3600),
        ..Keep::default()
    };
    assert_eq!(store.collect(hour, after(0)).await.unwrap().files, 0);
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let (dir, store) = mk_store();
    let large = Bytes::from(vec![0; MAX_MODULE_BYTES + 1]);
    let refused = store.put(large.clone()).await;
    assert!(matches!(
        refused,
        Err(Error::TooLarge { what: "module", .. })
    ));
    let refused = store.put_expected(Digest::of(b""), large).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn an_interrupted_write_is_cleared_at_start() {
    let (dir, store) = mk_store();
    drop(store);
    fs::write(dir.path().join("tmp/1-0"), "half").unwrap();
    Store::open(dir.path()).unwrap();
    assert!(files(dir.path()).is_empty());
}

#[tokio::test]
async fn an_unreadable_file_is_an_error_and_not_missing() {
    let (dir, store) = mk_store();
    let digest = Digest::of(b"module");
    fs::create_dir(file_of(&dir, digest)).unwrap();
    let error = store.get(digest).await.unwrap_err().to_string();
    assert!(error.starts_with("failed to read "), "{error}");
    assert!(error.contains(&digest.hex()), "{error}");
}

#[test]
fn a_directory_that_can_not_be_made_is_named() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("modules"), "").unwrap();
    let error = Store::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("modules"), "{error}");
}

/// A limit on file sizes stands in for a full disk: the system refuses in the middle
/// of a write. It holds for a whole process, hence a process of its own.
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let dir = TempDir::new().unwrap();
    // With the signal ignored the write fails instead of ending the process.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact store::tests::in_a_full_disk";
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("ASSENT_TEST_FULL_DISK", dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&status.stdout);
    assert!(output.contains("1 passed"), "{output}");
    assert_eq!(status.status.signal(), None);
    assert_eq!(status.status.code(), Some(0), "{output}");
    assert!(files(dir.path()).is_empty());
}

/// The other half of the test above; alone it has nothing to do.
#[tokio::test]
async fn in_a_full_disk() {
    let Some(dir) = std::env::var_os("ASSENT_TEST_FULL_DISK") else {
        return;
    };
    let store = Store::open(Path::new(&dir)).unwrap();
    let error = store.put(Bytes::from(vec![1; 100_000])).await.unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("failed to write "), "{error}");
    assert!(error.contains("free space"), "{error}");
}
