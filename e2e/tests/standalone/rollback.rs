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
