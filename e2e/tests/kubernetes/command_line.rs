//! The command line with a kubeconfig, against a real API server: each step with the rights that
//! the chart grants. There are no nodes here, so that the last step, port forwarding, fails; it
//! is tested on a cluster with nodes.

use std::{
    path::Path,
    process::{Command, Output},
};

use assent_e2e::{
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

#[track_caller]
fn refused(output: &Output, expect: &[&str]) {
    assert_eq!(output.status.code(), Some(2), "{}", text(output));
    let text = text(output);
    for part in expect {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_leads_to_the_leader_with_the_charts_role() {
    let (harness, _) = Harness::enforcing(1).await;
    let dir = tempfile::tempdir().unwrap();
    let nobody = person(&harness, dir.path(), "nobody", &[]).await;
    let refusal = assent(&nobody, &["status"]);
    // The steps run at the same time: any of them may be refused first.
    refused(&refusal, &["not allowed to", "--role=assent-connect"]);

    // Without the chart's roles there is no account to ask a token for.
    let all = [
        "create",
        "clusterrolebinding",
        "all",
        "--clusterrole=cluster-admin",
    ];
    let all = &all[..];
    let admin = person(&harness, dir.path(), "admin", &[all]).await;
    refused(
        &assent(&admin, &["status"]),
        &["assent-viewer", "upgrade the chart"],
    );

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
    let reached = assent(&operator, &["status"]);
    refused(&reached, &["the leader's pod does not exist"]);

    let wrong = ["status", "--assent-namespace", "default"];
    refused(&assent(&operator, &wrong), &["not allowed to", "default"]);
    let wrong = assent(&admin, &wrong);
    refused(&wrong, &["--assent-namespace"]);
    refused(
        &assent(&admin, &["status", "--context", "lost"]),
        &["--context"],
    );
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

    refused(
        &assent(&reader, &["rollout", "undo", "np"]),
        &["patch the policy"],
    );
    refused(
        &assent(&editor, &["rollout", "undo", "lost"]),
        &["no policy cluster/lost"],
    );
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
