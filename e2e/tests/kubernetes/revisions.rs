//! PolicyRevisions that others write, delete or lose.

use assent_e2e::{
    eventually,
    kube::{
        Harness, Kubectl,
        harness::{chart, no_privileged},
    },
};
use serde_json::{Value, json};

/// What everybody but the control plane is told.
const REFUSAL: &str = "only the control plane writes PolicyRevisions";

const OWN_WEBHOOK: [&str; 2] = ["validatingwebhookconfiguration", "assent"];

/// A service account that may do everything with revisions in a namespace of its own.
async fn tenant(harness: &Harness, namespace: &str, dir: &std::path::Path) -> Kubectl {
    harness
        .kubectl
        .run(&["create", "namespace", namespace])
        .await;
    let own = harness.api.kubectl.within(namespace);
    own.run(&["create", "serviceaccount", "tenant"]).await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "tenant"},
        "rules": [{
            "apiGroups": ["policies.assent.dev"],
            "resources": ["policyrevisions", "policyrevisions/status"],
            "verbs": ["*"],
        }],
    });
    own.apply(&role.to_string()).await;
    let account = format!("--serviceaccount={namespace}:tenant");
    own.run(&["create", "rolebinding", "tenant", "--role=tenant", &account])
        .await;
    own.service_account("tenant", dir).await
}

/// The stored revision of a generation of `np`.
async fn stored(harness: &Harness, generation: i64) -> Option<Value> {
    let all = harness.system.get(&["policyrevisions"]).await;
    let items = all["items"].as_array().cloned().unwrap_or_default();
    let mut own = items.into_iter();
    own.find(|object| object["spec"]["generation"] == generation)
}

/// The revision as a tenant would have it: evaluators would load it, and the webhook would match
/// nothing. The content digest does not cover rules.
fn forge(real: &Value, namespace: &str) -> Value {
    let mut forged = real.clone();
    forged["metadata"] = json!({
        "name": real["metadata"]["name"],
        "namespace": namespace,
        "labels": real["metadata"]["labels"],
        "ownerReferences": real["metadata"]["ownerReferences"],
    });
    forged["spec"]["policy"]["rules"][0]["resources"] = json!(["configmaps"]);
    forged
}

async fn protects(harness: &Harness, when: &str) {
    let refused = harness.try_pod("bad", true).await;
    let refused = refused.expect_err(&format!("a privileged pod must be refused {when}"));
    assert!(
        refused.contains("privileged containers"),
        "{when}: {refused}"
    );
    let taken = harness.try_pod("good", false).await;
    taken.unwrap_or_else(|why| panic!("a plain pod must be taken {when}: {why}"));
}

/// Waits for an event about `np`.
async fn event(harness: &Harness, reason: &str) {
    eventually(&format!("there is an event {reason}"), async || {
        let events = harness.kubectl.get(&["events"]).await;
        let items = events["items"].as_array().cloned().unwrap_or_default();
        items.iter().any(|event| event["reason"] == reason)
    })
    .await;
}

/// Ends the control plane with `kill -9`; another one, with nothing on its disk, takes over.
async fn take_over(harness: &mut Harness, identity: &str) {
    for plane in &mut harness.planes {
        plane.process.kill();
    }
    harness.planes.clear();
    harness.add_plane(identity, &[]).await;
    harness.planes[0].wait_leading().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_revisions_are_refused_and_have_no_effect() {
    let (mut harness, module) = Harness::enforcing(1).await;
    let dir = tempfile::tempdir().unwrap();
    let real = stored(&harness, 1).await.unwrap();
    // Names before and after the control plane's namespace.
    let mut tenants = Vec::new();
    for namespace in ["aaa", "zzz"] {
        tenants.push(tenant(&harness, namespace, dir.path()).await);
    }

    let refused_by = async |who: &str| {
        for tenant in &tenants {
            let forged = forge(&real, tenant.namespace()).to_string();
            eventually(&format!("{who} refuses"), async || {
                let refused = tenant.try_apply(&forged).await;
                refused.is_err_and(|why| why.contains(who) && why.contains(REFUSAL))
            })
            .await;
        }
    };
    refused_by("revisions.policies.assent.dev").await;
    harness
        .kubectl
        .apply(&chart(&["revision-guard.yaml"]))
        .await;
    refused_by("ValidatingAdmissionPolicy").await;
    // Nor may an administrator; the control plane may.
    let name = real["metadata"]["name"].as_str().unwrap();
    let delete = ["delete", "policyrevision", name, "--wait=false"];
    let refused = harness.system.attempt(&delete).await.unwrap_err();
    assert!(refused.contains(REFUSAL), "{refused}");
    harness
        .enforce(&no_privileged("np", &module, &["example.com/none:*"]))
        .await;

    // Without both the forgeries are stored, and ignored.
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];
    let before = harness.kubectl.get(&webhook).await;
    let guard = [
        "delete",
        "validatingadmissionpolicybinding",
        "assent-system-assent-revisions",
    ];
    harness.kubectl.run(&guard).await;
    let real = stored(&harness, 2).await.unwrap();
    for tenant in &tenants {
        let forged = forge(&real, tenant.namespace()).to_string();
        eventually("the forgery is stored", async || {
            let delete = ["delete", OWN_WEBHOOK[0], OWN_WEBHOOK[1]];
            let _ = harness.kubectl.attempt(&delete).await;
            tenant.try_apply(&forged).await.is_ok()
        })
        .await;
    }
    let counted = async |harness: &Harness| {
        eventually("the forgeries are counted", async || {
            harness.planes[0].metric("assent_foreign_revisions").await == Some(2.0)
        })
        .await;
    };
    counted(&harness).await;
    protects(&harness, "with forgeries").await;
    take_over(&mut harness, "b").await;
    counted(&harness).await;
    harness.enforced("np").await;
    let after = harness.kubectl.get(&webhook).await;
    assert_eq!(after["webhooks"], before["webhooks"]);
    protects(&harness, "after a take-over").await;
}

