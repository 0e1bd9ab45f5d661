//! Tests of what is built; all synchronous.

#![allow(clippy::unwrap_used)]

mod container;
mod every_field;
mod fields;

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
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "topologySpreadConstraints": [{
            "topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"team": "x"}},
        }],
        "imagePullSecrets": [{"name": "pull"}, {"name": "mirror"}],
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
