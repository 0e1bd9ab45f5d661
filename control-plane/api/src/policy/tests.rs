#![allow(clippy::unwrap_used)]

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyRevision, PolicyServer};

fn schema<T: CustomResourceExt>() -> Value {
    let crd = serde_json::to_value(T::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone()
}

fn names<T: CustomResourceExt>() -> Value {
    serde_json::to_value(T::crd()).unwrap()["spec"]["names"].clone()
}

#[test]
fn definitions_have_names_and_categories() {
    for (names, short) in [
        (names::<ClusterAdmissionPolicy>(), "cap"),
        (names::<AdmissionPolicy>(), "ap"),
        (names::<PolicyServer>(), "ps"),
        (names::<PolicyRevision>(), "prev"),
    ] {
        assert_eq!(names["shortNames"], json!([short]));
        assert_eq!(names["categories"], json!(["assent", "policy"]));
    }
    assert_eq!(
        ClusterAdmissionPolicy::crd_name(),
        "clusteradmissionpolicies.policies.assent.dev"
    );
}

#[test]
fn schema_declares_defaults() {
    let spec = &schema::<ClusterAdmissionPolicy>()["spec"];
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
        assert_eq!(spec["properties"][field]["default"], expect, "{field}");
    }
    // Users who write it are warned, so it must not be there if they do not.
    assert!(
        spec["properties"]["backgroundAudit"]
            .get("default")
            .is_none()
    );
    // A rule asks for either module or source.
    assert_eq!(spec["required"], json!(["rules"]));
    assert_eq!(
        spec["properties"]["settings"]["x-kubernetes-preserve-unknown-fields"],
        true
    );
    assert_eq!(spec["properties"]["rules"]["minItems"], 1);
}

#[test]
fn schema_validates_what_it_can() {
    let rules = |value: &Value| {
        let rules = value["x-kubernetes-validations"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        rules.len()
    };
    let cluster = &schema::<ClusterAdmissionPolicy>()["spec"];
    assert_eq!(rules(cluster), 3, "{cluster:#}");
    assert_eq!(
        cluster["x-kubernetes-validations"][1]["rule"],
        "has(self.module) != has(self.source)"
    );
    assert_eq!(rules(&cluster["properties"]["policyServer"]), 1);
    let namespaced = &schema::<AdmissionPolicy>()["spec"];
    assert_eq!(rules(namespaced), 5);
    assert!(namespaced["properties"].get("namespaceSelector").is_none());
    let revision = &schema::<PolicyRevision>()["spec"];
    assert_eq!(
        revision["x-kubernetes-validations"][0]["rule"],
        "self == oldSelf"
    );
}

/// Lists of conditions and rows are maps: that is what server-side apply needs.
#[test]
fn status_lists_are_maps() {
    let status = &schema::<ClusterAdmissionPolicy>()["status"]["properties"];
    assert_eq!(
        status["conditions"]["x-kubernetes-list-map-keys"],
        json!(["type"])
    );
    assert_eq!(status["conditions"]["x-kubernetes-list-type"], "map");
    assert_eq!(
        status["replicas"]["x-kubernetes-list-map-keys"],
        json!(["name"])
    );
    assert_eq!(status["replicas"]["maxItems"], 16);
    let server = serde_json::to_value(PolicyServer::crd()).unwrap();
    let subresources = &server["spec"]["versions"][0]["subresources"];
    assert_eq!(
        subresources["scale"]["labelSelectorPath"],
        ".status.selector"
    );
    assert!(subresources.get("status").is_some());
}

/// A schema that says `$ref`, `anyOf` beside properties or no type is refused by API servers.
#[test]
fn schemas_are_structural() {
    fn walk(path: &str, schema: &Value) {
        let Some(map) = schema.as_object() else {
            return;
        };
        assert!(!map.contains_key("$ref"), "{path}");
        for key in ["properties"] {
            for (name, inner) in map
                .get(key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let path = format!("{path}.{name}");
                let typed = [
                    "type",
                    "x-kubernetes-int-or-string",
                    "x-kubernetes-preserve-unknown-fields",
                ];
                assert!(
                    typed.iter().any(|t| inner.get(t).is_some()),
                    "{path} has no type: {inner}"
                );
                walk(&path, inner);
            }
        }
        for key in ["items", "additionalProperties"] {
            map.get(key)
                .into_iter()
                .for_each(|inner| walk(&format!("{path}[]"), inner));
        }
    }
    for schema in [
        schema::<ClusterAdmissionPolicy>(),
        schema::<AdmissionPolicy>(),
        schema::<PolicyServer>(),
        schema::<PolicyRevision>(),
    ] {
        walk("spec", &schema["spec"]);
        walk("status", &schema["status"]);
    }
}

#[test]
fn typed_objects_and_the_parser_agree() {
    let value = json!({
        "apiVersion": crate::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": "p"},
        "spec": {"module": "x", "settings": {"n": i64::MAX}, "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
    });
    let typed: ClusterAdmissionPolicy = serde_json::from_value(value.clone()).unwrap();
    let options = crate::Options::default();
    let parsed = crate::parse::policy(&value, &options).unwrap();
    assert_eq!(
        crate::parse::policy(&serde_json::to_value(&typed).unwrap(), &options),
        Ok(parsed)
    );
}
