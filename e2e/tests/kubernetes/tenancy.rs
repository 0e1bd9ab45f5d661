//! Tenants at a real API server: what they may ask of PolicyServers, and what authors of
//! PolicyServers may reach.

use assent_e2e::{
    eventually,
    kube::{
        Harness, Kubectl,
        harness::{NAMESPACE, condition, no_privileged},
    },
};
use serde_json::{Value, json};

fn server(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

fn policy(name: &str, namespace: &str, module: &str, spec: &Value) -> String {
    let mut policy = no_privileged(name, module, &[]);
    policy["kind"] = "AdmissionPolicy".into();
    policy["metadata"]["namespace"] = namespace.into();
    for (name, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][name] = value.clone();
    }
    policy.to_string()
}

/// Waits until the manifest is refused with this text. It is not stored if it is taken before.
async fn refused(kubectl: &Kubectl, manifest: &str, why: &str) {
    eventually(&format!("refused: {why}"), async || {
        let answer = kubectl.try_dry_run(manifest).await;
        answer.is_err_and(|message| message.contains(why))
    })
    .await;
}

async fn taken(kubectl: &Kubectl, manifest: &str) {
    eventually("the object is taken", async || {
        kubectl.try_apply(manifest).await.is_ok()
    })
    .await;
}

/// kubectl of somebody who may write PolicyServers, and nothing else.
async fn author(harness: &Harness, dir: &std::path::Path) -> Kubectl {
    let kubectl = &harness.kubectl;
    kubectl.run(&["create", "serviceaccount", "author"]).await;
    let verbs = "--verb=get,create,update,patch";
    let resource = "--resource=policyservers.policies.assent.dev";
    kubectl
        .run(&["create", "clusterrole", "author", verbs, resource])
        .await;
    let bind = ["create", "clusterrolebinding", "author"];
    let to = ["--clusterrole=author", "--serviceaccount=default:author"];
    kubectl.run(&[&bind[..], &to].concat()).await;
    kubectl.service_account("author", dir).await
}

