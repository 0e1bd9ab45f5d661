#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;

const OURS: &str = "assent-system";

fn parts() -> Parts {
    Parts {
        container: json!({
            "name": "evaluator",
            "image": "example.com/evaluator:1",
            "env": [
                {"name": "ASSENT_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "ASSENT_LISTEN", "value": "0.0.0.0:8443"},
            ],
            "ports": [{"containerPort": 8443, "name": "reviews"}],
            "volumeMounts": [
                {"name": "assent-token", "mountPath": "/var/run/assent/token"},
                {"name": "assent-ca", "mountPath": "/etc/assent/ca"},
                {"name": "assent-state", "mountPath": "/var/lib/assent"},
            ],
        }),
        volumes: vec![
            json!({"name": "assent-token", "projected": {"sources": []}}),
            json!({"name": "assent-ca", "configMap": {"name": "assent-ca"}}),
        ],
        hash: "h1".to_owned(),
        pull_secrets: Vec::new(),
    }
}

fn known() -> AdmissionView {
    let server = ServerView {
        policies_from: None,
        allowed_namespaces: vec!["shop".to_owned()],
        own: Arc::new(parts()),
        beside: Arc::new(parts()),
    };
    AdmissionView {
        servers: [("default".to_owned(), server)].into(),
        ..AdmissionView::default()
    }
}

fn options() -> Options {
    Options {
        namespace: OURS.to_owned(),
        parse: assent_api::Options::default(),
        max_policies_per_namespace: None,
        native_sidecars: true,
    }
}

fn pod(spec: Value) -> Value {
    json!({"metadata": {"generateName": "web-", "labels": {SERVER_LABEL: "default"}}, "spec": spec})
}

fn web() -> Value {
    pod(json!({"containers": [{"name": "web", "image": "web"}]}))
}

/// A pod of a PolicyServer's StatefulSet, as the API server fills in its defaults.
fn own() -> Value {
    let mut pod = pod(json!({
        "containers": [{
            "name": "evaluator", "image": PLACEHOLDER_IMAGE, "imagePullPolicy": "Always",
            "resources": {},
            "volumeMounts": [{"name": "api", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        }],
        "volumes": [{"name": "api"}, {"name": "assent-state", "persistentVolumeClaim": {"claimName": "c"}}],
    }));
    pod["metadata"]["annotations"] = json!({TEMPLATE_HASH_ANNOTATION: "h1"});
    pod
}

fn ask(pod: &Value, namespace: &str, options: &Options) -> Outcome {
    inject(pod, namespace, Some(&known()), options)
}

/// The pod after its patch. Asked again, nothing is left to do.
#[track_caller]
fn patched(pod: &Value, namespace: &str, options: &Options) -> (Value, Vec<String>) {
    let Outcome::Patched(patch) = ask(pod, namespace, options) else {
        panic!("{:?}", ask(pod, namespace, options));
    };
    let mut after = pod.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    assert_eq!(
        ask(&after, namespace, options),
        Outcome::Unchanged,
        "{after:#}"
    );
    let told = patch.iter().map(|operation| {
        let value = serde_json::to_value(operation).unwrap();
        format!("{} {}", value["op"].as_str().unwrap(), operation.path())
    });
    (after, told.collect())
}

#[test]
fn own_pods_are_completed_in_place() {
    let (after, patch) = patched(&own(), OURS, &options());
    assert_eq!(
        patch,
        [
            "add /spec/containers/0/env",
            "replace /spec/containers/0/image",
            "add /spec/containers/0/ports",
            "replace /spec/containers/0/volumeMounts",
            "remove /spec/containers/0/imagePullPolicy",
            "add /spec/volumes/-",
            "add /spec/volumes/-",
        ]
    );
    let container = &after["spec"]["containers"][0];
    assert_eq!(container["image"], "example.com/evaluator:1");
    assert_eq!(container["env"][0]["name"], "ASSENT_ID");
    assert!(
        container["env"][0].get("valueFrom").is_some(),
        "the pod's name alone"
    );
    assert_eq!(
        container["volumeMounts"].as_array().unwrap().len(),
        4,
        "others' mounts stay"
    );
    assert!(container.get("restartPolicy").is_none());
    let volumes: Vec<_> = names(&after["spec"]["volumes"]);
    assert_eq!(
        volumes,
        ["api", "assent-state", "assent-token", "assent-ca"]
    );
    assert!(after["spec"]["volumes"][3].get("configMap").is_some());
    assert!(
        after["spec"]["volumes"][1]
            .get("persistentVolumeClaim")
            .is_some()
    );
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect()
}

#[test]
fn annotation_holds_the_hash_of_the_evaluator() {
    let mut old = own();
    old["metadata"]["annotations"] = json!({TEMPLATE_HASH_ANNOTATION: "h0", "a/b": "c"});
    let (after, patch) = patched(&old, OURS, &options());
    assert_eq!(
        after["metadata"]["annotations"],
        json!({TEMPLATE_HASH_ANNOTATION: "h1", "a/b": "c"})
    );
    let last = patch.last().unwrap();
    assert_eq!(
        last,
        "replace /metadata/annotations/policies.assent.dev~1evaluator-hash"
    );
}

#[test]
fn user_pods_get_a_sidecar() {
    let (after, patch) = patched(&web(), "shop", &options());
    assert_eq!(
        patch,
        [
            "add /spec/initContainers",
            "add /spec/volumes",
            "add /metadata/annotations"
        ]
    );
    let sidecar = &after["spec"]["initContainers"][0];
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/readyz");
    let env = sidecar["env"].as_array().unwrap();
    assert_eq!(
        names(&sidecar["env"]),
        ["POD_NAME", "POD_NAMESPACE", "ASSENT_ID", "ASSENT_LISTEN"]
    );
    assert_eq!(
        env[2],
        json!({"name": "ASSENT_ID", "value": "$(POD_NAME).$(POD_NAMESPACE)"})
    );
    assert_eq!(
        after["spec"]["volumes"],
        json!([
            {"name": "assent-token", "projected": {"sources": []}},
            {"name": "assent-ca", "configMap": {"name": "assent-ca"}},
            {"name": "assent-state", "emptyDir": {}},
        ])
    );
    assert_eq!(after["spec"]["containers"], web()["spec"]["containers"]);
}

#[test]
fn sidecar_is_the_first_init_container() {
    let mut pod = web();
    pod["spec"]["initContainers"] = json!([{"name": "migrate"}]);
    pod["spec"]["volumes"] = json!([{"name": "assent-state", "emptyDir": {"medium": "Memory"}}]);
    pod["metadata"]["annotations"] = json!({"a": "b"});
    let (after, patch) = patched(&pod, "shop", &options());
    assert_eq!(
        names(&after["spec"]["initContainers"]),
        ["evaluator", "migrate"]
    );
    assert_eq!(
        patch,
        [
            "add /spec/initContainers/0",
            "add /spec/volumes/-",
            "add /spec/volumes/-",
            "add /metadata/annotations/policies.assent.dev~1evaluator-hash",
        ]
    );
    assert_eq!(after["spec"]["volumes"][0], pod["spec"]["volumes"][0]);
}

#[test]
fn old_kubelets_get_a_plain_container() {
    let options = Options {
        native_sidecars: false,
        ..options()
    };
    let (after, patch) = patched(&web(), "shop", &options);
    assert_eq!(patch[0], "add /spec/containers/-");
    assert_eq!(names(&after["spec"]["containers"]), ["web", "evaluator"]);
    assert!(
        after["spec"]["containers"][1]
            .get("restartPolicy")
            .is_none()
    );
}

/// What other webhooks change after the injection stays; what they remove comes back.
#[test]
fn reinvocation_repairs_without_duplicates() {
    let (mut pod, _) = patched(&web(), "shop", &options());
    let env = pod["spec"]["initContainers"][0]["env"]
        .as_array_mut()
        .unwrap();
    env.push(json!({"name": "HTTPS_PROXY", "value": "x"}));
    pod["spec"]["initContainers"][0]["image"] = json!("mirror.example.com/evaluator:1");
    let first = json!({"name": "mesh"});
    pod["spec"]["initContainers"]
        .as_array_mut()
        .unwrap()
        .insert(0, first);
    assert_eq!(ask(&pod, "shop", &options()), Outcome::Unchanged);
    pod["spec"]["volumes"].as_array_mut().unwrap().remove(0);
    let (after, patch) = patched(&pod, "shop", &options());
    assert_eq!(patch, ["add /spec/volumes/-"]);
    assert_eq!(
        names(&after["spec"]["volumes"]),
        ["assent-ca", "assent-state", "assent-token"]
    );
}

#[test]
fn copied_pod_gets_the_current_evaluator() {
    let (mut pod, _) = patched(&web(), "shop", &options());
    pod["metadata"]["annotations"] = json!({TEMPLATE_HASH_ANNOTATION: "h0"});
    pod["spec"]["initContainers"][0]["image"] = json!("example.com/evaluator:0");
    let (after, patch) = patched(&pod, "shop", &options());
    assert_eq!(patch[0], "replace /spec/initContainers/0");
    assert_eq!(
        after["spec"]["initContainers"][0]["image"],
        "example.com/evaluator:1"
    );
    assert_eq!(
        after["spec"]["initContainers"][0]["restartPolicy"],
        "Always"
    );
    let spec = json!({"containers": [{"name": "evaluator", "image": "old"}]});
    let mut pod = self::pod(spec);
    pod["metadata"]["annotations"] = json!({TEMPLATE_HASH_ANNOTATION: "h0"});
    let (after, _) = patched(&pod, "shop", &options());
    assert!(
        after["spec"]["containers"][0]
            .get("restartPolicy")
            .is_none()
    );
}

#[test]
fn placeholder_in_a_user_pod_is_completed() {
    let spec =
        json!({"containers": [{"name": "web"}, {"name": "evaluator", "image": PLACEHOLDER_IMAGE}]});
    let (after, _) = patched(&pod(spec), "shop", &options());
    assert_eq!(names(&after["spec"]["containers"]), ["web", "evaluator"]);
    assert_eq!(
        after["spec"]["containers"][1]["env"][2]["value"],
        "$(POD_NAME).$(POD_NAMESPACE)"
    );
}

#[test]
fn pods_that_cannot_have_an_evaluator_are_left_alone() {
    let not_allowed = |namespace: &str| Reason::NotAllowed {
        server: "default".to_owned(),
        namespace: namespace.to_owned(),
    };
    let mut host = web();
    host["spec"]["hostNetwork"] = json!(true);
    let mut mirror = web();
    mirror["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: "x"});
    let mut lost = web();
    lost["metadata"]["labels"][SERVER_LABEL] = json!("nowhere");
    let taken = pod(json!({"containers": [{"name": "evaluator", "image": "mine"}]}));
    for (pod, namespace, reason) in [
        (&host, "shop", Reason::HostNetwork),
        (&mirror, "shop", Reason::Mirror),
        (&lost, "shop", Reason::UnknownServer("nowhere".to_owned())),
        (&taken, "shop", Reason::NameTaken),
        (&web(), "other", not_allowed("other")),
        (&web(), OURS, not_allowed(OURS)),
    ] {
        let outcome = ask(pod, namespace, &options());
        assert_eq!(outcome, Outcome::Left(reason));
        assert!(outcome.is_without());
        let verdict = Verdict::from(outcome);
        assert!(verdict.refusal.is_none() && verdict.warnings.len() == 1);
    }
    let mut silent = web();
    silent["metadata"]["labels"] = json!({"app": "web"});
    assert_eq!(ask(&silent, "shop", &options()), Outcome::Unchanged);
    assert_eq!(ask(&json!({}), "shop", &options()), Outcome::Unchanged);
}

/// A pod of ours without its evaluator would never heal; its StatefulSet tries again.
#[test]
fn own_pods_are_never_admitted_without_an_evaluator() {
    let mut lost = own();
    lost["metadata"]["labels"][SERVER_LABEL] = json!("nowhere");
    let outcome = ask(&lost, OURS, &options());
    assert_eq!(
        outcome,
        Outcome::Refused(Reason::UnknownServer("nowhere".to_owned()))
    );
    assert_eq!(Verdict::from(outcome).refusal.unwrap().code, 403);
    for (pod, namespace) in [(own(), OURS), (web(), "shop")] {
        let outcome = inject(&pod, namespace, None, &options());
        assert_eq!(outcome, Outcome::Refused(Reason::NotReady));
        assert_eq!(Verdict::from(outcome).refusal.unwrap().code, 503);
    }
}

#[test]
fn missing_pull_secrets_are_added() {
    let mut known = known();
    let server = known.servers.get_mut("default").unwrap();
    server.beside = Arc::new(Parts {
        pull_secrets: vec!["mirror".to_owned(), "theirs".to_owned()],
        ..parts()
    });
    let secrets_of = |mut pod: Value, namespace: &str| {
        let outcome = inject(&pod, namespace, Some(&known), &options());
        let Outcome::Patched(patch) = outcome else {
            panic!("not patched: {outcome:?}");
        };
        json_patch::patch(&mut pod, &patch).unwrap();
        pod["spec"]["imagePullSecrets"].take()
    };
    let both = json!([{"name": "mirror"}, {"name": "theirs"}]);
    assert_eq!(secrets_of(web(), "shop"), both);
    let mut with = web();
    with["spec"]["imagePullSecrets"] = json!([{"name": "theirs"}]);
    let both = json!([{"name": "theirs"}, {"name": "mirror"}]);
    assert_eq!(secrets_of(with, "shop"), both);
    // The template of a StatefulSet has them.
    assert_eq!(secrets_of(own(), OURS), Value::Null);
}
