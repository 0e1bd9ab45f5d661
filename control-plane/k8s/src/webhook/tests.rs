//! Tests of the desired configuration, the reader and the comparison; all synchronous.

#![allow(clippy::unwrap_used)]

mod compare;
mod exempt;

use assent_api::{Options, Parsed, parse};
use assent_core::{PolicyKey, RevisionId};
use expect_test::{Expect, expect};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::*;

const UID: &str = "5f2a9c1e-0000-4000-8000-000000000000";

/// A cluster policy with the required fields and these.
#[track_caller]
fn mk_policy(more: Value) -> Parsed {
    mk(&PolicyKey::cluster("x"), more)
}

#[track_caller]
fn mk(key: &PolicyKey, more: Value) -> Parsed {
    let mut spec = json!({
        "module": "registry://example.com/module:v1",
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE"],
        }],
    });
    let (Value::Object(spec_map), Value::Object(more)) = (&mut spec, more) else {
        panic!("fields must be an object");
    };
    spec_map.extend(more);
    parse::spec(key, &spec, &Options::default()).unwrap()
}

fn mk_defaults() -> WebhookDefaults {
    WebhookDefaults {
        namespace: "assent-system".into(),
        namespace_uid: "ns-uid".into(),
        ca_bundle: b"PEM".to_vec(),
        excluded_namespaces: vec!["kube-system".into(), "other".into()],
        service_accounts: vec!["system:serviceaccount:assent-system:assent".into()],
    }
}

fn by_service() -> WebhookEndpoint {
    WebhookEndpoint::Service {
        namespace: "assent-system".into(),
        name: "policy-server-default".into(),
        port: 443,
    }
}

/// The first configuration of a policy.
fn build_at(policy: &Parsed, endpoint: &WebhookEndpoint) -> Desired {
    build_all(policy, endpoint).remove(0)
}

fn build_all(policy: &Parsed, endpoint: &WebhookEndpoint) -> Vec<Desired> {
    desired(&Input {
        policy,
        revision: &RevisionId::new(&policy.key, 12, UID),
        resolved: &ResolvedRevision::default(),
        uid: UID,
        endpoint,
        defaults: &mk_defaults(),
        confirmed: true,
    })
}

fn build(policy: &Parsed) -> Desired {
    build_at(policy, &by_service())
}

fn json_of(desired: &Desired) -> Value {
    match desired {
        Desired::Validating(object) => serde_json::to_value(object),
        Desired::Mutating(object) => serde_json::to_value(object),
    }
    .unwrap()
}

/// As the API server returns it, without defaults.
fn stored(desired: &Desired) -> DynamicObject {
    serde_json::from_value(json_of(desired)).unwrap()
}

/// The only webhook of a policy's configuration.
fn webhook_of(policy: &Parsed) -> Value {
    json_of(&build(policy))["webhooks"][0].take()
}

#[track_caller]
fn check(desired: &Desired, expect: &Expect) {
    let text = serde_json::to_string_pretty(&json_of(desired)).unwrap();
    expect.assert_eq(&text);
}

/// Every field that determines which requests are seen, and how.
fn everything() -> Value {
    json!({
        "rules": [
            {
                "apiGroups": ["", "apps"], "apiVersions": ["v1"],
                "resources": ["pods", "deployments/scale"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
            },
            {
                "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["namespaces"],
                "operations": ["DELETE", "CONNECT"], "scope": "Cluster",
            },
        ],
        "mutating": true,
        "failurePolicy": "Ignore",
        "matchPolicy": "Exact",
        "matchConditions": [{"name": "mine", "expression": "object.metadata.name != 'x'"}],
        "objectSelector": {
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "Exists"}],
        },
        "namespaceSelector": {
            "matchLabels": {"team": "x"},
            "matchExpressions": [{"key": "env", "operator": "In", "values": ["prod", "test"]}],
        },
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 7,
    })
}