/// Gives the author a permission in the control plane's namespace.
async fn grant(harness: &Harness, name: &str, rule: &[&str]) {
    let role = [&["create", "role", name], rule].concat();
    harness.system.run(&role).await;
    let role = format!("--role={name}");
    let bind = ["create", "rolebinding", name, &role];
    let to = ["--serviceaccount=default:author"];
    harness.system.run(&[&bind[..], &to].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn author_of_a_policy_server_gets_no_more_than_by_creating_its_pods() {
    let mut harness = Harness::empty().await;
    harness.add_plane("a", &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let author = author(&harness, dir.path()).await;

    let pods = format!("needs the permission to create pods in the namespace {NAMESPACE:?}");
    let image = server("s", &json!({"image": "evil", "replicas": 0}));
    refused(&author, &image, &pods).await;
    // What shapes no pod is free.
    let plain = json!({"replicas": 0, "limits": {"memory": "64Mi"}});
    taken(&author, &server("s", &plain)).await;
    refused(&author, &image, &pods).await;

    grant(&harness, "pods", &["--verb=create", "--resource=pods"]).await;
    taken(&author, &image).await;
    let with = |field: &str, value: Value| {
        let mut spec = json!({"image": "evil", "replicas": 0});
        spec[field] = value;
        server("s", &spec)
    };
    let env = |secret: &str| {
        let from = json!({"secretKeyRef": {"name": secret, "key": "k"}});
        with("env", json!([{"name": "A", "valueFrom": from}]))
    };
    refused(&author, &env("other"), "to get secrets \"other\" in").await;
    let account = with("serviceAccountName", "admin".into());
    refused(
        &author,
        &account,
        "to impersonate serviceaccounts \"admin\" in",
    )
    .await;
    let privileged = json!({"container": {"privileged": true}});
    let privileged = with("securityContexts", privileged);
    let why = "to use policyservers/privileged.policies.assent.dev \"s\"";
    refused(&author, &privileged, why).await;

    let rule = ["--verb=get", "--resource=secrets", "--resource-name=other"];
    grant(&harness, "secret", &rule).await;
    taken(&author, &env("other")).await;
    refused(&author, &env("third"), "to get secrets \"third\" in").await;
    // An administrator may all of it, but for what belongs to the control plane.
    taken(&harness.kubectl, &privileged).await;
    taken(&harness.kubectl, &account).await;
    let own = "the Secret \"assent-ca\" is the control plane's own";
    refused(&harness.kubectl, &env("assent-ca"), own).await;
    let own = "the ServiceAccount \"assent\" is the control plane's own";
    let account = with("serviceAccountName", "assent".into());
    refused(&harness.kubectl, &account, own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_server_made_without_admission_reaches_no_key() {
    let mut harness = Harness::empty().await;
    let from = json!({"secretKeyRef": {"name": "assent-ca", "key": "tls.key"}});
    let spec = json!({"replicas": 1, "env": [{"name": "KEY", "valueFrom": from}]});
    // Nobody answers for Assent yet.
    harness.kubectl.apply(&server("evil", &spec)).await;
    harness
        .kubectl
        .apply(&server("good", &json!({"replicas": 1})))
        .await;
    harness.add_plane("a", &[]).await;
    let seen = |object: &Value| condition(object, "Ready")["reason"] == "Invalid";
    let evil = harness
        .kubectl
        .wait(&["policyserver", "evil"], "invalid", seen)
        .await;
    let message = condition(&evil, "Ready")["message"].as_str().unwrap();
    assert!(message.contains("is the control plane's own"), "{message}");
    let good = ["statefulset", "policy-server-good"];
    harness.system.wait_there(&good).await;
    let evil = ["statefulset", "policy-server-evil"];
    let missing = harness.system.try_get(&evil).await.unwrap_err();
    assert!(missing.contains("NotFound"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_have_what_policy_servers_and_quota_allow() {
    let mut harness = Harness::empty().await;
    let quota = [("ASSENT_MAX_POLICIES_PER_NAMESPACE", "2")];
    harness.add_plane("a", &quota).await;
    harness.serve(1).await;
    let kubectl = &harness.kubectl;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    kubectl.run(&["create", "namespace", "team"]).await;
    let team = kubectl.within("team");

    // Another server takes nobody until it says so.
    taken(kubectl, &server("other", &json!({"replicas": 0}))).await;
    let elsewhere = policy(
        "elsewhere",
        "team",
        &module,
        &json!({"policyServer": "other"}),
    );
    let why = "does not allow policies of the namespace \"team\"";
    refused(&team, &elsewhere, why).await;
    let selected = json!({
        "from": "Selected", "selector": {"matchLabels": {"tenant": "yes"}},
    });
    let selected = json!({"replicas": 0, "allowedNamespaces": selected});
    taken(kubectl, &server("other", &selected)).await;
    refused(&team, &elsewhere, why).await;
    kubectl
        .run(&["label", "namespace", "team", "tenant=yes"])
        .await;
    taken(&team, &elsewhere).await;

    // `default` takes everybody, as far as the quota goes.
    taken(&team, &policy("np", "team", &module, &json!({}))).await;
    let enforced = |object: &Value| condition(object, "Enforced")["status"] == "True";
    team.wait(&["ap", "np"], "enforced", enforced).await;
    let third = policy("third", "team", &module, &json!({}));
    refused(&team, &third, "may have 2 policies").await;

    // A permission that is withdrawn ends no protection.
    let withdraw = json!({"spec": {"allowedNamespaces": {"from": "None"}}});
    kubectl.patch(&["policyserver", "default"], &withdraw).await;
    let withdrawn = |object: &Value| condition(object, "Accepted")["reason"] == "NotAllowed";
    let np = team.wait(&["ap", "np"], "not allowed", withdrawn).await;
    assert_eq!(condition(&np, "Enforced")["status"], "True", "{np}");
    team.wait_there(&["serviceaccount", "default"]).await;
    let run = [
        "run",
        "a",
        "--image=busybox:1",
        "--privileged",
        "--dry-run=server",
    ];
    let denied = team.attempt(&run).await.expect_err("it must be refused");
    assert!(denied.contains("denied the request"), "{denied}");
    let edited = policy("np", "team", &module, &json!({"mode": "monitor"}));
    refused(&team, &edited, why).await;
}
