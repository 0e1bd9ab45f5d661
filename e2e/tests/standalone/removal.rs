//! F28: absence of data never removes a policy.

use std::fs;

use assent_e2e::{Delta, Options, QUIET, Up, client::node, eventually, manifest::Policy, module};

fn twelve() -> Options {
    let options = Options::replicas(1).args(&["--drain-seconds", "1"]);
    (0..12).fold(options, |options, n| options.policy(&format!("p{n}")))
}

async fn enforced(up: &Up, count: usize) {
    for n in 0..count {
        up.wait_enforced(&format!("p{n}"), 1).await;
    }
}

#[tokio::test]
async fn vanished_directory_removes_nothing() {
    let options = Options::replicas(1)
        .file("deny.wasm", module::deny_all("still here"))
        .file(
            "p.yaml",
            Policy::cluster("p").module("deny.wasm").to_string(),
        );
    let up = Up::start(options).await;
    up.wait_enforced("p", 1).await;
    let aside = up.dir().join("aside");
    fs::rename(up.policies(), &aside).unwrap();
    let told = async || up.log().contains("the directory of policies is missing");
    eventually("it is told", told).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(up.admit().await["allowed"], false);
    up.wait_enforced("p", 1).await;
    // It comes back with another policy in the place of this one: now it is known to be gone.
    fs::remove_file(aside.join("p.yaml")).unwrap();
    fs::write(aside.join("q.yaml"), Policy::cluster("q").to_string()).unwrap();
    fs::rename(&aside, up.policies()).unwrap();
    up.wait_enforced("q", 1).await;
    up.wait_gone("p").await;
}

#[tokio::test]
async fn mass_removal_is_held_back_and_reported() {
    let up = Up::start(twelve()).await;
    enforced(&up, 12).await;
    for n in 0..12 {
        up.remove(&format!("p{n}.yaml"));
    }
    eventually("it is told", async || {
        up.log().contains("--allow-mass-removal")
    })
    .await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(up.objects().await.len(), 12);
    let set = up.fetch("default").await.unwrap();
    assert_eq!(set.policies.len(), 12);
    // Put back, all is as it was.
    for n in 0..12 {
        let name = format!("p{n}");
        up.apply(&name, &Policy::cluster(&name));
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(
        up.fetch("default").await.unwrap().version_info,
        set.version_info
    );
}

#[tokio::test]
async fn restart_does_not_perform_a_mass_removal() {
    let mut up = Up::start(twelve()).await;
    enforced(&up, 12).await;
    let version = up.fetch("default").await.unwrap().version_info;
    up.process.kill();
    for n in 0..12 {
        up.remove(&format!("p{n}.yaml"));
    }
    up.restart().await;
    let mut stream = Delta::connect(up.channel().await, node("client")).await;
    let response = stream.next().await;
    assert_eq!(response.version_info, version);
    stream.ack(&response).await;
    stream.silent().await;
}

#[tokio::test]
async fn mass_removal_is_performed_if_allowed() {
    let up = Up::start(twelve().args(&["--allow-mass-removal"])).await;
    enforced(&up, 12).await;
    for n in 0..12 {
        up.remove(&format!("p{n}.yaml"));
    }
    eventually("all are gone", async || up.objects().await.is_empty()).await;
    let empty = async || up.fetch("default").await.unwrap().policies.is_empty();
    eventually("nothing of them is left", empty).await;
}

#[tokio::test]
async fn few_policies_are_removed_without_a_flag() {
    let up = Up::start(twelve()).await;
    enforced(&up, 12).await;
    for n in 0..6 {
        up.remove(&format!("p{n}.yaml"));
    }
    eventually("half of them are gone", async || {
        up.objects().await.len() == 6
    })
    .await;
}
