//! The chart, by the real helm: installed, upgraded, rolled back, removed.

use std::{path::PathBuf, process::Command};

use assent_e2e::{
    kube::{Cluster, Kubectl, stage::no_privileged},
    process::text,
    tools::tool,
    up::condition,
};
use serde_json::json;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const MODULE: &str = "http://modules.chart.svc.cluster.local/policy.wasm";

/// What a user's first command sets, for images that nodes have.
const IMAGES: [&str; 6] = [
    "--set",
    "image.registry=localhost",
    "--set",
    "image.tag=dev",
    "--set",
    "image.pullPolicy=Never",
];

#[tokio::test]
async fn an_installation_enforces_through_upgrades_and_leaves_no_webhook() {
    let cluster = Cluster::shared();
    let kubectl = cluster.kubectl.within("chart");
    load_images(cluster);
    serve_module(&kubectl).await;

    let source =
        r#"policyServer.spec={"sources":{"insecure":["modules.chart.svc.cluster.local"]}}"#;
    helm(
        &kubectl,
        &["install", "--create-namespace", "--set-json", source],
    );
    let server = ["policyserver", "default"];
    kubectl
        .wait(&server, "ready with two replicas", |s| {
            s["status"]["readyReplicas"] == 2
        })
        .await;

    let mut policy = no_privileged("chart", MODULE, &[]);
    policy["spec"]["namespaceSelector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": "chart"}});
    kubectl.apply(&policy.to_string()).await;
    let enforced = |p: &_| condition(p, "Enforced")["status"] == "True";
    kubectl
        .wait(&["clusteradmissionpolicy", "chart"], "enforced", enforced)
        .await;
    refused(&kubectl).await;

    helm(
        &kubectl,
        &[
            "upgrade",
            "--reset-then-reuse-values",
            "--set",
            "controlPlane.podAnnotations.round=two",
        ],
    );
    refused(&kubectl).await;
    run_helm(
        &kubectl,
        &["rollback", "assent", "--namespace=assent-system", "--wait"],
    );
    refused(&kubectl).await;

    run_helm(
        &kubectl,
        &["uninstall", "assent", "--namespace=assent-system"],
    );
    left_nothing(&kubectl).await;
    kubectl.apply(&privileged()).await;
    remove(&kubectl).await;
}

fn load_images(cluster: &Cluster) {
    for program in ["control-plane", "evaluator"] {
        let image = PathBuf::from(format!("{ROOT}/dist/images/assent-{program}.tar"));
        assert!(
            image.exists(),
            "{} is missing: run `just images dev`",
            image.display()
        );
        cluster.load(&image);
    }
}

/// A pod that serves the module: there is no registry in the cluster.
async fn serve_module(kubectl: &Kubectl) {
    kubectl.run(&["create", "namespace", "chart"]).await;
    kubectl.wait_there(&["serviceaccount", "default"]).await;
    let file = format!("--from-file={ROOT}/policies/no-privileged/policy.wasm");
    kubectl
        .run(&["create", "configmap", "modules", &file])
        .await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "modules", "labels": {"app": "modules"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "httpd", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                "args": ["-c", "exec httpd -f -p 8080 -h /modules"],
                "volumeMounts": [{"name": "modules", "mountPath": "/modules"}],
            }],
            "volumes": [{"name": "modules", "configMap": {"name": "modules"}}],
        },
    });
    kubectl.apply(&pod.to_string()).await;
    let ready = |p: &_| condition(p, "Ready")["status"] == "True";
    kubectl.wait(&["pod", "modules"], "ready", ready).await;
    kubectl
        .run(&[
            "expose",
            "pod",
            "modules",
            "--port=80",
            "--target-port=8080",
        ])
        .await;
}

/// Installs or upgrades, and waits.
fn helm(kubectl: &Kubectl, args: &[&str]) {
    let chart = format!("{ROOT}/charts/assent");
    let release = [
        "assent",
        &chart,
        "--namespace=assent-system",
        "--wait",
        "--timeout=3m",
    ];
    run_helm(kubectl, &[args, &release, &IMAGES].concat());
}

fn run_helm(kubectl: &Kubectl, args: &[&str]) {
    let mut helm = Command::new(tool("ASSENT_HELM"));
    helm.env("KUBECONFIG", kubectl.kubeconfig()).args(args);
    let output = helm.output().expect("helm must start");
    assert!(
        output.status.success(),
        "helm {}: {}",
        args.join(" "),
        text(&output)
    );
}

fn privileged() -> String {
    let container = json!({
        "name": "a", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
        "securityContext": {"privileged": true},
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "privileged"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    })
    .to_string()
}

/// By the policy's own words: a webhook that fails refuses too.
async fn refused(kubectl: &Kubectl) {
    let words = kubectl
        .try_apply(&privileged())
        .await
        .expect_err("a privileged pod must be refused");
    assert!(
        words.contains("privileged containers are not allowed"),
        "{words}"
    );
}

/// Nothing of ours that acts or holds anything up; the user's policy stays.
async fn left_nothing(kubectl: &Kubectl) {
    for kind in [
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "policyservers",
        "clusterroles",
        "clusterrolebindings",
    ] {
        let ours = kubectl.get(&[kind]).await;
        let items = ours["items"].as_array().expect("a list must have items");
        let names = items.iter().filter_map(|o| o["metadata"]["name"].as_str());
        let ours: Vec<_> = names
            .filter(|n| n.contains("assent") || *n == "default")
            .collect();
        assert!(ours.is_empty(), "{kind} that were left: {ours:?}");
    }
    let policy = kubectl.get(&["clusteradmissionpolicy", "chart"]).await;
    assert!(policy["metadata"]["finalizers"].is_null(), "{policy:#}");
    kubectl
        .within("assent-system")
        .wait_gone(&["secret", "assent-ca"])
        .await;
}

/// What helm and the hook leave: people's own objects, the definitions, the namespace.
async fn remove(kubectl: &Kubectl) {
    let definitions = [
        "clusteradmissionpolicies",
        "admissionpolicies",
        "policyrevisions",
        "policyservers",
    ];
    for plural in definitions {
        kubectl
            .run(&["delete", "crd", &format!("{plural}.policies.assent.dev")])
            .await;
    }
    kubectl
        .run(&["delete", "namespace", "assent-system", "chart"])
        .await;
}
