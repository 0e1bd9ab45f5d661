//! From a manifest to a verdict, and on.

use std::collections::BTreeSet;

use assent_e2e::{
    Evaluator, Options, Up, client::is, eventually, manifest::Policy, module, up::condition,
};
use assent_proto::v1::RouteState;

#[tokio::test]
async fn policy_is_applied_enforced_edited_and_drained() {
    let options = Options::replicas(3).file("deny.wasm", module::deny_all("not here"));
    let up = Up::start(options.args(&["--drain-seconds", "2"])).await;
    assert_eq!(up.admit().await["allowed"], true, "there is no policy yet");

    up.apply("p", &Policy::cluster("p").module("deny.wasm"));
    let object = up.wait_enforced("p", 1).await;
    assert_eq!(object["status"]["rollout"]["desired"], 3);
    assert_eq!(object["status"]["rollout"]["applied"], 3);
    for kind in ["Accepted", "Programmed", "Enforced", "Ready"] {
        let found = condition(&object, kind);
        assert_eq!(found["status"], "True", "{kind}: {object:#}");
        assert_eq!(found["observedGeneration"], 1);
    }
    let answer = up.admit().await;
    assert_eq!(answer["allowed"], false);
    assert!(answer.to_string().contains("not here"), "{answer}");

    // An edit is a new generation, and takes the place of the old one everywhere.
    up.apply("p", &Policy::cluster("p"));
    let object = up.wait_enforced("p", 2).await;
    assert_eq!(object["metadata"]["uid"], object["metadata"]["uid"]);
    assert_eq!(up.admit().await["allowed"], true);
    let drained = async || up.fetch("default").await.unwrap().routes.len() == 1;
    eventually("the old revision has left", drained).await;

    // Back to denying, by the mode this time.
    up.apply(
        "p",
        &Policy::cluster("p")
            .module("deny.wasm")
            .line("mode: monitor"),
    );
    up.wait_enforced("p", 3).await;
    assert_eq!(up.admit().await["allowed"], true, "monitor lets it through");

    up.remove("p.yaml");
    up.wait_gone("p").await;
    let empty = async || up.fetch("default").await.unwrap().policies.is_empty();
    eventually("nothing of it is left", empty).await;
    assert_eq!(up.admit().await["allowed"], true);
}

#[tokio::test]
async fn retired_path_is_answered_during_and_after_the_drain() {
    let options = Options::default().file("deny.wasm", module::deny_all("old"));
    let up = Up::start(options.args(&["--drain-seconds", "3"])).await;
    let evaluator = Evaluator::start(&up.url(), "outside").await;
    up.apply("p", &Policy::cluster("p").module("deny.wasm"));
    up.wait_enforced("p", 1).await;
    let old = up.fetch("default").await.unwrap().routes[0].path.clone();
    assert_eq!(
        evaluator.validate(&old).await.1["response"]["allowed"],
        false
    );
    up.apply("p", &Policy::cluster("p"));
    up.wait_enforced("p", 2).await;
    // While it drains its own revision answers it.
    let (code, verdict) = evaluator.validate(&old).await;
    assert_eq!(
        (code, &verdict["response"]["allowed"]),
        (200, &false.into()),
        "{verdict}"
    );
    let left = async || up.fetch("default").await.unwrap().routes.len() == 1;
    eventually("the old route has left", left).await;
    let gone = async || evaluator.validate(&old).await.1["response"]["allowed"] == true;
    eventually("the active revision answers for it", gone).await;
    assert_eq!(evaluator.validate(&old).await.0, 200);
    assert!(evaluator.metric("assent_retired_path_requests_total").await > 0.0);
    let (code, _) = evaluator.validate("cluster/nobody/1-00000000").await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn bad_settings_are_refused_with_the_modules_message() {
    let options = Options::replicas(3).file("strict.wasm", module::strict_settings());
    let up = Up::start(options).await;
    let policy = || Policy::cluster("p").module("strict.wasm");
    up.apply("p", &policy());
    up.wait_enforced("p", 1).await;
    up.apply("p", &policy().settings("{a: 1}"));
    let object = up.wait_accepted("p", 2, "Invalid").await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(message.contains("no such setting here"), "{message}");
    assert_eq!(object["status"]["active"]["generation"], 1);
    assert_eq!(
        condition(&object, "Ready")["reason"],
        "LastGood",
        "{object:#}"
    );
    assert_eq!(
        condition(&object, "Enforced")["status"],
        "False",
        "the edit is not in force"
    );
    // Nothing of it was distributed.
    let set = up.fetch("default").await.unwrap();
    assert_eq!(set.policies.len(), 1);
    up.apply("p", &policy());
    up.wait_enforced("p", 3).await;
}

#[tokio::test]
async fn invalid_module_is_refused_and_other_policies_serve() {
    let options = Options::replicas(3)
        .file("bad.wasm", module::garbage())
        .file("loop.wasm", endless())
        .policy("good");
    let up = Up::start(options).await;
    for name in ["bad", "loop"] {
        up.apply(name, &Policy::cluster(name).module(&format!("{name}.wasm")));
        let refused = |p: &serde_json::Value| condition(p, "Accepted")["status"] == "False";
        let object = up.wait(name, "refused", refused).await;
        assert_eq!(condition(&object, "Ready")["status"], "False");
        assert!(
            !condition(&object, "Accepted")["message"]
                .as_str()
                .unwrap()
                .is_empty()
        );
    }
    up.wait_enforced("good", 1).await;
    assert_eq!(up.admit().await["allowed"], true);
}

/// Does not end when its settings are looked at.
fn endless() -> Vec<u8> {
    let text = r#"(module
      (import "wapc" "__guest_response" (func $response (param i32 i32)))
      (memory (export "memory") 1)
      (func (export "__guest_call") (param i32 i32) (result i32) (loop $l (br $l)) (i32.const 1)))"#;
    wat::parse_str(text).unwrap()
}

