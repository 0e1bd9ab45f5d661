//! A PolicyServer in which every field is set.

use super::*;

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
                      },
                      {
                        "name": "mirror"
                      }
                    ],
                    "nodeSelector": {
                      "kubernetes.io/os": "linux"
                    },
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
                    ],
                    "topologySpreadConstraints": [
                      {
                        "labelSelector": {
                          "matchLabels": {
                            "team": "x"
                          }
                        },
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "ScheduleAnyway"
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
