//! The command line with a kubeconfig, against a real API server: each step with the rights that
//! the chart grants. There are no nodes here, so that the last step, port forwarding, fails; it
//! is tested on a cluster with nodes.

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use assent_e2e::{
    PATIENCE,
    kube::{
        Harness, Kubectl,
        harness::{NAMESPACE, chart, no_privileged},
    },
    process::{program, text},
};
use serde_json::Value;

fn assent(kubectl: &Kubectl, args: &[&str]) -> Output {
    Command::new(program("assent"))
        .args(args)
        .arg("--kubeconfig")
        .arg(kubectl.kubeconfig())
        .output()
        .unwrap()
}

/// A person: a service account of `default` with these rights, as `kubectl create` takes them.
async fn person(harness: &Harness, dir: &Path, name: &str, grants: &[&[&str]]) -> Kubectl {
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", name]).await;
    for grant in grants {
        let account = format!("--serviceaccount=default:{name}");
        let grant: Vec<&str> = grant.iter().copied().chain([account.as_str()]).collect();
        kubectl.run(&grant).await;
    }
    kubectl.service_account(name, dir).await
}

/// The command ends with an error that has these parts. Rights that were just granted may be refused for a moment: the
/// API server learns of them by a watch.
async fn refused(kubectl: &Kubectl, args: &[&str], expect: &[&str]) {
    let begun = Instant::now();
    loop {
        let output = assent(kubectl, args);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let text = text(&output);
        let Some(missing) = expect.iter().find(|part| !text.contains(**part)) else {
            return;
        };
        let may_change = text.contains("not allowed to") && begun.elapsed() < PATIENCE;
        assert!(may_change, "{missing:?} is not in: {text}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_leads_to_the_leader_with_the_charts_role() {
    let (harness, _) = Harness::enforcing(1).await;
    let dir = tempfile::tempdir().unwrap();
    let nobody = person(&harness, dir.path(), "nobody", &[]).await;
    let lease = ["not allowed to get the Lease", "--role=assent-connect"];
    refused(&nobody, &["status"], &lease).await;

    // Without the chart's roles there is no account to ask a token for.
    let all = [
        "create",
        "clusterrolebinding",
        "all",
        "--clusterrole=cluster-admin",
    ];
    let all = &all[..];
    let admin = person(&harness, dir.path(), "admin", &[all]).await;
    let outdated = ["assent-viewer", "upgrade the chart"];
    refused(&admin, &["status"], &outdated).await;

    harness.system.apply(&chart(&["roles.yaml"])).await;
    let namespace = format!("--namespace={NAMESPACE}");
    let connect = &[
        "create",
        "rolebinding",
        "operator",
        "--role=assent-connect",
        &namespace,
    ][..];
    let operator = person(&harness, dir.path(), "operator", &[connect]).await;
    // Lease, certificates and token are there; the harness's leader is a process, not a pod.
    let reached = ["the leader's pod does not exist"];
    refused(&operator, &["status"], &reached).await;

    let wrong = ["status", "--assent-namespace", "default"];
    refused(&operator, &wrong, &["not allowed to", "default"]).await;
    refused(&admin, &wrong, &["--assent-namespace"]).await;
    let lost = ["status", "--context", "lost"];
    refused(&admin, &lost, &["--context"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_uses_the_rights_of_the_person() {
    let (harness, module) = Harness::enforcing(1).await;
    harness
        .enforce(&no_privileged("np", &module, &["busybox:*"]))
        .await;
    let dir = tempfile::tempdir().unwrap();
    let create = |name: &'static str, verb: &'static str| {
        let kubectl = harness.kubectl.clone();
        async move {
            let resource = "--resource=clusteradmissionpolicies.policies.assent.dev";
            let role = ["create", "clusterrole", name, verb, resource];
            kubectl.run(&role).await;
        }
    };
    create("reads", "--verb=get").await;
    create("edits", "--verb=get,patch").await;
    let reads = &[
        "create",
        "clusterrolebinding",
        "reads",
        "--clusterrole=reads",
    ][..];
    let reader = person(&harness, dir.path(), "reader", &[reads]).await;
    let edits = &[
        "create",
        "clusterrolebinding",
        "edits",
        "--clusterrole=edits",
    ][..];
    let editor = person(&harness, dir.path(), "editor", &[edits]).await;

    let undo = ["rollout", "undo", "np"];
    refused(&reader, &undo, &["patch the policy"]).await;
    let lost = ["rollout", "undo", "lost"];
    refused(&editor, &lost, &["no policy cluster/lost"]).await;
    let none = assent(&editor, &["rollout", "undo", "np", "--to-generation", "9"]);
    assert_eq!(none.status.code(), Some(1), "{}", text(&none));

    let undone = assent(&editor, &["rollout", "undo", "np", "-o", "json"]);
    assert!(undone.status.success(), "{}", text(&undone));
    let undone: Value = serde_json::from_slice(&undone.stdout).unwrap();
    assert_eq!(undone["newGeneration"], 3, "{undone}");
    let restored = harness.enforced("np").await;
    assert_eq!(
        restored["spec"]["settings"]["exemptImages"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
}
