use super::*;

fn mk_server(spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "PolicyServer", "metadata": {"name": "s"}, "spec": spec})
}

#[test]
fn policy_servers_are_validated() {
    let accept = |spec| match manifest(&mk_server(spec), &standalone()).unwrap() {
        Manifest::Server(server) => *server,
        Manifest::Policy(policy) => panic!("{policy:?}"),
    };
    let plain = accept(json!({}));
    assert_eq!(
        (plain.name.as_str(), plain.spec.replicas, plain.limits),
        ("s", 1, Limits::default())
    );
    assert_eq!(
        plain.spec_json,
        accept(json!({"replicas": 1, "env": [], "webhookMode": "PerPolicy"})).spec_json
    );
    assert_eq!(
        plain.spec.host_capabilities,
        ["crypto/*", "kubernetes/*", "oci/*"]
    );
    let none = accept(json!({"hostCapabilities": []}));
    assert!(none.spec.host_capabilities.is_empty());
    let full = accept(json!({
        "replicas": 3,
        "env": [{"name": "A", "value": "b"}],
        "sources": {"insecure": ["localhost:5000"], "secure": [{"name": "x", "certificate": "PEM"}]},
        "limits": {"timeoutEvalSeconds": 4, "memory": "64Mi"},
        "minAvailable": 1,
        "resources": {"limits": {"memory": "1Gi"}},
    }));
    assert_eq!(
        full.limits,
        Limits {
            timeout_ms: 4000,
            memory_bytes: 64 << 20
        }
    );
    for (spec, expect) in [
        (
            json!({"replica": 3}),
            vec!["spec.replica: unknown field; remove it"],
        ),
        (
            json!({"env": [{"name": "A", "valu": "b"}]}),
            vec!["spec.env[0].valu: unknown field; remove it"],
        ),
        (
            json!({"replicas": -1, "limits": {"memory": "1"}}),
            vec![
                "spec.limits.memory: must be between 128Ki and 4Gi, not \"1\"",
                "spec.replicas: must be at least 0, not -1",
            ],
        ),
        (
            json!({"minAvailable": 1, "maxUnavailable": "50%"}),
            vec!["spec.minAvailable: give minAvailable or maxUnavailable, not both"],
        ),
        (
            json!({"imagePullSecrets": [{"name": "a"}, {}]}),
            vec!["spec.imagePullSecrets[1].name: must not be empty"],
        ),
        (
            json!({"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "skew": 2}]}),
            vec!["spec.topologySpreadConstraints[0].skew: unknown field; remove it"],
        ),
        (
            json!({"sources": {"secure": [{"name": "x"}]}}),
            vec!["spec.sources.secure[0]: give certificate or certificateFrom, and not both"],
        ),
        (
            json!({"hostCapabilities": ["*", "oci/*", "oci/v1/*", "net/v1/dns_lookup_host", "ocl/*", "oci", "oci/v1*", "*/v1"]}),
            vec![
                "spec.hostCapabilities[4]: \"ocl/*\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are crypto, kubernetes, net, oci)",
                "spec.hostCapabilities[5]: \"oci\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are crypto, kubernetes, net, oci)",
                "spec.hostCapabilities[6]: \"oci/v1*\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are crypto, kubernetes, net, oci)",
                "spec.hostCapabilities[7]: \"*/v1\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are crypto, kubernetes, net, oci)",
            ],
        ),
        (
            json!({"namespacedPoliciesCapabilities": ["kubernetes/can-i"]}),
            vec![
                "spec.namespacedPoliciesCapabilities[0]: \"kubernetes/can-i\" is no host call; write \"*\", \"oci/*\" or \"oci/v1/verify\" (known are crypto, kubernetes, net, oci)",
            ],
        ),
        (
            json!({"verification": {"publicKeys": []}}),
            vec!["spec.verification.publicKeys: must not be empty; no module could be signed"],
        ),
    ] {
        refuse(&mk_server(spec), &expect);
    }
    assert!(manifest(&mk_server(json!({"replicas": "three"})), &standalone()).is_err());
}

#[test]
fn server_name_is_one_dns_label() {
    let named = |name: &str| {
        let mut server = mk_server(json!({}));
        server["metadata"]["name"] = name.into();
        server
    };
    assert!(manifest(&named(&"s".repeat(63)), &standalone()).is_ok());
    for name in ["a.b".to_owned(), "s".repeat(64)] {
        let expect = format!(
            "metadata.name: \"{name}\" must have no '.' and at most 63 characters: it is a label of pods and part of a Service's name"
        );
        refuse(&named(&name), &[&expect]);
    }
}

#[test]
fn limits_of_objects_are_validated() {
    let read = |context: Value| manifest(&mk_server(json!({"context": context})), &standalone());
    let limits = |context: Value| match read(context).unwrap() {
        Manifest::Server(server) => server.context,
        Manifest::Policy(policy) => panic!("{policy:?}"),
    };
    assert_eq!(limits(json!({})).memory_bytes, 256 << 20);
    let given = limits(json!({"memoryLimit": "1Gi", "maxStalenessSeconds": 60}));
    assert_eq!(given.memory_bytes, 1 << 30);
    assert_eq!(given.max_staleness_seconds, Some(60));
    let bad = json!({"memoryLimit": "1Ki", "maxStalenessSeconds": 1, "allow": [{"apiVersion": "v1", "kind": ""}]});
    let errors: Vec<String> = read(bad)
        .unwrap_err()
        .0
        .iter()
        .map(|e| e.path.clone())
        .collect();
    assert_eq!(
        errors,
        [
            "spec.context.allow[0]",
            "spec.context.memoryLimit",
            "spec.context.maxStalenessSeconds"
        ]
    );
}

#[test]
fn secrets_are_allowed_by_name_only() {
    let access = |allow: &[(&str, &str)]| crate::server::ContextAccess {
        allow: allow
            .iter()
            .map(|(version, kind)| crate::server::AllowedKind {
                api_version: (*version).into(),
                kind: (*kind).into(),
            })
            .collect(),
        ..Default::default()
    };
    for (allow, version, kind, expected) in [
        (&[][..], "v1", "Pod", true),
        (&[], "v1", "Secret", false),
        (&[], "example.com/v1", "Secret", true),
        (&[("*", "*")], "v1", "Secret", false),
        (&[("v1", "*")], "v1", "Secret", false),
        (&[("v1", "Secret")], "v1", "Secret", true),
        (&[("*", "Secret")], "v1", "Secret", true),
        (&[("v1", "Secret")], "v1", "Pod", false),
        (&[("apps/*", "*")], "apps/v1", "Deployment", true),
        (&[("apps/*", "*")], "batch/v1", "Job", false),
        (
            &[("apps/v1", "Deployment")],
            "apps/v1beta1",
            "Deployment",
            false,
        ),
        (&[("*", "Ingress")], "networking.k8s.io/v1", "Ingress", true),
    ] {
        assert_eq!(
            access(allow).allows(version, kind),
            expected,
            "{allow:?} {version} {kind}"
        );
    }
}