/// Removes a revision for good, whatever protects it.
async fn lose(harness: &Harness, generation: i64) {
    let object = stored(harness, generation).await.unwrap();
    let name = object["metadata"]["name"].as_str().unwrap();
    eventually("the revision is being deleted", async || {
        // Nobody answers the webhook: the control plane does not run.
        let delete = ["delete", OWN_WEBHOOK[0], OWN_WEBHOOK[1]];
        let _ = harness.kubectl.attempt(&delete).await;
        let delete = ["delete", "policyrevision", name, "--wait=false"];
        harness.system.attempt(&delete).await.is_ok()
    })
    .await;
    let patch = json!({"metadata": {"finalizers": null}});
    harness
        .system
        .patch(&["policyrevision", name], &patch)
        .await;
    harness.system.wait_gone(&["policyrevision", name]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_revisions_are_never_an_outage() {
    let (mut harness, module) = Harness::enforcing(2).await;

    // Deleted while the control plane runs: kept.
    let object = stored(&harness, 1).await.unwrap();
    let name = object["metadata"]["name"].as_str().unwrap();
    eventually("the deletion is asked for", async || {
        let delete = ["delete", OWN_WEBHOOK[0], OWN_WEBHOOK[1]];
        let _ = harness.kubectl.attempt(&delete).await;
        let delete = ["delete", "policyrevision", name, "--wait=false"];
        harness.system.attempt(&delete).await.is_ok()
    })
    .await;
    event(&harness, "RevisionKept").await;
    let kept = stored(&harness, 1).await.unwrap();
    assert_ne!(kept["metadata"]["deletionTimestamp"], Value::Null);

    // Lost while it runs: there again.
    let patch = json!({"metadata": {"finalizers": null}});
    harness
        .system
        .patch(&["policyrevision", name], &patch)
        .await;
    event(&harness, "RevisionRestored").await;
    let again = harness.system.wait_there(&["policyrevision", name]).await;
    assert_ne!(again["metadata"]["uid"], object["metadata"]["uid"]);
    assert_eq!(again["spec"], object["spec"]);
    protects(&harness, "after a deletion").await;

    // Lost while nobody leads, with the registry down and nothing on the next leader's disk.
    harness.registry.stop();
    harness.planes[0].process.kill();
    lose(&harness, 1).await;
    take_over(&mut harness, "b").await;
    let rebuilt = harness.system.wait_there(&["policyrevision", name]).await;
    assert_eq!(rebuilt["spec"], object["spec"]);
    harness.enforced("np").await;
    protects(&harness, "after a take-over").await;

    // The policy was edited since: the revision cannot be made again.
    harness
        .eventually_apply(&no_privileged("np", &module, &["example.com/none:*"]))
        .await;
    let refused = |object: &Value| object["status"]["observedGeneration"] == 2;
    harness
        .kubectl
        .wait(&["cap", "np"], "looked at", refused)
        .await;
    harness.planes[0].process.kill();
    lose(&harness, 1).await;
    take_over(&mut harness, "c").await;
    event(&harness, "RevisionLost").await;
    for evaluator in &harness.evaluators {
        evaluator.wait_ready().await;
    }
    protects(&harness, "without its revision").await;

    // The new generation replaces it once its module is there.
    harness.registry.restart().await;
    let policy = harness.enforced("np").await;
    assert_eq!(policy["status"]["active"]["generation"], 2);
    protects(&harness, "after the repair").await;
}
