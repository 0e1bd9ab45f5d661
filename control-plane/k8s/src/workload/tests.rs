//! Tests of what is built; all synchronous.

#![allow(clippy::unwrap_used)]

mod container;

use assent_api::{Manifest, ParsedServer, parse};
use expect_test::{Expect, expect};
use serde::Serialize;
use serde_json::{Value, json};

use super::*;

const UID: &str = "server-uid";

#[track_caller]
fn mk_server(spec: Value) -> ParsedServer {
    let object = json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "default"}, "spec": spec,
    });
    match parse::manifest(&object, &assent_api::Options::default()).unwrap() {
        Manifest::Server(server) => *server,
        other => panic!("not a server: {other:?}"),
    }
}

fn mk_options() -> Options {
    Options {
        namespace: "assent-system".into(),
        image: "example.com/assent-evaluator:v1".into(),
        image_pull_policy: None,
        discovery: "https://assent.assent-system.svc:15010".into(),
        network_policy: false,
    }
}

fn build(spec: Value) -> Objects {
    objects(&mk_server(spec), UID, &mk_options())
}

fn set_of(spec: Value) -> Value {
    serde_json::to_value(build(spec).stateful_set).unwrap()
}

fn pod_of(spec: Value) -> Value {
    set_of(spec)["spec"]["template"].take()
}

#[track_caller]
fn check(object: &impl Serialize, expect: &Expect) {
    let value = serde_json::to_value(object).unwrap();
    expect.assert_eq(&serde_json::to_string_pretty(&value).unwrap());
}

/// Every field that shapes objects.
fn everything() -> Value {
    json!({
        "replicas": 3,
        "image": "example.com/mine:v2",
        "env": [{"name": "ASSENT_LOG", "value": "debug"}],
        "annotations": {"note": "mine"},
        "labels": {"team": "x"},
        "imagePullSecret": "pull",
        "serviceAccountName": "mine",
        "resources": {"limits": {"memory": "1Gi"}},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}],
        }}},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-cluster-critical",
        "securityContexts": {
            "container": {"runAsUser": 1000},
            "pod": {"fsGroup": 1000},
        },
        "minAvailable": "50%",
        "storage": {"size": "1Gi", "storageClassName": "fast"},
    })
}

