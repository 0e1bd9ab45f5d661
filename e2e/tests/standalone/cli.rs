//! The commands that ask a running control plane: what they print, and their exit codes.

use assent_e2e::{
    Delta, Options, Up,
    client::node,
    manifest::Policy,
    module,
    process::{assent, text},
    up::{condition, free_address},
};
use assent_proto::v1::RouteState;
use serde_json::Value;

fn run(up: &Up, args: &[&str]) -> (i32, String) {
    let url = up.url();
    let all: Vec<&str> = args.iter().copied().chain(["--server", &url]).collect();
    let output = assent(&all);
    (output.status.code().unwrap(), text(&output))
}

fn json(up: &Up, args: &[&str]) -> Value {
    let url = up.url();
    let all: Vec<&str> = args
        .iter()
        .copied()
        .chain(["--server", &url, "-o", "json"])
        .collect();
    let output = assent(&all);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {}", text(&output)))
}

#[tokio::test]
async fn status_shows_enforcement_and_reasons() {
    let up = Up::start(
        Options::replicas(2)
            .policy("good")
            .file("bad.wasm", module::garbage()),
    )
    .await;
    up.apply("bad", &Policy::cluster("bad").module("bad.wasm"));
    up.wait_enforced("good", 1).await;
    let refused = |p: &Value| condition(p, "Accepted")["status"] == "False";
    up.wait("bad", "refused", refused).await;
    let (code, said) = run(&up, &["status"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("good") && said.contains("bad"), "{said}");
    let (code, said) = run(&up, &["status", "good"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 of 2 replicas"), "{said}");
    let (code, said) = run(&up, &["status", "bad"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("WebAssembly"), "{said}");
    let (code, said) = run(&up, &["status", "nobody"]);
    assert_eq!(code, 1, "{said}");
    let list = json(&up, &["status"]);
    assert_eq!(list["policies"].as_array().unwrap().len(), 2);
    assert_eq!(
        list["version"],
        up.fetch("default").await.unwrap().version_info
    );
    assert_eq!(json(&up, &["status", "good"])["enforced"], true);
    let (code, said) = run(&up, &["rollout", "status", "bad"]);
    assert_eq!(code, 1, "{said}");
    let (code, said) = run(&up, &["rollout", "status", "good"]);
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn replicas_shows_what_each_serves() {
    let up = Up::start(Options::replicas(2).policy("p")).await;
    up.wait_enforced("p", 1).await;
    let current = async || run(&up, &["replicas"]).0 == 0;
    assent_e2e::eventually("both are current", current).await;
    let (_, said) = run(&up, &["replicas"]);
    assert!(
        said.contains("evaluator-0") && said.contains("evaluator-1"),
        "{said}"
    );
    // Replicas receive the flip a moment later; nothing follows after that.
    let settled = async || {
        let set = up.fetch("default").await.unwrap();
        set.routes.iter().all(|r| r.state() == RouteState::Active)
    };
    assent_e2e::eventually("the flip has gone out", settled).await;
    // One that refuses, with its reason.
    let mut client = Delta::connect(up.channel().await, node("stubborn")).await;
    let response = client.next().await;
    let revision = response.policies[0].revision.clone();
    client.reject(&response, &[&revision]).await;
    up.wait_replica("default", "stubborn", |r| !r.rejected.is_empty())
        .await;
    let (code, said) = run(&up, &["replicas", "--state", "rejected"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("stubborn") && said.contains("no such setting"),
        "{said}"
    );
    assert!(!said.contains("evaluator-0"), "{said}");
    let list = json(&up, &["replicas"]);
    assert_eq!(list["replicas"].as_array().unwrap().len(), 3);
    let (_, said) = run(&up, &["status", "p"]);
    assert!(said.contains("stubborn"), "{said}");
}

#[tokio::test]
async fn history_lists_revisions_newest_first() {
    let up = Up::start(Options::replicas(1).args(&["--drain-seconds", "1"])).await;
    for n in 1..4 {
        up.apply("p", &Policy::cluster("p").settings(&format!("{{n: {n}}}")));
        up.wait_enforced("p", n).await;
    }
    let list = json(&up, &["rollout", "history", "p"]);
    let generations: Vec<_> = list["revisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["generation"].clone())
        .collect();
    assert_eq!(generations, [3, 2, 1]);
    assert_eq!(list["revisions"][0]["phase"], "Active");
    let (code, said) = run(&up, &["rollout", "history", "p"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(&up, &["rollout", "history", "nobody"]);
    assert_eq!(code, 1, "{said}");
}

#[tokio::test]
async fn history_is_kept_up_to_its_limit() {
    let up = Up::start(Options::replicas(1).args(&["--drain-seconds", "0"])).await;
    for n in 1..6 {
        let policy = Policy::cluster("p").settings(&format!("{{n: {n}}}"));
        up.apply("p", &policy.line("revisionHistoryLimit: 2"));
        up.wait_enforced("p", n).await;
    }
    let trimmed = async || {
        let list = json(&up, &["rollout", "history", "p"]);
        list["revisions"].as_array().unwrap().len() == 3
    };
    assent_e2e::eventually("the active one and two more are kept", trimmed).await;
}

#[tokio::test]
async fn rollout_status_waits() {
    let up = Up::start(Options::default().policy("p")).await;
    let url = up.url();
    up.wait_accepted("p", 1, "Accepted").await;
    // Nobody is there to apply it.
    let waiting = assent(&[
        "rollout",
        "status",
        "p",
        "--server",
        &url,
        "--timeout",
        "1s",
    ]);
    assert_eq!(waiting.status.code(), Some(1), "{}", text(&waiting));
    let object = up.policy("p").await.unwrap();
    assert_eq!(condition(&object, "Programmed")["reason"], "NoReplicas");
    let waiter =
        tokio::task::spawn_blocking(move || assent(&["rollout", "status", "p", "--server", &url]));
    Delta::connect(up.channel().await, node("a"))
        .await
        .follow_active("cluster/p", 1)
        .await;
    let waited = waiter.await.unwrap();
    assert_eq!(waited.status.code(), Some(0), "{}", text(&waited));
}

#[test]
fn missing_control_plane_is_exit_code_2() {
    let url = format!("http://{}", free_address());
    for args in [
        &["status"][..],
        &["replicas"],
        &["rollout", "status", "p"],
        &["rollout", "history", "p"],
        &["rollout", "undo", "p"],
    ] {
        let all: Vec<&str> = args.iter().copied().chain(["--server", &url]).collect();
        let output = assent(&all);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(&url), "{args:?}: {}", text(&output));
    }
}
