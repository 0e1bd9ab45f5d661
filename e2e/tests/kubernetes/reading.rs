//! Policies that read other objects, on a real API server: control planes that follow the objects, and evaluators that
//! answer from their copies.

use assent_e2e::{
    eventually,
    kube::{
        Harness, Kubectl,
        harness::{condition, no_privileged},
    },
    module,
};
use serde_json::{Value, json};

/// A policy with other rules, settings and declared kinds.
fn mk_policy(name: &str, module: &str, resource: &str, spec: &Value) -> Value {
    let mut policy = no_privileged(name, module, &[]);
    policy["spec"]["settings"] = json!({});
    policy["spec"]["rules"][0]["resources"] = json!([resource]);
    for (name, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][name] = value.clone();
    }
    policy
}

fn mk_service(name: &str, labels: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"ports": [{"port": 80}]},
    })
    .to_string()
}

fn mk_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string()
}

/// A ClusterRole that adds to what the control plane may read.
fn mk_role(name: &str, group: &str, resource: &str) -> String {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"policies.assent.dev/aggregate-to-context": "true"}},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}],
    })
    .to_string()
}

fn is(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    let found = condition(object, kind);
    found["status"] == status
        && found["reason"] == reason
        && found["observedGeneration"] == object["metadata"]["generation"]
}

async fn wait_accepted(harness: &Harness, args: &[&str], status: &str, reason: &str) -> Value {
    let what = format!("Accepted={status}/{reason}");
    let holds = |object: &Value| is(object, "Accepted", status, reason);
    harness.kubectl.wait(args, &what, holds).await
}

/// What the API server answers to a dry run of creating an object.
async fn answer(kubectl: &Kubectl, manifest: &str) -> String {
    match kubectl.try_dry_run(manifest).await {
        Ok(text) => format!("taken: {text}"),
        Err(message) => message,
    }
}