#[test]
fn plain_cluster_policy_makes_a_validating_configuration() {
    check(
        &build(&mk_policy(json!({}))),
        &expect![[r#"
        {
          "apiVersion": "admissionregistration.k8s.io/v1",
          "kind": "ValidatingWebhookConfiguration",
          "metadata": {
            "annotations": {
              "policies.assent.dev/policy": "cluster/x",
              "policies.assent.dev/policy-uid": "5f2a9c1e-0000-4000-8000-000000000000",
              "policies.assent.dev/revision": "{\"revision\":\"\",\"contentDigest\":\"\",\"moduleUrl\":\"\",\"moduleDigest\":\"\",\"moduleSize\":0,\"abi\":\"\",\"timeoutMs\":0,\"memoryBytes\":0}"
            },
            "labels": {
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy": "72aa6d476470a038548222b6b890a65c"
            },
            "name": "assent.cluster.x",
            "ownerReferences": [
              {
                "apiVersion": "v1",
                "kind": "Namespace",
                "name": "assent-system",
                "uid": "ns-uid"
              }
            ]
          },
          "webhooks": [
            {
              "admissionReviewVersions": [
                "v1"
              ],
              "clientConfig": {
                "caBundle": "UEVN",
                "service": {
                  "name": "policy-server-default",
                  "namespace": "assent-system",
                  "path": "/validate/cluster/x/12-5f2a9c1e",
                  "port": 443
                }
              },
              "failurePolicy": "Fail",
              "matchConditions": [
                {
                  "expression": "!(request.resource.group == \"policies.assent.dev\"\n|| request.resource.group == \"\" && request.resource.resource in [\"events\", \"nodes\"]\n|| request.resource.group == \"events.k8s.io\" && request.resource.resource in [\"events\"]\n|| request.resource.group == \"certificates.k8s.io\" && request.resource.resource in [\"certificatesigningrequests\"]\n|| request.resource.group == \"coordination.k8s.io\" && request.resource.resource in [\"leases\"]\n|| request.resource.group == \"authentication.k8s.io\" && request.resource.resource in [\"tokenreviews\"]\n|| request.resource.group == \"authorization.k8s.io\" && request.resource.resource in [\"localsubjectaccessreviews\", \"selfsubjectaccessreviews\", \"selfsubjectrulesreviews\", \"subjectaccessreviews\"]\n|| has(request.userInfo.username) && request.userInfo.username in [\"system:serviceaccount:assent-system:assent\"])",
                  "name": "policies.assent.dev/exempt"
                }
              ],
              "matchPolicy": "Equivalent",
              "name": "cluster.x.policies.assent.dev",
              "namespaceSelector": {
                "matchExpressions": [
                  {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": [
                      "assent-system",
                      "kube-node-lease",
                      "kube-system",
                      "other"
                    ]
                  }
                ]
              },
              "objectSelector": {},
              "rules": [
                {
                  "apiGroups": [
                    ""
                  ],
                  "apiVersions": [
                    "v1"
                  ],
                  "operations": [
                    "CREATE"
                  ],
                  "resources": [
                    "pods"
                  ],
                  "scope": "*"
                }
              ],
              "sideEffects": "None",
              "timeoutSeconds": 10
            }
          ]
        }"#]],
    );
}

#[test]
fn every_field_of_a_mutating_policy_is_written() {
    check(
        &build(&mk_policy(everything())),
        &expect![[r#"
        {
          "apiVersion": "admissionregistration.k8s.io/v1",
          "kind": "MutatingWebhookConfiguration",
          "metadata": {
            "annotations": {
              "policies.assent.dev/policy": "cluster/x",
              "policies.assent.dev/policy-uid": "5f2a9c1e-0000-4000-8000-000000000000",
              "policies.assent.dev/revision": "{\"revision\":\"\",\"contentDigest\":\"\",\"moduleUrl\":\"\",\"moduleDigest\":\"\",\"moduleSize\":0,\"abi\":\"\",\"timeoutMs\":0,\"memoryBytes\":0}"
            },
            "labels": {
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy": "72aa6d476470a038548222b6b890a65c"
            },
            "name": "assent.cluster.x",
            "ownerReferences": [
              {
                "apiVersion": "v1",
                "kind": "Namespace",
                "name": "assent-system",
                "uid": "ns-uid"
              }
            ]
          },
          "webhooks": [
            {
              "admissionReviewVersions": [
                "v1"
              ],
              "clientConfig": {
                "caBundle": "UEVN",
                "service": {
                  "name": "policy-server-default",
                  "namespace": "assent-system",
                  "path": "/validate/cluster/x/12-5f2a9c1e",
                  "port": 443
                }
              },
              "failurePolicy": "Ignore",
              "matchConditions": [
                {
                  "expression": "!(request.resource.group == \"policies.assent.dev\"\n|| request.resource.group == \"\" && request.resource.resource in [\"events\", \"nodes\"]\n|| request.resource.group == \"events.k8s.io\" && request.resource.resource in [\"events\"]\n|| request.resource.group == \"certificates.k8s.io\" && request.resource.resource in [\"certificatesigningrequests\"]\n|| request.resource.group == \"coordination.k8s.io\" && request.resource.resource in [\"leases\"]\n|| request.resource.group == \"authentication.k8s.io\" && request.resource.resource in [\"tokenreviews\"]\n|| request.resource.group == \"authorization.k8s.io\" && request.resource.resource in [\"localsubjectaccessreviews\", \"selfsubjectaccessreviews\", \"selfsubjectrulesreviews\", \"subjectaccessreviews\"]\n|| has(request.userInfo.username) && request.userInfo.username in [\"system:serviceaccount:assent-system:assent\"])",
                  "name": "policies.assent.dev/exempt"
                },
                {
                  "expression": "object.metadata.name != 'x'",
                  "name": "mine"
                }
              ],
              "matchPolicy": "Exact",
              "name": "cluster.x.policies.assent.dev",
              "namespaceSelector": {
                "matchExpressions": [
                  {
                    "key": "env",
                    "operator": "In",
                    "values": [
                      "prod",
                      "test"
                    ]
                  },
                  {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": [
                      "assent-system",
                      "kube-node-lease",
                      "kube-system",
                      "other"
                    ]
                  }
                ],
                "matchLabels": {
                  "team": "x"
                }
              },
              "objectSelector": {
                "matchExpressions": [
                  {
                    "key": "c",
                    "operator": "Exists"
                  }
                ],
                "matchLabels": {
                  "a": "b"
                }
              },
              "reinvocationPolicy": "IfNeeded",
              "rules": [
                {
                  "apiGroups": [
                    "",
                    "apps"
                  ],
                  "apiVersions": [
                    "v1"
                  ],
                  "operations": [
                    "CREATE",
                    "UPDATE"
                  ],
                  "resources": [
                    "pods",
                    "deployments/scale"
                  ],
                  "scope": "Namespaced"
                },
                {
                  "apiGroups": [
                    "*"
                  ],
                  "apiVersions": [
                    "*"
                  ],
                  "operations": [
                    "DELETE",
                    "CONNECT"
                  ],
                  "resources": [
                    "namespaces"
                  ],
                  "scope": "Cluster"
                }
              ],
              "sideEffects": "NoneOnDryRun",
              "timeoutSeconds": 7
            }
          ]
        }"#]],
    );
}

#[test]
fn namespaced_policy_is_reached_by_url() {
    let policy = mk(&PolicyKey::namespaced("team", "x"), json!({}));
    let endpoint = WebhookEndpoint::Url("https://127.0.0.1:8443/base/".into());
    check(
        &build_at(&policy, &endpoint),
        &expect![[r#"
        {
          "apiVersion": "admissionregistration.k8s.io/v1",
          "kind": "ValidatingWebhookConfiguration",
          "metadata": {
            "annotations": {
              "policies.assent.dev/policy": "namespaced/team/x",
              "policies.assent.dev/policy-uid": "5f2a9c1e-0000-4000-8000-000000000000",
              "policies.assent.dev/revision": "{\"revision\":\"\",\"contentDigest\":\"\",\"moduleUrl\":\"\",\"moduleDigest\":\"\",\"moduleSize\":0,\"abi\":\"\",\"timeoutMs\":0,\"memoryBytes\":0}"
            },
            "labels": {
              "app.kubernetes.io/managed-by": "assent",
              "policies.assent.dev/policy": "bdefbddf84e0ed12bf61cbb4efc4488d"
            },
            "name": "assent.namespaced.team.x",
            "ownerReferences": [
              {
                "apiVersion": "v1",
                "kind": "Namespace",
                "name": "assent-system",
                "uid": "ns-uid"
              }
            ]
          },
          "webhooks": [
            {
              "admissionReviewVersions": [
                "v1"
              ],
              "clientConfig": {
                "caBundle": "UEVN",
                "url": "https://127.0.0.1:8443/base/validate/namespaced/team/x/12-5f2a9c1e"
              },
              "failurePolicy": "Fail",
              "matchConditions": [
                {
                  "expression": "!(request.resource.group == \"policies.assent.dev\"\n|| request.resource.group == \"\" && request.resource.resource in [\"events\", \"nodes\"]\n|| request.resource.group == \"events.k8s.io\" && request.resource.resource in [\"events\"]\n|| request.resource.group == \"certificates.k8s.io\" && request.resource.resource in [\"certificatesigningrequests\"]\n|| request.resource.group == \"coordination.k8s.io\" && request.resource.resource in [\"leases\"]\n|| request.resource.group == \"authentication.k8s.io\" && request.resource.resource in [\"tokenreviews\"]\n|| request.resource.group == \"authorization.k8s.io\" && request.resource.resource in [\"localsubjectaccessreviews\", \"selfsubjectaccessreviews\", \"selfsubjectrulesreviews\", \"subjectaccessreviews\"]\n|| has(request.userInfo.username) && request.userInfo.username in [\"system:serviceaccount:assent-system:assent\"])",
                  "name": "policies.assent.dev/exempt"
                }
              ],
              "matchPolicy": "Equivalent",
              "name": "namespaced.team.x.policies.assent.dev",
              "namespaceSelector": {
                "matchExpressions": [
                  {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "In",
                    "values": [
                      "team"
                    ]
                  },
                  {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": [
                      "assent-system",
                      "kube-node-lease",
                      "kube-system",
                      "other"
                    ]
                  }
                ]
              },
              "objectSelector": {},
              "rules": [
                {
                  "apiGroups": [
                    ""
                  ],
                  "apiVersions": [
                    "v1"
                  ],
                  "operations": [
                    "CREATE"
                  ],
                  "resources": [
                    "pods"
                  ],
                  "scope": "Namespaced"
                }
              ],
              "sideEffects": "None",
              "timeoutSeconds": 10
            }
          ]
        }"#]],
    );
}

#[test]
fn user_fields_are_written_unchanged() {
    let webhook = webhook_of(&mk_policy(everything()));
    for (field, written) in everything().as_object().unwrap() {
        match field.as_str() {
            // These contain exemptions as well; other tests check them.
            "mutating" | "matchConditions" | "namespaceSelector" => {}
            field => assert_eq!(webhook[field], *written, "{field}"),
        }
    }
}

#[test]
fn move_between_kinds_never_leaves_a_gap() {
    use Kind::{Mutating, Validating};
    use Step::{Create, Delete, Update};
    assert_eq!(steps(&[], &[Validating]), [Create(Validating)]);
    assert_eq!(steps(&[Validating], &[Validating]), [Update(Validating)]);
    assert_eq!(
        steps(&[Validating], &[Mutating]),
        [Create(Mutating), Delete(Validating)]
    );
    assert_eq!(
        steps(&[Mutating, Validating], &[Validating]),
        [Update(Validating), Delete(Mutating)]
    );
    let both = [Mutating, Validating];
    assert_eq!(steps(&[], &both), [Create(Mutating), Create(Validating)]);
    assert_eq!(
        steps(&[Validating], &both),
        [Create(Mutating), Update(Validating)]
    );
    assert_eq!(steps(&both, &both), [Update(Mutating), Update(Validating)]);
}

#[test]
fn changes_of_cluster_policies_are_confirmed() {
    let all = |policy: &Parsed| {
        let all = build_all(policy, &by_service());
        let described = all.iter().map(|one| {
            let webhook = json_of(one)["webhooks"][0].take();
            let path = webhook.pointer("/clientConfig/service/path").unwrap();
            let path = path.as_str().unwrap().split('/').nth(1).unwrap().to_owned();
            let again = webhook
                .get("reinvocationPolicy")
                .cloned()
                .unwrap_or_default();
            (one.kind(), path, again)
        });
        described.collect::<Vec<_>>()
    };
    let (mutating, validating) = (Kind::Mutating, Kind::Validating);
    assert_eq!(
        all(&mk_policy(json!({"mutating": true}))),
        [
            (mutating, "validate".into(), json!("IfNeeded")),
            (validating, "confirm".into(), json!(null)),
        ]
    );
    // A policy that only monitors changes nothing.
    let monitor = mk_policy(json!({"mutating": true, "mode": "monitor"}));
    assert_eq!(
        all(&monitor),
        [(mutating, "validate".into(), json!("IfNeeded"))]
    );
    // The last word is never a tenant's.
    let own = mk(
        &PolicyKey::namespaced("team", "x"),
        json!({"mutating": true}),
    );
    assert_eq!(all(&own), [(mutating, "validate".into(), json!("Never"))]);
    // Both configurations name the same revision.
    for desired in build_all(&mk_policy(json!({"mutating": true})), &by_service()) {
        let named = read(&stored(&desired)).unwrap();
        assert_eq!(named.revision.unwrap().generation(), Some(12));
        assert_eq!(named.confirms, desired.kind() == Kind::Validating);
    }
}

#[test]
fn written_revision_is_read_back() {
    let keys = [
        PolicyKey::cluster("x"),
        PolicyKey::cluster("validate"),
        PolicyKey::namespaced("team", "a.b"),
        PolicyKey::cluster(&"long.".repeat(50)[..249]),
    ];
    let url = |base: &str| WebhookEndpoint::Url(base.to_owned());
    let endpoints = [by_service(), url("https://h"), url("https://h/validate/")];
    for key in &keys {
        for endpoint in &endpoints {
            let desired = build_at(&mk(key, json!({})), endpoint);
            let expected = Named {
                resolved: Some(ResolvedRevision::default()),
                policy: key.clone(),
                uid: Some(UID.into()),
                revision: Some(RevisionId::new(key, 12, UID)),
                confirms: false,
            };
            assert_eq!(read(&stored(&desired)), Some(expected), "{endpoint:?}");
        }
    }
}

#[test]
fn reading_survives_foreign_edits() {
    let key = PolicyKey::namespaced("team", "x");
    let object = stored(&build(&mk(&key, json!({}))));

    let mut bare = object.clone();
    (bare.metadata.annotations, bare.metadata.labels) = (None, None);
    let named = read(&bare).unwrap();
    assert_eq!((named.policy.clone(), named.uid), (key.clone(), None));
    assert_eq!(named.revision, Some(RevisionId::new(&key, 12, UID)));

    bare.data["webhooks"] = json!([]);
    let named = read(&bare).unwrap();
    assert_eq!((named.policy, named.revision), (key.clone(), None));

    // A revision of another policy does not count.
    let mut pointed = object.clone();
    let path = "/validate/cluster/y/3-aaaaaaaa";
    pointed.data["webhooks"][0]["clientConfig"]["service"]["path"] = json!(path);
    let named = read(&pointed).unwrap();
    assert_eq!((named.policy, named.revision), (key, None));

    let mut lying = object;
    let annotations = lying.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::POLICY_ANNOTATION.into(), "cluster/other".into());
    assert_eq!(read(&lying).unwrap().policy.as_str(), "namespaced/team/x");
}

#[test]
fn foreign_configurations_are_not_read() {
    let named = |name: &str| {
        let mut object = stored(&build(&mk_policy(json!({}))));
        object.metadata.name = Some(name.to_owned());
        read(&object)
    };
    assert!(named("assent.cluster.x").is_some());
    assert_eq!(named("kyverno-policy"), None);
    assert_eq!(named("assent.injector"), None);
}
