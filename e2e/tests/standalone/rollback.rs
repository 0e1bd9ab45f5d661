//! Going back to an earlier revision.

use assent_e2e::{
    Options, Up,
    manifest::Policy,
    module,
    process::{assent, text},
};

const ANNOTATION: &str = "policies.assent.dev/rollback-to";

/// Generation 1 denies, generation 2 allows.
async fn two_generations() -> Up {
    let up =
        Up::start(Options::replicas(3).file("p.wasm", module::deny_all("by generation 1"))).await;
    up.apply("p", &Policy::cluster("p").module("p.wasm"));
    up.wait_enforced("p", 1).await;
    // The file name is the same: only the digest differs.
    up.write("p.wasm", module::accept_all(""));
    up.wait_enforced("p", 2).await;
    assert_eq!(up.admit().await["allowed"], true);
    up
}

#[tokio::test]
async fn undo_pins_the_module() {
    let up = two_generations().await;
    let (url, first) = (up.url(), up.policy("p").await.unwrap());
    let done = assent(&["rollout", "undo", "p", "--server", &url, "-o", "json"]);
    assert!(done.status.success(), "{}", text(&done));
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&done["fromGeneration"], &done["newGeneration"]),
        (&1.into(), &3.into())
    );
    let object = up.wait_enforced("p", 3).await;
    assert_eq!(object["metadata"]["uid"], first["metadata"]["uid"]);
    let answer = up.admit().await;
    assert_eq!(answer["allowed"], false);
    assert!(answer.to_string().contains("by generation 1"), "{answer}");
    let waited = assent(&["rollout", "status", "p", "--server", &url]);
    assert_eq!(waited.status.code(), Some(0), "{}", text(&waited));
    // It holds until the manifest changes.
    up.apply(
        "p",
        &Policy::cluster("p").module("p.wasm").settings("{n: 1}"),
    );
    up.wait_enforced("p", 4).await;
    assert_eq!(up.admit().await["allowed"], true);
}

#[tokio::test]
async fn undo_reports_missing_revisions() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    up.wait_enforced("p", 1).await;
    let url = up.url();
    for args in [&["p"][..], &["p", "--to-generation", "7"], &["nobody"]] {
        let mut all = vec!["rollout", "undo", "--server", &url];
        all.extend(args);
        let refused = assent(&all);
        assert_eq!(
            refused.status.code(),
            Some(1),
            "{args:?}: {}",
            text(&refused)
        );
        assert!(!refused.stderr.is_empty());
    }
    assert_eq!(up.policy("p").await.unwrap()["metadata"]["generation"], 1);
}

#[tokio::test]
async fn annotation_rolls_back_once() {
    let up = two_generations().await;
    let policy = Policy::cluster("p").module("p.wasm");
    up.apply("p", &policy.clone().annotation(ANNOTATION, "1"));
    let object = up.wait_enforced("p", 3).await;
    assert_eq!(object["status"]["active"]["generation"], 3);
    assert_eq!(up.admit().await["allowed"], false);
    // It is done once; the annotation that stays does nothing more.
    up.apply(
        "p",
        &policy
            .clone()
            .settings("{n: 1}")
            .annotation(ANNOTATION, "1"),
    );
    up.wait_enforced("p", 4).await;
    assert_eq!(up.admit().await["allowed"], true);
    up.apply(
        "p",
        &policy.settings("{n: 1}").annotation(ANNOTATION, "previous"),
    );
    up.wait_enforced("p", 5).await;
    assert_eq!(up.admit().await["allowed"], false);
}

#[tokio::test]
async fn rollback_survives_restart() {
    let mut up = two_generations().await;
    let url = up.url();
    assert!(
        assent(&["rollout", "undo", "p", "--server", &url])
            .status
            .success()
    );
    up.wait_enforced("p", 3).await;
    let version = async |up: &Up| up.fetch("default").await.unwrap().version_info;
    let before = version(&up).await;
    up.process.kill();
    up.restart().await;
    up.wait_enforced("p", 3).await;
    assert_eq!(up.admit().await["allowed"], false);
    // Whether the old one still drains is the only difference that there may be.
    if up.fetch("default").await.unwrap().routes.len() == 2 {
        assert_eq!(version(&up).await, before);
    }
}

#[tokio::test]
async fn undo_needs_the_token_of_the_user_who_started_it() {
    let up = two_generations().await;
    let (url, args) = (up.url(), ["rollout", "undo", "p", "--server"]);
    let elsewhere = tempfile::tempdir().unwrap();
    // Another user has other directories, and cannot read this one's files.
    let other = |more: &[&str]| {
        std::process::Command::new(assent_e2e::process::program("assent"))
            .args(args)
            .arg(&url)
            .args(more)
            .env("HOME", elsewhere.path())
            .env("XDG_RUNTIME_DIR", elsewhere.path())
            .output()
            .unwrap()
    };
    let refused = other(&[]);
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(
        text(&refused).contains("--token-file"),
        "{}",
        text(&refused)
    );
    let guess = elsewhere.path().join("guess");
    std::fs::write(&guess, "guess").unwrap();
    let guessed = other(&["--token-file", guess.to_str().unwrap()]);
    assert!(!guessed.status.success(), "{}", text(&guessed));
    assert_eq!(up.policy("p").await.unwrap()["metadata"]["generation"], 2);
    // Looking is free.
    let looked = std::process::Command::new(assent_e2e::process::program("assent"))
        .args(["status", "--server", &url])
        .env("HOME", elsewhere.path())
        .env("XDG_RUNTIME_DIR", elsewhere.path())
        .output()
        .unwrap();
    assert!(looked.status.success(), "{}", text(&looked));

    let token = up.state().join("token");
    let mode = std::os::unix::fs::PermissionsExt::mode(&token.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let done = other(&["--token-file", token.to_str().unwrap()]);
    assert!(done.status.success(), "{}", text(&done));
    up.wait_enforced("p", 3).await;
}

#[tokio::test]
async fn other_host_names_are_refused() {
    let up = Up::start(Options::default().policy("p")).await;
    for (host, expect) in [
        ("localhost:1", "HTTP/1.1 200"),
        ("127.0.0.1", "HTTP/1.1 200"),
        ("rebound.example", "HTTP/1.1 421"),
    ] {
        let mut socket = std::net::TcpStream::connect(up.http).unwrap();
        let request = format!("GET /status HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut socket, &mut answer).unwrap();
        assert!(answer.starts_with(expect), "{host}: {answer}");
    }
}
