//! The CRDs, checked by a real API server.

use assent_e2e::{
    eventually,
    kube::{ApiServer, Kubectl, with_temp_ns_on},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// One without any control plane: only the definitions decide here.
async fn with_crds(test: impl AsyncFnOnce(Kubectl)) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let start = async || {
        let server = ApiServer::start().await;
        server.install_crds().await;
        server
    };
    with_temp_ns_on(SERVER.get_or_init(start).await, test).await;
}

fn rules() -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}])
}

fn mk(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

/// A policy with these fields beside those that it must have.
fn policy(kind: &str, name: &str, more: Value) -> Value {
    let mut spec = json!({"module": "registry://example.com/policy:v1", "rules": rules()});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    mk(kind, name, spec)
}

fn revision(name: &str) -> Value {
    let digest = format!("sha256:{}", "a".repeat(64));
    let spec = json!({
        "policyRef": {"kind": "AdmissionPolicy", "name": "p", "uid": "u"},
        "generation": 1, "moduleUrl": "registry://x", "moduleDigest": digest, "moduleSize": 7,
        "abi": "wapc", "contentDigest": digest, "settings": "{}", "timeoutMs": 2000, "memoryBytes": 1,
        "policy": {"module": "x", "settings": {"deep": {"er": [1, "a", null, true]}}},
    });
    mk("PolicyRevision", name, spec)
}

#[track_caller]
fn assert_refused(result: Result<String, String>, parts: &[&str]) {
    let error = result.expect_err("it must be refused");
    for part in parts {
        assert!(error.contains(part), "{error}\nlacks {part}");
    }
}

#[tokio::test]
async fn kinds_have_names_categories_and_explanations() {
    with_crds(async |ns| {
        let group = "--api-group=policies.assent.dev";
        let table = ns
            .run(&["api-resources", group, "-o", "wide", "--no-headers"])
            .await;
        for (plural, short, namespaced) in [
            ("admissionpolicies", "ap", "true"),
            ("clusteradmissionpolicies", "cap", "false"),
            ("policyrevisions", "prev", "true"),
            ("policyservers", "ps", "false"),
        ] {
            let row = table
                .lines()
                .find(|line| line.starts_with(&format!("{plural} ")));
            let row: Vec<_> = row
                .unwrap_or_else(|| panic!("{table}"))
                .split_whitespace()
                .collect();
            assert_eq!((row[1], row[3]), (short, namespaced), "{table}");
            assert_eq!(row.last(), Some(&"assent,policy"), "{table}");
            ns.run(&["get", short]).await;
        }
        ns.run(&["get", "assent,policy"]).await;
        for (path, expect) in [
            ("cap.spec.rules.scope", "Only objects in namespaces"),
            (
                "cap.spec.policyServer",
                "The PolicyServer whose evaluators run the policy",
            ),
            (
                "ap.status.rollout.desired",
                "Number of replicas that must serve it",
            ),
            (
                "ps.spec.sources.secure.certificateFrom",
                "Where the authority's certificate is",
            ),
            (
                "prev.spec.contentDigest",
                "over everything that changes a verdict",
            ),
        ] {
            // The API server publishes schemas some time after it serves the kinds.
            eventually(&format!("{path} is explained"), async || {
                let text = ns.attempt(&["explain", path]).await.unwrap_or_default();
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                text.contains(expect)
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn defaults_are_filled_in() {
    with_crds(async |ns| {
        ns.apply(
            &policy(
                "AdmissionPolicy",
                "defaults",
                json!({"rollout": {}, "message": null}),
            )
            .to_string(),
        )
        .await;
        let object = ns.get(&["ap", "defaults"]).await;
        let spec = &object["spec"];
        for (field, expect) in [
            ("policyServer", json!("default")),
            ("settings", json!({})),
            ("mutating", json!(false)),
            ("mode", json!("protect")),
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("sideEffects", json!("None")),
            ("timeoutSeconds", json!(10)),
            ("revisionHistoryLimit", json!(5)),
            ("rollout", json!({"progressDeadlineSeconds": 600})),
        ] {
            assert_eq!(spec[field], expect, "{field}");
        }
        assert_eq!(spec["rules"][0]["scope"], "*");
        assert!(spec.get("message").is_none(), "null is absent: {spec}");
        ns.apply(&mk("PolicyServer", "defaults", json!({})).to_string())
            .await;
        let spec = ns.get(&["ps", "defaults"]).await["spec"].clone();
        let expect = json!({
            "replicas": 1,
            "hostCapabilities": ["crypto/*", "kubernetes/*", "oci/*"],
            "webhookMode": "PerPolicy",
        });
        assert_eq!(spec, expect);
    })
    .await;
}

/// A manifest of Kubewarden's, with nothing but its `apiVersion` changed.
const MOVED: &str = r#"
apiVersion: policies.assent.dev/v1alpha1
kind: ClusterAdmissionPolicy
metadata:
  name: moved
  annotations:
    io.kubewarden.policy.category: PSP
spec:
  policyServer: default
  module: ghcr.io/kubewarden/policies/psp-capabilities:v0.1.9
  mode: monitor
  rules:
  - apiGroups: ["", "apps"]
    apiVersions: ["v1"]
    resources: ["pods", "deployments"]
    operations: [CREATE, UPDATE]
  mutating: true
  backgroundAudit: false
  failurePolicy: Ignore
  matchPolicy: Exact
  matchConditions:
  - name: not-a-lease
    expression: "request.resource.resource != 'leases'"
  objectSelector:
    matchExpressions:
    - {key: app, operator: In, values: [a, b]}
  namespaceSelector:
    matchLabels: {team: shop}
  sideEffects: NoneOnDryRun
  timeoutSeconds: 12
  timeoutEvalSeconds: 5
  message: "no capabilities"
  contextAwareResources:
  - {apiVersion: v1, kind: Namespace}
  settings:
    allowed_capabilities: [CHOWN]
    nested: {any: [1, 2.5, true, null]}
"#;

#[tokio::test]
async fn kubewarden_policies_are_accepted() {
    with_crds(async |ns| {
        ns.apply(MOVED).await;
        let spec = ns.get(&["cap", "moved"]).await["spec"].clone();
        assert_eq!(spec["mode"], "monitor");
        assert_eq!(spec["backgroundAudit"], false);
        assert_eq!(spec["timeoutEvalSeconds"], 5);
        assert_eq!(
            spec["contextAwareResources"],
            json!([{"apiVersion": "v1", "kind": "Namespace"}])
        );
        assert_eq!(
            spec["namespaceSelector"],
            json!({"matchLabels": {"team": "shop"}})
        );
        assert_eq!(
            spec["settings"]["nested"]["any"],
            json!([1, 2.5, true, null])
        );
    })
    .await;
}

/// What nobody knows is there for whoever refuses it: an API server drops nothing.
#[tokio::test]
async fn unknown_fields_are_kept() {
    with_crds(async |ns| {
        let mut object = policy("AdmissionPolicy", "unknown", json!({"severity": "high"}));
        object["spec"]["rules"][0]["verbs"] = json!(["get"]);
        ns.apply(&object.to_string()).await;
        let spec = ns.get(&["ap", "unknown"]).await["spec"].clone();
        assert_eq!(spec["severity"], "high");
        assert_eq!(spec["rules"][0]["verbs"], json!(["get"]));
        let server = mk(
            "PolicyServer",
            "unknown",
            json!({"insecureSources": ["a"], "sources": {"other": 1}}),
        );
        ns.apply(&server.to_string()).await;
        let spec = ns.get(&["ps", "unknown"]).await["spec"].clone();
        assert_eq!(spec["insecureSources"], json!(["a"]));
        assert_eq!(spec["sources"]["other"], 1);
    })
    .await;
}

#[tokio::test]
async fn api_server_validates_policies() {
    with_crds(async |ns| {
        for kind in ["AdmissionPolicy", "ClusterAdmissionPolicy"] {
            let refused = async |more: Value, parts: &[&str]| {
                let object = policy(kind, "checked", more).to_string();
                assert_refused(ns.try_apply(&object).await, parts);
            };
            refused(
                json!({"timeoutEvalSeconds": 10}),
                &["timeoutEvalSeconds must be less than timeoutSeconds"],
            )
            .await;
            refused(json!({"timeoutSeconds": 31}), &["spec.timeoutSeconds"]).await;
            refused(
                json!({"mode": "watch"}),
                &["spec.mode", "\"protect\", \"monitor\""],
            )
            .await;
            refused(json!({"rules": []}), &["spec.rules"]).await;
            refused(json!({"module": null}), &["give either module or source"]).await;
            let good = json!({"timeoutEvalSeconds": 9, "timeoutSeconds": 10});
            ns.apply(&policy(kind, "checked", good.clone()).to_string())
                .await;
            let mut moved = good;
            moved["policyServer"] = json!("other");
            refused(moved, &["policyServer is immutable"]).await;
            ns.apply(&policy(kind, "checked", json!({"mode": "monitor"})).to_string())
                .await;
        }
        let with = |field: &str, value: Value| {
            let mut rules = rules();
            rules[0][field] = value;
            json!({ "rules": rules })
        };
        let everything = "wildcards on everything are refused";
        let mut all = with("resources", json!(["*"]));
        all["rules"][0]["apiGroups"] = json!(["*"]);
        for (more, expect) in [
            (with("resources", json!(["*/*"])), everything),
            (all.clone(), everything),
            (
                with("scope", json!("Cluster")),
                "sees no cluster-scoped objects",
            ),
        ] {
            let object = policy("AdmissionPolicy", "wide", more.clone()).to_string();
            assert_refused(ns.try_apply(&object).await, &[expect]);
            ns.apply(&policy("ClusterAdmissionPolicy", "wide", more).to_string())
                .await;
        }
        let core = with("resources", json!(["*"]));
        ns.apply(&policy("AdmissionPolicy", "wide", core).to_string())
            .await;
    })
    .await;
}

#[tokio::test]
async fn api_server_validates_servers() {
    with_crds(async |ns| {
        let secure = |source: Value| json!({"sources": {"secure": [source]}});
        let from = json!({"configMapKeyRef": {"name": "ca", "key": "ca.crt"}});
        for (spec, expect) in [
            (json!({"replicas": -1}), "spec.replicas"),
            (json!({"minAvailable": 1, "maxUnavailable": "50%"}), "minAvailable or maxUnavailable"),
            (secure(json!({"name": "a"})), "give certificate or certificateFrom"),
            (
                secure(json!({"name": "a", "certificate": "PEM", "certificateFrom": from})),
                "give certificate or certificateFrom",
            ),
            (json!({"verification": {"publicKeys": []}}), "spec.verification.publicKeys"),
            (json!({"webhookMode": "Grouped"}), "spec.webhookMode"),
        ] {
            let object = mk("PolicyServer", "checked", spec).to_string();
            assert_refused(ns.try_apply(&object).await, &[expect]);
        }
        let full = json!({
            "replicas": 2, "image": "example.com/evaluator:1", "minAvailable": "50%",
            "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "labels": {"a": "b"}, "annotations": {"a/b": "c"},
            "sources": {"insecure": ["registry.local:5000"], "secure": [
                {"name": "a", "certificate": "PEM"}, {"name": "b", "certificateFrom": from}]},
            "resources": {"limits": {"cpu": 1, "memory": "64Mi"}, "requests": {"cpu": "100m"}},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            "securityContexts": {"container": {"runAsUser": 1}, "pod": {"fsGroup": 2}},
            "limits": {"timeoutEvalSeconds": 2, "memory": "64Mi"},
            "storage": {"size": "1Gi", "storageClassName": "fast"},
            "injection": {"allowedNamespaces": ["shop"]},
            "verification": {"publicKeys": ["PEM"]},
            "hostCapabilities": ["net/*"], "namespacedPoliciesCapabilities": ["oci/v1/verify"],
            "webhookMode": "PerPolicy",
        });
        ns.apply(&mk("PolicyServer", "checked", full.clone()).to_string()).await;
        let spec = ns.get(&["ps", "checked"]).await["spec"].clone();
        assert_eq!(spec, full, "nothing is dropped, nothing rewritten");
        let budget = json!({"maxUnavailable": 1});
        ns.apply(&mk("PolicyServer", "budget", budget).to_string()).await;
    })
    .await;
}

#[tokio::test]
async fn revisions_are_immutable() {
    with_crds(async |ns| {
        ns.apply(&revision("p-1-u").to_string()).await;
        let stored = ns.get(&["prev", "p-1-u"]).await;
        assert_eq!(stored["spec"], revision("p-1-u")["spec"]);
        for change in [
            json!({"spec": {"generation": 2}}),
            json!({"spec": {"settings": "{\"a\":1}"}}),
            json!({"spec": {"policy": {"settings": {"deep": {"er": []}}}}}),
            json!({"spec": {"policy": {"more": true}}}),
            json!({"spec": {"hostCapabilities": ["a"]}}),
        ] {
            let patch = change.to_string();
            let args = ["patch", "prev", "p-1-u", "--type=merge", "-p", &patch];
            assert_refused(ns.attempt(&args).await, &["a revision is immutable"]);
        }
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        ns.patch(&["prev", "p-1-u"], &label).await;
        let status = ["prev", "p-1-u", "--subresource=status"];
        ns.patch(&status, &json!({"status": {"phase": "Active"}}))
            .await;
        let patch = json!({"status": {"phase": "Lost"}}).to_string();
        let args = [
            "patch",
            "prev",
            "p-1-u",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        assert_refused(ns.attempt(&args).await, &["status.phase"]);
        let mut bad = revision("bad");
        bad["spec"]["moduleDigest"] = json!("sha256:abc");
        assert_refused(ns.try_apply(&bad.to_string()).await, &["spec.moduleDigest"]);
    })
    .await;
}

#[tokio::test]
async fn servers_scale() {
    with_crds(async |ns| {
        ns.apply(&mk("PolicyServer", "scaled", json!({})).to_string())
            .await;
        let status = json!({"status": {"replicas": 3, "readyReplicas": 2, "selector": "a=b"}});
        ns.patch(&["ps", "scaled", "--subresource=status"], &status)
            .await;
        ns.run(&["scale", "ps", "scaled", "--replicas=3"]).await;
        let path = "/apis/policies.assent.dev/v1alpha1/policyservers/scaled/scale";
        let scale = ns.run(&["get", "--raw", path]).await;
        let scale: Value = serde_json::from_str(&scale).expect("a Scale must be JSON");
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 3, "selector": "a=b"}));
        assert_eq!(
            columns(&ns, "ps", "scaled", "").await,
            ["NAME", "REPLICAS", "READY", "AGE"]
        );
        let row = ns.run(&["get", "ps", "scaled", "--no-headers"]).await;
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(row[..3], ["scaled", "3", "2"]);
    })
    .await;
}

/// The columns of a table.
async fn columns(ns: &Kubectl, kind: &str, name: &str, output: &str) -> Vec<String> {
    let table = match output {
        "" => ns.run(&["get", kind, name]).await,
        output => ns.run(&["get", kind, name, "-o", output]).await,
    };
    let header = table.lines().next().unwrap_or_default();
    header.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn status_is_shown_in_columns() {
    with_crds(async |ns| {
        ns.apply(&policy("AdmissionPolicy", "told", json!({})).to_string()).await;
        let condition = |kind: &str, reason: &str| {
            json!({"type": kind, "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let digest = format!("sha256:{}", "b".repeat(64));
        let status = json!({"status": {
            "observedGeneration": 1,
            "active": {"generation": 1, "revision": "1-5f2a9c1e", "since": "2026-01-01T00:00:00Z", "digest": digest},
            "pending": {"generation": 2},
            "rollout": {"desired": 3, "applied": 2, "rejected": 1, "behind": 0, "disconnected": 0},
            "replicas": [{"name": "r-0", "generation": 1, "conditions": [condition("Ready", "Ready")]}],
            "replicasOmitted": 0,
            "conditions": [condition("Accepted", "Accepted"), condition("Enforced", "Enforced"), condition("Ready", "Current")],
        }});
        let args = ["ap", "told", "--subresource=status"];
        ns.patch(&args, &status).await;
        assert_eq!(ns.get(&["ap", "told"]).await["status"], status["status"]);
        ns.run(&["wait", "--for=condition=Enforced", "--timeout=10s", "ap/told"]).await;
        let short = ["NAME", "SERVER", "MODE", "ACCEPTED", "ENFORCED", "ACTIVE", "APPLIED", "WANT", "AGE"];
        assert_eq!(columns(&ns, "ap", "told", "").await, short);
        let wide = [&short[..], &["REASON", "MODULE", "DIGEST"]].concat();
        assert_eq!(columns(&ns, "ap", "told", "wide").await, wide);
        let row = ns.run(&["get", "ap", "told", "--no-headers"]).await;
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(row[..8], ["told", "default", "protect", "True", "True", "1", "2", "3"]);
        let twice = json!({"status": {"conditions": [condition("Ready", "A"), condition("Ready", "B")]}}).to_string();
        let args = ["patch", "ap", "told", "--subresource=status", "--type=merge", "-p", &twice];
        assert_refused(ns.attempt(&args).await, &["Duplicate value"]);
    })
    .await;
}