#[test]
fn plain_server_has_these_objects() {
    let objects = build(json!({}));
    check(
        &objects.stateful_set,
        &expect![[r#"
            {
              "apiVersion": "apps/v1",
              "kind": "StatefulSet",
              "metadata": {
                "annotations": {
                  "policies.assent.dev/fixed-hash": "c10fb4f0125b6a7095289ebb10b1a581"
                },
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
                "podManagementPolicy": "Parallel",
                "replicas": 1,
                "selector": {
                  "matchLabels": {
                    "app.kubernetes.io/component": "policy-server",
                    "app.kubernetes.io/managed-by": "assent",
                    "policies.assent.dev/policy-server": "default"
                  }
                },
                "serviceName": "policy-server-default-headless",
                "template": {
                  "metadata": {
                    "annotations": {
                      "policies.assent.dev/evaluator-hash": "1392917b3781b0f3dd71b1723a43a1a2"
                    },
                    "labels": {
                      "app.kubernetes.io/component": "policy-server",
                      "app.kubernetes.io/managed-by": "assent",
                      "policies.assent.dev/policy-server": "default"
                    }
                  },
                  "spec": {
                    "affinity": {
                      "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                          {
                            "podAffinityTerm": {
                              "labelSelector": {
                                "matchLabels": {
                                  "app.kubernetes.io/component": "policy-server",
                                  "app.kubernetes.io/managed-by": "assent",
                                  "policies.assent.dev/policy-server": "default"
                                }
                              },
                              "topologyKey": "kubernetes.io/hostname"
                            },
                            "weight": 100
                          }
                        ]
                      }
                    },
                    "automountServiceAccountToken": false,
                    "containers": [
                      {
                        "image": "assent.invalid/auto",
                        "name": "evaluator"
                      }
                    ],
                    "enableServiceLinks": false,
                    "securityContext": {
                      "fsGroup": 65532,
                      "runAsGroup": 65532,
                      "runAsNonRoot": true,
                      "runAsUser": 65532,
                      "seccompProfile": {
                        "type": "RuntimeDefault"
                      }
                    },
                    "serviceAccountName": "policy-server-default",
                    "terminationGracePeriodSeconds": 30
                  }
                },
                "updateStrategy": {
                  "rollingUpdate": {
                    "maxUnavailable": 1
                  },
                  "type": "RollingUpdate"
                }
              }
            }"#]],
    );
    check(
        &objects.headless,
        &expect![[r#"
        {
          "apiVersion": "v1",
          "kind": "Service",
          "metadata": {
            "labels": {
              "app.kubernetes.io/component": "policy-server",
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy-server": "default"
            },
            "name": "policy-server-default-headless",
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
            "clusterIP": "None",
            "ports": [
              {
                "name": "https",
                "port": 8443,
                "protocol": "TCP",
                "targetPort": 8443
              },
              {
                "name": "admin",
                "port": 8081,
                "protocol": "TCP",
                "targetPort": 8081
              }
            ],
            "publishNotReadyAddresses": true,
            "selector": {
              "app.kubernetes.io/component": "policy-server",
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy-server": "default"
            }
          }
        }"#]],
    );
    check(
        &objects.webhook,
        &expect![[r#"
        {
          "apiVersion": "v1",
          "kind": "Service",
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
            "ports": [
              {
                "name": "https",
                "port": 443,
                "protocol": "TCP",
                "targetPort": 8443
              }
            ],
            "selector": {
              "app.kubernetes.io/component": "policy-server",
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy-server": "default"
            },
            "type": "ClusterIP"
          }
        }"#]],
    );
    check(
        &objects.disruption_budget,
        &expect![[r#"
        {
          "apiVersion": "policy/v1",
          "kind": "PodDisruptionBudget",
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
            "maxUnavailable": 1,
            "selector": {
              "matchLabels": {
                "app.kubernetes.io/component": "policy-server",
                "app.kubernetes.io/managed-by": "assent",
                "policies.assent.dev/policy-server": "default"
              }
            },
            "unhealthyPodEvictionPolicy": "AlwaysAllow"
          }
        }"#]],
    );
    check(
        &objects.service_account,
        &expect![[r#"
        {
          "apiVersion": "v1",
          "automountServiceAccountToken": false,
          "kind": "ServiceAccount",
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
          }
        }"#]],
    );
    assert_eq!(objects.network_policy, None);
}

#[test]
fn server_with_every_field_has_these_objects() {
    let objects = build(everything());
    check(
        &objects.stateful_set,
        &expect![[r#"
            {
              "apiVersion": "apps/v1",
              "kind": "StatefulSet",
              "metadata": {
                "annotations": {
                  "policies.assent.dev/fixed-hash": "eea92fc1a046863d87172f4ad9a772bd"
                },
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
                "persistentVolumeClaimRetentionPolicy": {
                  "whenDeleted": "Delete",
                  "whenScaled": "Delete"
                },
                "podManagementPolicy": "Parallel",
                "replicas": 3,
                "selector": {
                  "matchLabels": {
                    "app.kubernetes.io/component": "policy-server",
                    "app.kubernetes.io/managed-by": "assent",
                    "policies.assent.dev/policy-server": "default"
                  }
                },
                "serviceName": "policy-server-default-headless",
                "template": {
                  "metadata": {
                    "annotations": {
                      "note": "mine",
                      "policies.assent.dev/evaluator-hash": "c7e4fa3eb866e6cc253b6c54ce377bd6"
                    },
                    "labels": {
                      "app.kubernetes.io/component": "policy-server",
                      "app.kubernetes.io/managed-by": "assent",
                      "policies.assent.dev/policy-server": "default",
                      "team": "x"
                    }
                  },
                  "spec": {
                    "affinity": {
                      "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                          "nodeSelectorTerms": [
                            {
                              "matchExpressions": [
                                {
                                  "key": "zone",
                                  "operator": "Exists"
                                }
                              ]
                            }
                          ]
                        }
                      },
                      "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                          {
                            "podAffinityTerm": {
                              "labelSelector": {
                                "matchLabels": {
                                  "app.kubernetes.io/component": "policy-server",
                                  "app.kubernetes.io/managed-by": "assent",
                                  "policies.assent.dev/policy-server": "default"
                                }
                              },
                              "topologyKey": "kubernetes.io/hostname"
                            },
                            "weight": 100
                          }
                        ]
                      }
                    },
                    "automountServiceAccountToken": false,
                    "containers": [
                      {
                        "image": "assent.invalid/auto",
                        "name": "evaluator"
                      }
                    ],
                    "enableServiceLinks": false,
                    "imagePullSecrets": [
                      {
                        "name": "pull"
                      }
                    ],
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                      "fsGroup": 1000
                    },
                    "serviceAccountName": "mine",
                    "terminationGracePeriodSeconds": 30,
                    "tolerations": [
                      {
                        "effect": "NoSchedule",
                        "key": "k",
                        "operator": "Exists"
                      }
                    ]
                  }
                },
                "updateStrategy": {
                  "rollingUpdate": {
                    "maxUnavailable": 1
                  },
                  "type": "RollingUpdate"
                },
                "volumeClaimTemplates": [
                  {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                      "name": "assent-cache"
                    },
                    "spec": {
                      "accessModes": [
                        "ReadWriteOnce"
                      ],
                      "resources": {
                        "requests": {
                          "storage": "1Gi"
                        }
                      },
                      "storageClassName": "fast"
                    }
                  }
                ]
              }
            }"#]],
    );
    check(
        &objects.disruption_budget.spec,
        &expect![[r#"
        {
          "minAvailable": "50%",
          "selector": {
            "matchLabels": {
              "app.kubernetes.io/component": "policy-server",
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy-server": "default"
            }
          },
          "unhealthyPodEvictionPolicy": "AlwaysAllow"
        }"#]],
    );
    assert_eq!(objects.service_account, None);
}

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
