//! Single fields of a PolicyServer, and the objects that they change.

use super::*;

#[test]
fn network_policy_is_created_on_request() {
    let options = Options {
        network_policy: true,
        ..mk_options()
    };
    let objects = objects(&mk_server(json!({})), UID, &options);
    check(
        &objects.network_policy,
        &expect![[r#"
        {
          "apiVersion": "networking.k8s.io/v1",
          "kind": "NetworkPolicy",
          "metadata": {
            "labels": {
              "app.kubernetes.io/component": "policy-server",
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy-server": "default"
            },
            "name": "policy-server-default",
            "namespace": "assent-system",
            "ownerReferences": [
              {
                "apiVersion": "policies.assent.dev/v1alpha1",
                "controller": true,
                "kind": "PolicyServer",
                "name": "default",
                "uid": "server-uid"
              }
            ]
          },
          "spec": {
            "egress": [
              {
                "ports": [
                  {
                    "port": 53,
                    "protocol": "UDP"
                  },
                  {
                    "port": 53,
                    "protocol": "TCP"
                  }
                ]
              },
              {
                "to": [
                  {
                    "podSelector": {}
                  }
                ]
              }
            ],
            "ingress": [
              {
                "ports": [
                  {
                    "port": 8443,
                    "protocol": "TCP"
                  },
                  {
                    "port": 8081,
                    "protocol": "TCP"
                  }
                ]
              }
            ],
            "podSelector": {
              "matchLabels": {
                "app.kubernetes.io/component": "policy-server",
                "app.kubernetes.io/managed-by": "assent",
                "policies.assent.dev/policy-server": "default"
              }
            },
            "policyTypes": [
              "Ingress",
              "Egress"
            ]
          }
        }"#]],
    );
}

#[test]
fn own_labels_and_annotations_win() {
    let mut spec = json!({"labels": {"mine": "1"}, "annotations": {"mine": "1"}});
    for name in pod_labels("default").keys() {
        spec["labels"][name] = json!("stolen");
    }
    spec["annotations"][names::TEMPLATE_HASH_ANNOTATION] = json!("stolen");
    let pod = pod_of(spec);
    assert_eq!(pod["metadata"]["labels"]["mine"], "1");
    assert_eq!(pod["metadata"]["annotations"]["mine"], "1");
    assert!(!pod.to_string().contains("stolen"));
}

#[test]
fn users_anti_affinity_replaces_the_default() {
    let theirs = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}});
    let pod = pod_of(json!({"affinity": theirs}));
    let affinity = &pod["spec"]["affinity"]["podAntiAffinity"];
    let soft = "preferredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(affinity.get(soft), None);
    let ours = pod_of(json!({"affinity": {}}));
    let ours = &ours["spec"]["affinity"]["podAntiAffinity"][soft][0];
    let labels = &ours["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(labels[names::SERVER_LABEL], "default");
}

#[test]
fn spread_without_a_selector_counts_the_servers_pods() {
    let spread = |constraint| {
        let mut pod = pod_of(json!({"topologySpreadConstraints": [constraint]}));
        pod["spec"]["topologySpreadConstraints"][0].take()
    };
    let zone = json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    let labels = &spread(zone.clone())["labelSelector"]["matchLabels"];
    assert_eq!(*labels, json!(pod_labels("default")));
    let mut own = zone;
    own["labelSelector"] = json!({"matchLabels": {"team": "x"}});
    assert_eq!(spread(own.clone()), own);
    let plain = pod_of(json!({}));
    assert_eq!(plain["spec"].get("topologySpreadConstraints"), None);
}

#[test]
fn secrets_for_the_image_do_not_replace_that_for_modules() {
    let secrets = |spec| pod_of(spec)["spec"]["imagePullSecrets"].take();
    let list = json!([{"name": "a"}]);
    assert_eq!(secrets(json!({"imagePullSecrets": list})), list);
    let both = json!({"imagePullSecret": "m", "imagePullSecrets": [{"name": "a"}, {"name": "m"}]});
    assert_eq!(secrets(both), json!([{"name": "m"}, {"name": "a"}]));
    let parts = |place| {
        let server = mk_server(json!({"imagePullSecret": "m", "imagePullSecrets": list}));
        evaluator_container(&server, &mk_options(), place).pull_secrets
    };
    assert_eq!(json!(parts(Place::Beside)), list);
    assert!(parts(Place::Own).is_empty());
}

#[test]
fn disruption_budget_sets_one_field() {
    let budget = |spec| serde_json::to_value(build(spec).disruption_budget.spec).unwrap();
    let one = budget(json!({"maxUnavailable": 2}));
    assert_eq!(one["maxUnavailable"], 2);
    let other = budget(json!({"minAvailable": 2}));
    assert_eq!(other["minAvailable"], 2);
    assert_eq!(other.get("maxUnavailable"), None);
}

#[test]
fn pods_outlive_their_drain() {
    let grace = |value: &str| {
        let env = json!({"env": [{"name": "ASSENT_DRAIN_SECONDS", "value": value}]});
        pod_of(env)["spec"]["terminationGracePeriodSeconds"].take()
    };
    assert_eq!(
        pod_of(json!({}))["spec"]["terminationGracePeriodSeconds"],
        30
    );
    assert_eq!(grace("59.5"), 75);
    assert_eq!(grace("-1"), 15);
    assert_eq!(grace("nonsense"), 30);
}

/// The hashes of a StatefulSet: of what it runs, and of what can't be changed.
fn hashes(spec: Value) -> (Value, Value) {
    let mut set = set_of(spec);
    let pod = &mut set["spec"]["template"]["metadata"]["annotations"];
    let pod = pod[names::TEMPLATE_HASH_ANNOTATION].take();
    let fixed = set["metadata"]["annotations"][names::FIXED_HASH_ANNOTATION].take();
    (pod, fixed)
}

#[test]
fn hashes_tell_kinds_of_changes_apart() {
    let plain = hashes(json!({}));
    assert_eq!(hashes(json!({"replicas": 5, "labels": {"a": "b"}})), plain);
    let image = hashes(json!({"image": "example.com/other"}));
    assert_ne!(image.0, plain.0);
    assert_eq!(image.1, plain.1);
    let stored = hashes(json!({"storage": {"size": "1Gi"}}));
    assert_ne!(stored.0, plain.0);
    assert_ne!(stored.1, plain.1);
    let larger = hashes(json!({"storage": {"size": "2Gi"}}));
    assert_eq!(larger.0, stored.0);
    assert_ne!(larger.1, stored.1);
}

#[test]
fn selector_matches_own_pods() {
    expect!["app.kubernetes.io/component=policy-server,app.kubernetes.io/managed-by=assent,policies.assent.dev/policy-server=default"].assert_eq(&selector("default"));
}
