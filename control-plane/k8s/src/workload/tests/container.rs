//! The evaluator's container.

use super::*;

fn parts(spec: Value, place: Place) -> EvaluatorParts {
    evaluator_container(&mk_server(spec), &mk_options(), place)
}

#[test]
fn plain_server_has_this_container() {
    check(
        &parts(json!({}), Place::Own),
        &expect![[r#"
            {
              "container": {
                "env": [
                  {
                    "name": "ASSENT_DISCOVERY",
                    "value": "https://assent.assent-system.svc:15010"
                  },
                  {
                    "name": "ASSENT_ID",
                    "valueFrom": {
                      "fieldRef": {
                        "apiVersion": "v1",
                        "fieldPath": "metadata.name"
                      }
                    }
                  },
                  {
                    "name": "ASSENT_POLICY_SERVER",
                    "value": "default"
                  },
                  {
                    "name": "ASSENT_LISTEN",
                    "value": "0.0.0.0:8443"
                  },
                  {
                    "name": "ASSENT_ADVERTISE",
                    "valueFrom": {
                      "fieldRef": {
                        "apiVersion": "v1",
                        "fieldPath": "status.podIP"
                      }
                    }
                  },
                  {
                    "name": "ASSENT_ADMIN_LISTEN",
                    "value": "0.0.0.0:8081"
                  },
                  {
                    "name": "ASSENT_STATE",
                    "value": "/var/lib/assent"
                  },
                  {
                    "name": "ASSENT_STATE_KEY",
                    "value": "/etc/assent/state-key/key"
                  },
                  {
                    "name": "ASSENT_CA",
                    "value": "/etc/assent/ca/ca.crt"
                  },
                  {
                    "name": "ASSENT_TOKEN_FILE",
                    "value": "/var/run/secrets/assent.dev/token"
                  }
                ],
                "image": "example.com/assent-evaluator:v1",
                "livenessProbe": {
                  "failureThreshold": 3,
                  "httpGet": {
                    "path": "/livez",
                    "port": 8081,
                    "scheme": "HTTP"
                  },
                  "periodSeconds": 10,
                  "timeoutSeconds": 2
                },
                "name": "evaluator",
                "ports": [
                  {
                    "containerPort": 8443,
                    "name": "https",
                    "protocol": "TCP"
                  },
                  {
                    "containerPort": 8081,
                    "name": "admin",
                    "protocol": "TCP"
                  }
                ],
                "readinessProbe": {
                  "failureThreshold": 2,
                  "httpGet": {
                    "path": "/readyz",
                    "port": 8081,
                    "scheme": "HTTP"
                  },
                  "periodSeconds": 2,
                  "timeoutSeconds": 2
                },
                "resources": {
                  "requests": {
                    "cpu": "100m",
                    "memory": "128Mi"
                  }
                },
                "securityContext": {
                  "allowPrivilegeEscalation": false,
                  "capabilities": {
                    "drop": [
                      "ALL"
                    ]
                  },
                  "readOnlyRootFilesystem": true,
                  "runAsGroup": 65532,
                  "runAsNonRoot": true,
                  "runAsUser": 65532,
                  "seccompProfile": {
                    "type": "RuntimeDefault"
                  }
                },
                "startupProbe": {
                  "failureThreshold": 300,
                  "httpGet": {
                    "path": "/readyz",
                    "port": 8081,
                    "scheme": "HTTP"
                  },
                  "periodSeconds": 2,
                  "timeoutSeconds": 2
                },
                "volumeMounts": [
                  {
                    "mountPath": "/var/run/secrets/assent.dev",
                    "name": "assent-token",
                    "readOnly": true
                  },
                  {
                    "mountPath": "/etc/assent/ca",
                    "name": "assent-ca",
                    "readOnly": true
                  },
                  {
                    "mountPath": "/var/lib/assent",
                    "name": "assent-cache"
                  },
                  {
                    "mountPath": "/etc/assent/state-key",
                    "name": "assent-state-key",
                    "readOnly": true
                  }
                ]
              },
              "volumes": [
                {
                  "name": "assent-token",
                  "projected": {
                    "sources": [
                      {
                        "serviceAccountToken": {
                          "audience": "assent-control-plane",
                          "expirationSeconds": 3600,
                          "path": "token"
                        }
                      }
                    ]
                  }
                },
                {
                  "configMap": {
                    "items": [
                      {
                        "key": "ca.crt",
                        "path": "ca.crt"
                      }
                    ],
                    "name": "assent-ca",
                    "optional": false
                  },
                  "name": "assent-ca"
                },
                {
                  "emptyDir": {},
                  "name": "assent-cache"
                },
                {
                  "name": "assent-state-key",
                  "secret": {
                    "optional": true,
                    "secretName": "assent-state-key"
                  }
                }
              ]
            }"#]],
    );
}

#[test]
fn container_uses_the_servers_settings() {
    let container = parts(everything(), Place::Own).container;
    let container = serde_json::to_value(container).unwrap();
    for (field, pointer) in [
        ("image", "/image"),
        ("resources", "/resources"),
        ("securityContexts", "/securityContext"),
    ] {
        let written = &everything()[field];
        let written = written.get("container").unwrap_or(written);
        assert_eq!(container.pointer(pointer), Some(written));
    }
}

#[test]
fn own_environment_wins_and_comes_first() {
    let env = json!([
        {"name": "MINE", "value": "$(ASSENT_ID)"},
        {"name": "ASSENT_ID", "value": "somebody-else"},
        {"name": "ASSENT_LISTEN", "value": "127.0.0.1:1"},
    ]);
    let container = parts(json!({"env": env}), Place::Own).container;
    let env = container.env.unwrap();
    let names: Vec<&str> = env.iter().map(|env| env.name.as_str()).collect();
    expect![[r#"
        ASSENT_DISCOVERY
        ASSENT_ID
        ASSENT_POLICY_SERVER
        ASSENT_LISTEN
        ASSENT_ADVERTISE
        ASSENT_ADMIN_LISTEN
        ASSENT_STATE
        ASSENT_STATE_KEY
        ASSENT_CA
        ASSENT_TOKEN_FILE
        MINE"#]]
    .assert_eq(&names.join("\n"));
    assert_eq!(env[1].value, None);
}

#[test]
fn every_variable_is_read_by_the_evaluator() {
    // The evaluator's own source is the contract: a name that it lost is found here.
    let source = include_str!("../../../../../evaluator/src/args.rs");
    let container = parts(json!({}), Place::Own).container;
    for env in container.env.unwrap() {
        let quoted = format!("env = \"{}\"", env.name);
        assert!(source.contains(&quoted), "{} is not read", env.name);
    }
}

#[test]
fn cache_volume_is_chosen_by_place() {
    let stored = json!({"storage": {"size": "1Gi"}});
    let volumes = |spec: &Value, place| -> Vec<String> {
        let volumes = parts(spec.clone(), place).volumes;
        volumes.into_iter().map(|volume| volume.name).collect()
    };
    let beside = ["assent-token", "assent-ca", "assent-cache"];
    let own = [
        "assent-token",
        "assent-ca",
        "assent-cache",
        "assent-state-key",
    ];
    assert_eq!(volumes(&json!({}), Place::Own), own);
    assert_eq!(volumes(&json!({}), Place::Beside), beside);
    let own = ["assent-token", "assent-ca", "assent-state-key"];
    assert_eq!(volumes(&stored, Place::Own), own);
    assert_eq!(volumes(&stored, Place::Beside), beside);
}

#[test]
fn every_mount_has_a_volume() {
    for spec in [json!({}), everything()] {
        let parts = parts(spec.clone(), Place::Own);
        let set = build(spec).stateful_set.spec;
        let claims = set.volume_claim_templates.into_iter().flatten();
        let claims = claims.filter_map(|claim| claim.metadata.name);
        let volumes = parts.volumes.iter().map(|volume| volume.name.clone());
        let there: Vec<String> = volumes.chain(claims).collect();
        for mount in parts.container.volume_mounts.unwrap() {
            assert!(there.contains(&mount.name), "{}", mount.name);
        }
    }
}

#[test]
fn hash_depends_on_the_container_only() {
    let hash = |spec| parts(spec, Place::Own).hash();
    let plain = hash(json!({}));
    assert_eq!(hash(json!({"replicas": 9})), plain);
    for spec in [
        json!({"image": "x"}),
        json!({"env": [{"name": "A", "value": "b"}]}),
        json!({"resources": {"limits": {"memory": "1Gi"}}}),
        json!({"securityContexts": {"container": {"runAsUser": 1}}}),
        json!({"storage": {"size": "1Gi"}}),
    ] {
        assert_ne!(hash(spec.clone()), plain, "{spec}");
    }
    let other = Options {
        discovery: "https://elsewhere:15010".into(),
        ..mk_options()
    };
    let moved = evaluator_container(&mk_server(json!({})), &other, Place::Own);
    assert_ne!(moved.hash(), plain);
}
