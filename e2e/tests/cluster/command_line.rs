//! The command line and the kubectl plugin on a cluster with nodes, as an operator who has the
//! chart's Role and nothing else.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use assent_e2e::{
    kube::Kubectl,
    process::{program, text},
    tools::tool,
};
use serde_json::Value;

use crate::installation::{Installation, POLICY, SYSTEM, within_patience};

/// Everything that people see of an installation whose policy is enforced by three evaluators.
pub(crate) async fn finds_the_leader(site: &Installation) {
    let dir = tempfile::tempdir().expect("a directory must be made");
    let operator = operator(site, dir.path()).await;

    let status = json(&assent(&operator, &["status", "-o", "json"]));
    assert_eq!(status["policyServer"], "default", "{status}");
    let key = format!("cluster/{POLICY}");
    assert_eq!(status["policies"][0]["policy"], *key, "{status}");
    let one = assent(&operator, &["status", POLICY]);
    assert!(one.status.success(), "{}", text(&one));
    let replicas = json(&assent(&operator, &["replicas", "-o", "json"]));
    let count = replicas["replicas"].as_array().map(Vec::len);
    assert_eq!(count, Some(3), "{replicas}");
    let waited = assent(&operator, &["rollout", "status", POLICY]);
    assert!(waited.status.success(), "{}", text(&waited));
    let history = assent(&operator, &["rollout", "history", POLICY]);
    assert!(text(&history).contains("Active"), "{}", text(&history));

    plugin(&operator, dir.path());
    watch(site, &operator).await;
    let delete = [
        "delete",
        "rolebinding,serviceaccount",
        "operator",
        "--namespace",
        SYSTEM,
    ];
    site.kubectl.run(&delete).await;
}

/// A service account that is bound to the Role.
async fn operator(site: &Installation, dir: &Path) -> Kubectl {
    let system = site.kubectl.within(SYSTEM);
    system.run(&["create", "serviceaccount", "operator"]).await;
    let account = format!("--serviceaccount={SYSTEM}:operator");
    let bind = [
        "create",
        "rolebinding",
        "operator",
        "--role=assent-connect",
        &account,
    ];
    system.run(&bind).await;
    system.service_account("operator", dir).await
}

/// kubectl finds the same program under another name.
fn plugin(operator: &Kubectl, dir: &Path) {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).expect("a directory must be made");
    std::os::unix::fs::symlink(program("assent"), bin.join("kubectl-assent"))
        .expect("a link must be made");
    let path = std::env::var("PATH").unwrap_or_default();
    let shown = Command::new(tool("ASSENT_KUBECTL"))
        .args(["assent", "status", POLICY])
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("KUBECONFIG", operator.kubeconfig())
        .output()
        .expect("kubectl must start");
    assert!(shown.status.success(), "{}", text(&shown));
    assert!(text(&shown).contains("Enforced"), "{}", text(&shown));
}

/// A change is printed when it happens, also by a leader that took over meanwhile.
async fn watch(site: &Installation, operator: &Kubectl) {
    let mut watching = Command::new(program("assent"))
        .args(["status", POLICY, "--watch", "-o", "json", "--kubeconfig"])
        .arg(operator.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .expect("assent must start");
    let lines = BufReader::new(watching.stdout.take().expect("it must be piped")).lines();
    let (sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let value: Value = serde_json::from_str(&line).expect("a line must be JSON");
            let _ = sender.send(value);
        }
    });
    let newest = std::cell::Cell::new(0);
    let sees = async |generation: i64| {
        within_patience("the change is printed", async || {
            for value in seen.try_iter() {
                if value["enforced"] == true {
                    newest.set(value["generation"].as_i64().unwrap_or_default());
                }
            }
            newest.get() >= generation
        })
        .await;
    };
    let generation = |policy: &Value| {
        policy["metadata"]["generation"]
            .as_i64()
            .unwrap_or_default()
    };
    sees(generation(&site.policy().await)).await;
    sees(generation(&site.change().await)).await;
    let leader = site.leader().await.expect("there must be a leader");
    let pod = leader["metadata"]["name"].as_str().unwrap_or_default();
    let system = site.kubectl.within(SYSTEM);
    system.run(&["delete", "pod", pod, "--wait=false"]).await;
    site.led_by_another(&leader).await;
    sees(generation(&site.change().await)).await;
    watching.kill().expect("it must run until it is killed");
    let _ = watching.wait();
}

fn assent(kubectl: &Kubectl, args: &[&str]) -> Output {
    Command::new(program("assent"))
        .args(args)
        .arg("--kubeconfig")
        .arg(kubectl.kubeconfig())
        .output()
        .expect("assent must start")
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).expect("it must be JSON")
}
