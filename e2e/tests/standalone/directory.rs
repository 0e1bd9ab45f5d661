//! Contents of the directory, and how problems are reported.

use std::{fs, io::Write as _};

use assent_e2e::{Delta, Options, Up, client::node, manifest::Policy, module, up::condition};

#[tokio::test]
async fn bad_yaml_is_reported_with_its_position_until_fixed() {
    let up = Up::start(Options::replicas(1).policy("p").policy("q")).await;
    up.wait_enforced("p", 1).await;
    let good = Policy::cluster("p").to_string();
    up.write("p.yaml", good.replace("  rules:", "  rules: {"));
    let refused = |p: &serde_json::Value| condition(p, "Accepted")["status"] == "False";
    let object = up.wait("p", "refused", refused).await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(
        message.contains("p.yaml") && message.contains("line"),
        "{message}"
    );
    assert_eq!(
        object["status"]["active"]["generation"], 1,
        "it stays in force"
    );
    assert_eq!(up.admit().await["allowed"], true);
    up.wait_enforced("q", 1).await;
    up.write("p.yaml", &good);
    let object = up.wait_enforced("p", 1).await;
    assert_eq!(
        object["metadata"]["generation"], 1,
        "nothing was changed after all"
    );
}

#[tokio::test]
async fn object_that_was_never_valid_reports_its_errors() {
    let up = Up::start(Options::replicas(1)).await;
    let manifest = Policy::cluster("p")
        .line("mode: loud")
        .line("modee: protect");
    up.apply("p", &manifest);
    let object = up
        .wait("p", "refused", |p| {
            condition(p, "Accepted")["reason"] == "Invalid"
        })
        .await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(
        message.contains("mode") && message.contains("modee"),
        "{message}"
    );
}

#[tokio::test]
async fn missing_module_is_a_pull_error_until_it_exists() {
    let up = Up::start(Options::replicas(1)).await;
    up.apply("p", &Policy::cluster("p").module("later.wasm"));
    let object = up
        .wait("p", "waiting", |p| {
            condition(p, "Accepted")["reason"] == "PullError"
        })
        .await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(message.contains("later.wasm"), "{message}");
    up.write("later.wasm", module::accept_all("later"));
    up.wait_enforced("p", 1).await;
}

#[tokio::test]
async fn file_is_not_read_while_it_is_written() {
    let up = Up::start(Options::replicas(1).file("deny.wasm", module::deny_all("whole"))).await;
    // Each half alone is a valid manifest: the first one would allow.
    let first = Policy::cluster("p").to_string();
    let second = first
        .replace("accept.wasm", "deny.wasm")
        .replace("name: p", "name: q");
    let mut file = fs::File::create(up.policies().join("both.yaml")).unwrap();
    for piece in format!("{first}---\n{second}").as_bytes().chunks(40) {
        file.write_all(piece).unwrap();
        file.flush().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    drop(file);
    up.wait_enforced("p", 1).await;
    up.wait_enforced("q", 1).await;
    for object in up.objects().await {
        assert_eq!(object["metadata"]["generation"], 1, "{object:#}");
    }
}

#[tokio::test]
async fn first_of_two_manifests_with_one_name_stays() {
    let up = Up::start(Options::replicas(1).policy("a")).await;
    let before = up.wait_enforced("a", 1).await;
    up.write(
        "b.yaml",
        Policy::cluster("a").settings("{n: 2}").to_string(),
    );
    let conflicted = |p: &serde_json::Value| condition(p, "Accepted")["reason"] == "Conflicted";
    let object = up.wait("a", "conflicted", conflicted).await;
    let message = condition(&object, "Accepted")["message"].as_str().unwrap();
    assert!(
        message.contains("a.yaml") && message.contains("b.yaml"),
        "{message}"
    );
    assert_eq!(object["status"]["active"], before["status"]["active"]);
    up.remove("b.yaml");
    let object = up.wait_enforced("a", 1).await;
    assert_eq!(object["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn first_of_two_manifests_is_enforced_at_start() {
    let second = Policy::cluster("a").settings("{n: 2}").to_string();
    let up = Up::start(Options::replicas(1).policy("a").file("b.yaml", second)).await;
    let object = up.wait_enforced("a", 1).await;
    assert_eq!(condition(&object, "Accepted")["reason"], "Conflicted");
    assert_eq!(object["spec"]["settings"], serde_json::json!({}));
}

#[tokio::test]
async fn truncated_file_removes_nothing() {
    let one = |name: &str| Policy::cluster(name).to_string();
    let both = format!("{}---\n{}", one("first"), one("second"));
    let up = Up::start(
        Options::replicas(1)
            .policy("p")
            .file("both.yaml", both.clone()),
    )
    .await;
    let before = up.wait_enforced("second", 1).await;
    // Cut in the spec of the first: a sound document that is no sound policy.
    let cut = both.split("  module").next().unwrap().to_owned();
    up.write("both.yaml", cut);
    let refused = |p: &serde_json::Value| condition(p, "Accepted")["status"] == "False";
    up.wait("first", "refused", refused).await;
    let kept = up.wait("second", "refused", refused).await;
    assert_eq!(kept["status"]["active"], before["status"]["active"]);
    up.write("both.yaml", both);
    let healed = up.wait_enforced("second", 1).await;
    assert_eq!(healed["metadata"]["uid"], before["metadata"]["uid"]);
}

#[tokio::test]
async fn other_files_and_directories_are_ignored() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    fs::create_dir(up.policies().join("deeper.yaml")).unwrap();
    fs::write(
        up.policies().join("deeper.yaml/q.yaml"),
        Policy::cluster("q").to_string(),
    )
    .unwrap();
    up.write("notes.txt", Policy::cluster("r").to_string());
    up.write("s.yml", Policy::cluster("s").to_string());
    let json = serde_json::json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": "t"},
        "spec": {
            "module": "file://accept.wasm",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]
        }
    });
    up.write("t.json", json.to_string());
    for name in ["p", "s", "t"] {
        up.wait_enforced(name, 1).await;
    }
    let names: Vec<_> = up
        .objects()
        .await
        .iter()
        .map(|o| o["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["p", "s", "t"]);
}

#[tokio::test]
async fn unknown_policy_server_is_reported_until_it_exists() {
    let up = Up::start(Options::default()).await;
    up.apply("p", &Policy::cluster("p").server("edge"));
    let missing = |p: &serde_json::Value| condition(p, "Accepted")["reason"] == "TargetNotFound";
    up.wait("p", "without target", missing).await;
    up.write("edge.yaml", assent_e2e::manifest::server("edge"));
    let edge = assent_e2e::client::node_of("edge", "a");
    up.wait_accepted("p", 1, "Accepted").await;
    Delta::connect(up.channel().await, edge)
        .await
        .follow_active("cluster/p", 1)
        .await;
    // The default server has none of it.
    let mut other = Delta::connect(up.channel().await, node("b")).await;
    assert!(other.next().await.policies.is_empty());
}
