//! The API server evaluates the same expressions and objects: values, errors and verdicts must be equal.

use std::{fs, path::Path};

use assent_e2e::{
    eventually,
    kube::ApiServer,
    process::{assent, text},
};
use kube::Client;
use serde_json::{Value, json};

use crate::api;

/// Boolean expressions over the libraries of Kubernetes, one per line.
const EXPRESSIONS: &str = include_str!("expressions.txt");

/// Expressions that fail when they are evaluated.
const ERRORS: &str = include_str!("errors.txt");

/// Expressions that are asked together: their values are one message, whose length is limited.
const TOGETHER: usize = 20;

/// The values of expressions as one string.
fn values(expressions: &[&str]) -> String {
    let values: Vec<_> = expressions
        .iter()
        .map(|one| format!("string({one})"))
        .collect();
    values.join(" + ',' + ")
}

/// A policy of the API server, and its binding. It looks at objects that name it only.
async fn add(api: &ApiServer, name: &str, resource: &str, mut spec: Value) {
    spec["failurePolicy"] = "Fail".into();
    spec["matchConstraints"] = json!({"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"],
    }]});
    let condition = format!("object.metadata.labels.policy == '{name}'");
    spec["matchConditions"] = json!([{"name": "named", "expression": condition}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec,
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    api.kubectl.apply(&both.to_string()).await;
}

/// The object that expressions look at.
fn probe(policy: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "probe", "namespace": "default", "labels": {"app": "x", "policy": policy}},
        "data": {
            "list": "a,b,c", "text": "Hello World", "number": "42", "memory": "64Mi",
            "a": "", "b": "", "c": "", "d": "",
        },
    })
}