#[tokio::test]
async fn recreated_policy_is_a_new_policy() {
    let up = Up::start(Options::replicas(3).args(&["--drain-seconds", "1"])).await;
    let mut uids = BTreeSet::new();
    let mut paths = BTreeSet::new();
    for _ in 0..3 {
        up.apply("p", &Policy::cluster("p"));
        let object = up.wait_enforced("p", 1).await;
        uids.insert(object["metadata"]["uid"].as_str().unwrap().to_owned());
        let revision = object["status"]["active"]["revision"].as_str().unwrap();
        paths.insert(format!("cluster/p/{revision}"));
        up.remove("p.yaml");
        up.wait_gone("p").await;
    }
    assert_eq!((uids.len(), paths.len()), (3, 3), "{paths:?}");
}

#[tokio::test]
async fn namespaced_policies_apply_to_their_own_namespace_only() {
    let options = Options::replicas(3).file("deny.wasm", module::deny_all("not in this shop"));
    let up = Up::start(options).await;
    up.apply(
        "other",
        &Policy::namespaced("warehouse", "p").module("deny.wasm"),
    );
    up.wait_enforced("p", 1).await;
    assert_eq!(up.admit().await["allowed"], true);
    up.apply("own", &Policy::namespaced("shop", "q").module("deny.wasm"));
    up.wait_enforced("q", 1).await;
    assert_eq!(up.admit().await["allowed"], false);
}

#[tokio::test]
async fn external_evaluators_count_while_connected() {
    let up = Up::start(
        Options::replicas(1)
            .policy("p")
            .args(&["--replica-grace", "1"]),
    )
    .await;
    up.wait_enforced("p", 1).await;
    let mut outside = Evaluator::start(&up.url(), "outside").await;
    let counts = |n: i32| move |p: &serde_json::Value| p["status"]["rollout"]["desired"] == n;
    up.wait("p", "counted twice", counts(2)).await;
    outside.process.kill();
    up.wait("p", "counted once", counts(1)).await;
    up.wait_enforced("p", 1).await;
}

#[tokio::test]
async fn client_observes_the_flip() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    let node = assent_e2e::client::node("client");
    let mut client = assent_e2e::Delta::connect(up.channel().await, node).await;
    client.follow_active("cluster/p", 1).await;
    up.apply("p", &Policy::cluster("p").settings("{n: 2}"));
    client.follow_active("cluster/p", 2).await;
    assert!(is(client.held(), "cluster/p", 1, RouteState::Retired));
}
