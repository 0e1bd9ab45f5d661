//! `--state`: what survives a restart, and exclusive use.

use std::process::Command;

use assent_e2e::{
    Delta, Options, Up,
    client::node,
    module,
    process::{Process, program, text},
    up::{condition, free_address},
};

#[tokio::test]
async fn restart_continues_with_the_same_state() {
    let options = Options::replicas(3)
        .file("deny.wasm", module::deny_all("before and after"))
        .file(
            "p.yaml",
            assent_e2e::manifest::Policy::cluster("p")
                .module("deny.wasm")
                .to_string(),
        );
    let mut up = Up::start(options.args(&["--drain-seconds", "1"])).await;
    let before = up.wait_enforced("p", 1).await;
    let mut client = Delta::connect(up.channel().await, node("client")).await;
    client.follow_active("cluster/p", 1).await;
    let held = client.held().clone();
    // Conditions have times in whole seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert!(up.process.terminate().success());
    // The module's file is gone, and nobody needs it.
    up.remove("deny.wasm");
    up.restart().await;
    let mut client = Delta::resume(up.channel().await, node("client"), &held).await;
    let response = client.next().await;
    assert!(response.no_change, "{response:?}");
    client.ack(&response).await;
    let after = up.wait_enforced("p", 1).await;
    for field in ["uid", "generation", "creationTimestamp"] {
        assert_eq!(
            before["metadata"][field], after["metadata"][field],
            "{field}"
        );
    }
    assert_eq!(before["status"]["active"], after["status"]["active"]);
    for kind in ["Accepted", "Programmed", "Enforced"] {
        let since = |object| condition(object, kind)["lastTransitionTime"].clone();
        assert_eq!(since(&before), since(&after), "{kind}");
    }
    let denied = async || up.admit().await["allowed"] == false;
    assent_e2e::eventually("its evaluators are back", denied).await;
}

#[tokio::test]
async fn change_during_downtime_is_observed() {
    let mut up = Up::start(Options::replicas(1).policy("p").policy("q")).await;
    up.wait_enforced("p", 1).await;
    up.wait_enforced("q", 1).await;
    up.process.kill();
    up.apply(
        "p",
        &assent_e2e::manifest::Policy::cluster("p").settings("{n: 2}"),
    );
    up.remove("q.yaml");
    up.restart().await;
    up.wait_enforced("p", 2).await;
    up.wait_gone("q").await;
}

#[tokio::test]
async fn state_directory_belongs_to_one_process() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    let mut second = Command::new(program("assent"));
    second
        .arg("up")
        .arg("--policies")
        .arg(up.policies())
        .arg("--state")
        .arg(up.state());
    second.args([
        "--replicas",
        "0",
        "--discovery",
        &free_address().to_string(),
    ]);
    second.args(["--http", &free_address().to_string()]);
    let log = up.dir().join("second");
    let status = Process::start(&mut second, &log).wait();
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains(&*up.state().to_string_lossy()), "{said}");
    up.wait_enforced("p", 1).await;
}

#[tokio::test]
async fn damaged_state_is_set_aside_and_reported() {
    let mut up = Up::start(Options::replicas(1).policy("p").policy("q")).await;
    up.wait_enforced("p", 1).await;
    up.wait_enforced("q", 1).await;
    up.process.kill();
    let records = record_files(&up.state());
    assert!(records.len() >= 2, "{records:?}");
    std::fs::write(&records[0], b"{ not json").unwrap();
    up.restart().await;
    // One of them starts again, the other continues; both are enforced.
    up.wait_enforced("p", 1).await;
    up.wait_enforced("q", 1).await;
    assert!(up.log().contains("starts from nothing"), "{}", up.log());
}

fn record_files(state: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![state.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("evaluators") {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "json") {
                let content = std::fs::read_to_string(&path).unwrap();
                if content.contains("\"policy\"") {
                    found.push(path);
                }
            }
        }
    }
    found
}

#[test]
fn insecure_flag_combinations_are_refused() {
    let port = free_address().port();
    let (off, http) = (format!("0.0.0.0:{port}"), free_address().to_string());
    let cases: [&[&str]; 3] = [
        &["--discovery", &off, "--http", &http],
        &["--discovery", &free_address().to_string(), "--http", &off],
        &[
            "--discovery",
            &off,
            "--http",
            &http,
            "--tls-cert",
            "/nowhere",
        ],
    ];
    let scratch = tempfile::tempdir().unwrap();
    for flags in cases {
        let output = Command::new(program("assent"))
            .args(["up", "--replicas", "0", "--policies"])
            .arg(scratch.path())
            .args(flags)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{flags:?}");
        let said = text(&output);
        assert!(
            said.contains("loopback") || said.contains("tls"),
            "{flags:?}: {said}"
        );
    }
}