/// What the API server answers to the creation of an object; `None` if it takes it.
async fn refusal(client: &Client, resource: &str, object: &Value) -> Option<String> {
    let path = format!("/api/v1/namespaces/default/{resource}?dryRun=All");
    match api::ask(client, "POST", &path, object).await {
        (201, _) => None,
        (_, status) => Some(status["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Waits until the API server evaluates a policy that denies.
async fn denial(client: &Client, name: &str) -> String {
    let mut message = None;
    eventually(&format!("the API server evaluates {name}"), async || {
        message = refusal(client, "configmaps", &probe(name)).await;
        message.is_some()
    })
    .await;
    message.unwrap_or_default()
}

/// The verdict of a text of ours on the probe: its messages.
fn ours(dir: &Path, document: &Value) -> String {
    let request = json!({
        "uid": "1", "operation": "CREATE", "name": "probe", "namespace": "default", "dryRun": true,
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "userInfo": {"username": "u"}, "object": probe("ours"), "oldObject": null,
    });
    let file = |name: &str, content: &Value| {
        let path = dir.join(name);
        fs::write(&path, content.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (policy, request) = (
        file("policy.cel.json", document),
        file("request.json", &request),
    );
    let output = assent(&["run", &policy, "--request", &request, "-o", "json"]);
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let message = answer["status"]["message"].as_str();
    message.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_have_the_values_that_the_api_server_computes() {
    let api = ApiServer::start().await;
    let client = api::client(api.kubectl.kubeconfig()).await;
    let all: Vec<&str> = EXPRESSIONS.lines().collect();
    let mut theirs = Vec::new();
    for (number, some) in all.chunks(TOGETHER).enumerate() {
        let name = format!("values-{number}");
        let spec =
            json!({"validations": [{"expression": "false", "messageExpression": values(some)}]});
        add(&api, &name, "configmaps", spec).await;
    }
    for number in 0..all.chunks(TOGETHER).len() {
        let message = denial(&client, &format!("values-{number}")).await;
        let last = message.split_whitespace().last().unwrap_or_default();
        theirs.extend(last.split(',').map(str::to_owned));
    }
    assert_eq!(theirs.len(), all.len(), "{theirs:?}");

    let validations: Vec<_> = all
        .chunks(TOGETHER)
        .map(|some| json!({"expression": "false", "messageExpression": values(some)}))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let ours = ours(dir.path(), &json!({"validations": validations}));
    let ours: Vec<_> = ours.split(',').map(str::trim).collect();
    assert_eq!(ours.len(), all.len(), "{ours:?}");
    let differ: Vec<_> = (0..all.len())
        .filter(|n| ours[*n] != theirs[*n])
        .map(|n| format!("{}: {} there, {} here", all[n], theirs[n], ours[n]))
        .collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(
        theirs.iter().any(|value| value == "true") && theirs.iter().any(|value| value == "false")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_fail_as_they_do_in_the_api_server() {
    let api = ApiServer::start().await;
    let client = api::client(api.kubectl.kubeconfig()).await;
    let all: Vec<&str> = ERRORS.lines().collect();
    for (number, expression) in all.iter().enumerate() {
        let spec = json!({"validations": [{"expression": expression}]});
        add(&api, &format!("error-{number}"), "configmaps", spec).await;
    }
    for (number, expression) in all.iter().enumerate() {
        let message = denial(&client, &format!("error-{number}")).await;
        assert!(
            message.contains("resulted in error"),
            "{expression}: {message}"
        );
    }

    // A variable that fails is absent, until a validation needs it.
    let variables: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(n, expression)| json!({"name": format!("e{n}"), "expression": expression}))
        .collect();
    let absent: Vec<_> = (0..all.len())
        .map(|n| format!("string(has(variables.e{n}))"))
        .collect();
    let document = json!({
        "variables": variables,
        "validations": [{"expression": "false", "messageExpression": absent.join(" + ',' + ")}],
    });
    let dir = tempfile::tempdir().unwrap();
    let ours = ours(dir.path(), &document);
    let evaluated: Vec<_> = ours
        .split(',')
        .zip(&all)
        .filter(|(has, _)| *has != "false")
        .collect();
    assert!(
        evaluated.is_empty(),
        "these do not fail here: {evaluated:?}"
    );
}

/// A pod with these containers: image, and whether it is privileged.
fn pod(policy: &str, number: usize, containers: &[(&str, Option<bool>)]) -> Value {
    let containers: Vec<_> = containers
        .iter()
        .enumerate()
        .map(|(n, (image, privileged))| {
            let mut container = json!({"name": format!("c{n}"), "image": image});
            if let Some(privileged) = privileged {
                container["securityContext"] = json!({"privileged": privileged});
            }
            container
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number}"), "namespace": "default", "labels": {"policy": policy}},
        "spec": {"containers": containers},
    })
}

const IMAGES: [&str; 7] = [
    "a",
    "a:latest",
    "a:v1",
    "registry.example.com:5000/a",
    "registry.example.com:5000/a:v2",
    "registry.example.com:5000/a:latest",
    "a@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
];

/// The example policies as ValidatingAdmissionPolicies: what the API server decides becomes a case of `assent test`.
#[tokio::test(flavor = "multi_thread")]
async fn example_policies_decide_as_the_api_server_does() {
    let api = ApiServer::start().await;
    let client = api::client(api.kubectl.kubeconfig()).await;
    let kubectl = api.kubectl.within("default");
    kubectl.wait_there(&["serviceaccount", "default"]).await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/text");
    let dir = tempfile::tempdir().unwrap();
    for name in ["fixed-tag", "no-privileged"] {
        let example = examples.join(name);
        let file = fs::read_to_string(example.join("policy.cel.yaml")).unwrap();
        let document: Value = assent_api::yaml::load_first(&file).unwrap();
        add(&api, name, "pods", document).await;
        let first = pod(name, 0, &[("a:latest", Some(true))]);
        let evaluated = async || refusal(&client, "pods", &first).await.is_some();
        eventually(&format!("the API server evaluates {name}"), evaluated).await;

        let here = dir.path().join(name);
        fs::create_dir_all(here.join("tests")).unwrap();
        for file in ["policy.cel.yaml", "manifest.yaml"] {
            fs::copy(example.join(file), here.join(file)).unwrap();
        }
        let manifest = fs::read_to_string(here.join("manifest.yaml")).unwrap();
        fs::write(
            here.join("manifest.yaml"),
            manifest.replace("policy.rego", "policy.cel.yaml"),
        )
        .unwrap();
        let mut number = 0;
        for image in IMAGES {
            for other in IMAGES {
                for privileged in [None, Some(true), Some(false)] {
                    number += 1;
                    let object = pod(name, number, &[(image, privileged), (other, None)]);
                    let refusal = refusal(&client, "pods", &object).await;
                    let mut expect = json!({"allowed": refusal.is_none()});
                    if let Some(message) = refusal {
                        let (_, message) = message.split_once("denied request: ").unwrap();
                        expect["message"] = message.into();
                    }
                    let case =
                        json!({"name": format!("{number}"), "object": object, "expect": expect});
                    let file = here.join(format!("tests/{number}.json"));
                    fs::write(file, case.to_string()).unwrap();
                }
            }
        }
        let output = assent(&["test", here.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output));
    }
}