/// Waits until each replica by itself answers with this text.
async fn wait_answer(harness: &Harness, manifest: &str, part: &str) {
    for number in 0..harness.evaluators.len() {
        harness.send_to(number);
        eventually(&format!("replica {number} answers {part:?}"), async || {
            answer(&harness.kubectl, manifest).await.contains(part)
        })
        .await;
    }
    harness.balance();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_follow_objects_on_every_replica() {
    let mut harness = Harness::start(2).await;
    let module = harness
        .registry
        .push_example("unique:v1", "unique-label")
        .await;
    let label = "example.com/route";
    harness
        .kubectl
        .apply(&mk_service("first", &json!({label: "a"})))
        .await;
    let spec = json!({
        "settings": {"label": label},
        "contextAwareResources": [{"apiVersion": "v1", "kind": "Service", "fields": ["metadata.labels"]}],
    });
    let policy = harness
        .enforce(&mk_policy("unique", &module, "services", &spec))
        .await;
    assert_eq!(policy["status"]["rollout"]["applied"], 2);

    // It is enforced, so that every replica has the objects: nothing is waited for.
    let taken = "label example.com/route has the value a already on default/first";
    for number in 0..2 {
        harness.send_to(number);
        let refused = answer(
            &harness.kubectl,
            &mk_service("second", &json!({label: "a"})),
        )
        .await;
        assert!(refused.contains(taken), "{refused}");
        let fine = answer(
            &harness.kubectl,
            &mk_service("second", &json!({label: "b"})),
        )
        .await;
        assert!(fine.starts_with("taken"), "{fine}");
    }
    // An edit, a new object and a deletion.
    harness.balance();
    harness
        .kubectl
        .apply(&mk_service("first", &json!({label: "c"})))
        .await;
    wait_answer(
        &harness,
        &mk_service("second", &json!({label: "a"})),
        "taken",
    )
    .await;
    let second = mk_service("second", &json!({label: "c"}));
    let moved = "label example.com/route has the value c already on default/first";
    wait_answer(&harness, &second, moved).await;
    harness.kubectl.run(&["delete", "service", "first"]).await;
    wait_answer(&harness, &second, "taken").await;

    // Sizes are in the status of the server.
    let has_row = |server: &Value| {
        let row = &server["status"]["context"][0];
        row["kind"] == "Service" && row["state"] == "Synced" && row["objects"].as_i64() > Some(0)
    };
    let server = ["policyserver", "default"];
    harness
        .kubectl
        .wait(&server, "with a row of Services", has_row)
        .await;

    // Without any control plane, and after a restart, replicas answer from what they have.
    harness
        .kubectl
        .apply(&mk_service("kept", &json!({label: "k"})))
        .await;
    let late = mk_service("late", &json!({label: "k"}));
    let kept = "label example.com/route has the value k already on default/kept";
    wait_answer(&harness, &late, kept).await;
    harness.planes[0].process.kill();
    wait_answer(&harness, &late, kept).await;
    // Another one takes over; nothing was sent again, and answers go on.
    harness.planes.clear();
    harness.add_plane("b", &[]).await;
    harness.planes[0].wait_leading().await;
    harness
        .kubectl
        .apply(&mk_service("after", &json!({label: "n"})))
        .await;
    let newer = "label example.com/route has the value n already on default/after";
    wait_answer(&harness, &mk_service("late", &json!({label: "n"})), newer).await;
}

fn mk_definition() -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.fleet.example.com"},
        "spec": {
            "group": "fleet.example.com", "scope": "Cluster",
            "names": {"kind": "Cluster", "plural": "clusters", "singular": "cluster", "listKind": "ClusterList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
    .to_string()
}

fn mk_cluster(name: &str, region: &str) -> String {
    json!({
        "apiVersion": "fleet.example.com/v1", "kind": "Cluster",
        "metadata": {"name": name, "labels": {"region": region}},
    })
    .to_string()
}

async fn create_cluster(harness: &Harness, name: &str) {
    let cluster = mk_cluster(name, "eu");
    eventually("a cluster can be created", async || {
        harness.kubectl.try_apply(&cluster).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_and_forbidden_kinds_are_reported_and_heal() {
    let harness = Harness::start(1).await;
    let payload = r#"{"api_version":"fleet.example.com/v1","kind":"Cluster"}"#;
    let guest = module::asking("list_resources_all", payload);
    let module = harness.registry.push("ask:v1", &guest).await;
    let declared = json!([{"apiVersion": "fleet.example.com/v1", "kind": "Cluster"}]);
    let spec = json!({"contextAwareResources": declared, "failurePolicy": "Fail"});
    let policy = mk_policy("ask", &module, "configmaps", &spec);
    let ask = ["cap", "ask"];

    // Not served.
    harness.eventually_apply(&policy).await;
    let absent = wait_accepted(&harness, &ask, "False", "ContextAbsent").await;
    let message = condition(&absent, "Accepted")["message"].to_string();
    assert!(
        message.contains("Cluster (fleet.example.com/v1)"),
        "{message}"
    );

    // Served, and the control plane may not read it.
    harness.kubectl.apply(&mk_definition()).await;
    create_cluster(&harness, "berlin").await;
    let forbidden = wait_accepted(&harness, &ask, "False", "ContextForbidden").await;
    let message = condition(&forbidden, "Accepted")["message"].to_string();
    assert!(message.contains("aggregate-to-context"), "{message}");

    // Allowed by a ClusterRole with the label.
    harness
        .kubectl
        .apply(&mk_role("fleet", "fleet.example.com", "clusters"))
        .await;
    harness.enforced("ask").await;
    let listed = answer(&harness.kubectl, &mk_map("m")).await;
    assert!(
        listed.contains("ClusterList") && listed.contains("berlin"),
        "{listed}"
    );

    // Withdrawn: said loudly, and the last state is kept.
    harness
        .kubectl
        .run(&["delete", "clusterrole", "fleet"])
        .await;
    let forbidden = wait_accepted(&harness, &ask, "False", "ContextForbidden").await;
    assert!(
        is(&forbidden, "Enforced", "True", "Enforced"),
        "{forbidden:#}"
    );
    let listed = answer(&harness.kubectl, &mk_map("m")).await;
    assert!(listed.contains("berlin"), "{listed}");
    harness
        .kubectl
        .apply(&mk_role("fleet", "fleet.example.com", "clusters"))
        .await;
    wait_accepted(&harness, &ask, "True", "Accepted").await;
    create_cluster(&harness, "paris").await;
    wait_answer(&harness, &mk_map("m"), "paris").await;

    // Removed: an error, never an empty list. It heals with the definition.
    harness
        .kubectl
        .run(&["delete", "crd", "clusters.fleet.example.com"])
        .await;
    wait_answer(&harness, &mk_map("m"), "does not serve Cluster").await;
    wait_accepted(&harness, &ask, "False", "ContextAbsent").await;
    harness.kubectl.apply(&mk_definition()).await;
    create_cluster(&harness, "austin").await;
    wait_accepted(&harness, &ask, "True", "Accepted").await;
    wait_answer(&harness, &mk_map("m"), "austin").await;
    let listed = answer(&harness.kubectl, &mk_map("m")).await;
    assert!(!listed.contains("berlin"), "{listed}");
}

/// kubectl of somebody who may write policies, and read ConfigMaps in one namespace.
async fn author(harness: &Harness, dir: &std::path::Path) -> Kubectl {
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", "author"]).await;
    let verbs = "--verb=get,list,create,update,patch";
    let policies = "--resource=clusteradmissionpolicies.policies.assent.dev,admissionpolicies.policies.assent.dev";
    kubectl
        .run(&["create", "clusterrole", "author", verbs, policies])
        .await;
    let bind = ["create", "clusterrolebinding", "author"];
    let to = ["--clusterrole=author", "--serviceaccount=default:author"];
    kubectl.run(&[&bind[..], &to].concat()).await;
    kubectl.service_account("author", dir).await
}

async fn refused(kubectl: &Kubectl, manifest: &Value, why: &str) {
    let text = manifest.to_string();
    eventually(&format!("refused: {why}"), async || {
        let answer = kubectl.try_dry_run(&text).await;
        answer.is_err_and(|message| message.contains(why))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_of_authors_servers_and_namespaces_are_checked() {
    let harness = Harness::start(1).await;
    harness
        .kubectl
        .apply(&mk_role("maps", "", "configmaps"))
        .await;
    harness
        .kubectl
        .apply(&mk_role("secrets", "", "secrets"))
        .await;
    let payload = r#"{"api_version":"v1","kind":"ConfigMap"}"#;
    let all = module::asking("list_resources_all", payload);
    let all = harness.registry.push("all:v1", &all).await;
    let maps = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]});

    // Whoever writes a policy must be allowed to list what it reads.
    let dir = tempfile::tempdir().unwrap();
    let author = author(&harness, dir.path()).await;
    let policy = mk_policy("maps", &all, "pods", &maps);
    refused(&author, &policy, "configmaps").await;
    let view = [
        "create",
        "clusterrole",
        "maps-reader",
        "--verb=list",
        "--resource=configmaps",
    ];
    harness.kubectl.run(&view).await;
    let bind = [
        "create",
        "clusterrolebinding",
        "maps-reader",
        "--clusterrole=maps-reader",
    ];
    harness
        .kubectl
        .run(&[&bind[..], &["--serviceaccount=default:author"]].concat())
        .await;
    eventually("the author may declare ConfigMaps", async || {
        author.try_apply(&policy.to_string()).await.is_ok()
    })
    .await;
    harness.enforced("maps").await;

    // A Secret must be named by the server, whoever the author is.
    let secrets = json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Secret"}]});
    harness
        .eventually_apply(&mk_policy("secrets", &all, "pods", &secrets))
        .await;
    let refused = wait_accepted(&harness, &["cap", "secrets"], "False", "ContextForbidden").await;
    let message = condition(&refused, "Accepted")["message"].to_string();
    assert!(message.contains("spec.context.allow"), "{message}");
    let allow = |kinds: Value| json!({"spec": {"context": {"allow": kinds}}});
    let server = ["policyserver", "default"];
    let any = allow(json!([{"apiVersion": "*", "kind": "*"}]));
    harness.kubectl.patch(&server, &any).await;
    tokio::time::sleep(assent_e2e::QUIET).await;
    let still = harness.kubectl.get(&["cap", "secrets"]).await;
    assert!(
        is(&still, "Accepted", "False", "ContextForbidden"),
        "{still:#}"
    );
    let named =
        allow(json!([{"apiVersion": "*", "kind": "*"}, {"apiVersion": "v1", "kind": "Secret"}]));
    harness.kubectl.patch(&server, &named).await;
    harness.enforced("secrets").await;
    harness
        .kubectl
        .run(&["delete", "cap", "secrets", "maps", "--timeout=60s"])
        .await;

    // A namespaced policy needs the server's grant, and then sees its own namespace only.
    for namespace in ["shop", "bank"] {
        harness
            .kubectl
            .run(&["create", "namespace", namespace])
            .await;
        let inside = harness.kubectl.within(namespace);
        inside.apply(&mk_map(&format!("of-{namespace}"))).await;
    }
    let shop = harness.kubectl.within("shop");
    let mut policy = mk_policy("own", &all, "pods", &maps);
    policy["kind"] = "AdmissionPolicy".into();
    policy["metadata"]["namespace"] = "shop".into();
    shop.apply(&policy.to_string()).await;
    let own = ["ap", "own"];
    let is_refused = |p: &Value| is(p, "Accepted", "False", "ContextForbidden");
    let refused = shop.wait(&own, "refused", is_refused).await;
    let message = condition(&refused, "Accepted")["message"].to_string();
    assert!(
        message.contains("namespacedPoliciesCapabilities"),
        "{message}"
    );
    let grant = json!({"spec": {"namespacedPoliciesCapabilities": ["kubernetes/*"]}});
    harness.kubectl.patch(&server, &grant).await;
    shop.wait(&own, "enforced", |p| is(p, "Enforced", "True", "Enforced"))
        .await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    });
    // The service account must exist before pods are admitted.
    shop.wait_there(&["serviceaccount", "default"]).await;
    eventually("it lists its own namespace", async || {
        answer(&shop, &pod.to_string()).await.contains("of-shop")
    })
    .await;
    let listed = answer(&shop, &pod.to_string()).await;
    assert!(!listed.contains("of-bank"), "{listed}");
    // It cannot declare another namespace.
    policy["spec"]["contextAwareResources"][0]["namespaces"] = json!(["bank"]);
    let refused = shop.try_dry_run(&policy.to_string()).await.unwrap_err();
    assert!(refused.contains("namespaces"), "{refused}");
}
