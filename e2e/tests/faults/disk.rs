//! F18: a disk that is full, with a small file system that the test mounts.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use assent_e2e::{Evaluator, Options, QUIET, Up, eventually, manifest::Policy, module};

/// A small file system of its own; gone when the test ends, however it ends.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .output()
            .unwrap();
        assert!(
            mounted.status.success(),
            "failed to mount a small tmpfs, which this test needs (run it as root): {}",
            String::from_utf8_lossy(&mounted.stderr)
        );
        Self(at)
    }

    /// Takes all that is left.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        for size in [64 << 10, 1 << 10, 1] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_control_plane_stops_only_changes() {
    let dir = tempfile::tempdir().unwrap();
    let small = Small::mount(dir.path().join("state"), "16m");
    let options = Options {
        state: Some(small.0.clone()),
        ..Options::default().file("deny.wasm", module::deny_all("still in force"))
    };
    let mut up = Up::start(options).await;
    let evaluator = Evaluator::start(&up.url(), "a").await;
    up.apply("p", &Policy::cluster("p").module("deny.wasm"));
    up.wait_enforced("p", 1).await;
    let before = up.fetch("default").await.unwrap();
    let filler = small.fill();
    // A new module has no room.
    up.write("new.wasm", module::large(100));
    up.apply("p", &Policy::cluster("p").module("new.wasm"));
    up.apply("q", &Policy::cluster("q"));
    up.wait("p", "seen", |p| p["metadata"]["generation"] == 2)
        .await;
    tokio::time::sleep(QUIET).await;
    assert!(up.process.ended().is_none(), "{}", up.log());
    let path = &before.routes[0].path;
    let (code, verdict) = evaluator.validate(path).await;
    assert_eq!(
        (code, &verdict["response"]["allowed"]),
        (200, &false.into()),
        "{verdict}"
    );
    let object = up.policy("p").await.unwrap();
    assert_eq!(object["status"]["active"]["generation"], 1, "{object:#}");
    // With room again everything goes its way, without anybody's help.
    fs::remove_file(filler).unwrap();
    up.wait_enforced("p", 2).await;
    up.wait_enforced("q", 1).await;
    // And what is on disk is whole.
    up.process.kill();
    up.restart().await;
    up.wait_enforced("p", 2).await;
    drop(up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_evaluator_costs_only_the_last_good_set() {
    let up = Up::start(
        Options::default()
            .policy("p")
            .args(&["--drain-seconds", "1"]),
    )
    .await;
    let dir = tempfile::tempdir().unwrap();
    let small = Small::mount(dir.path().join("state"), "2m");
    let state = |small: &Small| small.0.to_str().unwrap().to_owned();
    let mut evaluator = Evaluator::start_at(&up.url(), "a", Path::new(&state(&small))).await;
    up.wait_enforced("p", 1).await;
    small.fill();
    up.apply(
        "p",
        &Policy::cluster("p").settings(&format!("{{text: {}}}", "x".repeat(100_000))),
    );
    let object = up.wait_enforced("p", 2).await;
    let revision = object["status"]["active"]["revision"].as_str().unwrap();
    assert_eq!(
        evaluator.validate(&format!("cluster/p/{revision}")).await.0,
        200
    );
    // It starts again with what it could keep, and asks for the rest.
    evaluator.restart().await;
    evaluator.wait_ready().await;
    let answers = async || evaluator.validate(&format!("cluster/p/{revision}")).await.0 == 200;
    eventually("it answers by the newest revision", answers).await;
    up.wait_enforced("p", 2).await;
    drop(evaluator);
}
