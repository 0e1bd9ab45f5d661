//! The end of an installation.

use assent_e2e::{
    kube::{api, harness::no_privileged},
    up::condition,
};
use serde_json::Value;

use crate::installation::{Installation, POLICY, SHOP, SYSTEM, items, module, name, pod};

/// Kinds that an installation has in its namespace.
const NAMESPACED: [&str; 13] = [
    "pods",
    "deployments",
    "statefulsets",
    "jobs",
    "services",
    "endpointslices",
    "poddisruptionbudgets",
    "serviceaccounts",
    "secrets",
    "configmaps",
    "leases",
    "roles",
    "rolebindings",
];

/// Kinds that it has beside them.
const CLUSTER: [&str; 6] = [
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "policyservers",
    "clusterroles",
    "clusterrolebindings",
    "priorityclasses",
];

/// A policy of a namespace.
const OWN: &str = "/apis/policies.assent.dev/v1alpha1/namespaces/shop/admissionpolicies/own";

/// Nothing of Assent is left. The users' objects are, with a correct status.
pub(crate) async fn leaves_nothing(site: &Installation) {
    let mut own = no_privileged("own", &module(), &[]);
    own["kind"] = "AdmissionPolicy".into();
    site.kubectl.apply(&own.to_string()).await;
    site.enforced_at(OWN).await;
    let web = ["delete", "deployment", "web", "--cascade=foreground"];
    site.kubectl.run(&web).await;
    site.run_helm(&["uninstall", "assent"]);

    for kind in CLUSTER {
        let list = site.kubectl.get(&[kind]).await;
        let ours = |name: &&str| name.contains("assent") || *name == "default";
        let left: Vec<&str> = items(&list).iter().map(name).filter(ours).collect();
        assert_eq!(left, Vec::<&str>::new(), "{kind}");
    }
    let system = site.kubectl.within(SYSTEM);
    for kind in NAMESPACED {
        let empty = |list: &Value| items(list).iter().all(is_of_kubernetes);
        system.wait(&[kind], "gone", empty).await;
    }
    let shop = site.kubectl.get(&["roles,rolebindings"]).await;
    assert_eq!(items(&shop), &[] as &[Value]);

    claims_nothing(&site.policy().await);
    claims_nothing(&api::get(&site.client, OWN).await);
    let privileged = pod("privileged", "localhost/busybox:1", true);
    site.kubectl.apply(&privileged.to_string()).await;
    remove(site).await;
}

/// Nobody enforces it, and nobody holds it up.
fn claims_nothing(policy: &Value) {
    assert!(policy["metadata"]["finalizers"].is_null(), "{policy:#}");
    for kind in ["Programmed", "Enforced", "Ready"] {
        let condition = condition(policy, kind);
        assert_eq!(condition["status"], "False", "{policy:#}");
        assert_eq!(condition["reason"], "Uninstalled", "{policy:#}");
    }
    assert_eq!(condition(policy, "Accepted")["status"], "True");
    assert!(policy["status"]["active"].is_null(), "{policy:#}");
}

/// What Kubernetes itself puts into every namespace.
fn is_of_kubernetes(object: &Value) -> bool {
    ["default", "kube-root-ca.crt"].contains(&name(object))
}

/// As documented: the users' objects, the CRDs, the namespace.
async fn remove(site: &Installation) {
    site.kubectl.run(&["delete", "cap", POLICY]).await;
    site.kubectl.run(&["delete", "ap", "own"]).await;
    let plurals = [
        "clusteradmissionpolicies",
        "admissionpolicies",
        "policyrevisions",
        "policyservers",
    ];
    let definitions = plurals.map(|plural| format!("{plural}.policies.assent.dev"));
    let definitions: Vec<&str> = definitions.iter().map(String::as_str).collect();
    site.kubectl
        .run(&[&["delete", "crd"][..], &definitions].concat())
        .await;
    site.kubectl
        .run(&["delete", "namespace", SYSTEM, SHOP])
        .await;
}
