#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn all(endpoint: WebhookEndpoint) -> [Value; 3] {
    let input = Input {
        endpoint,
        namespace: "assent-system".to_owned(),
        namespace_uid: "ns-uid".to_owned(),
        ca_bundle: b"CA".to_vec(),
        service_accounts: vec!["system:serviceaccount:assent-system:assent".to_owned()],
    };
    [
        serde_json::to_value(validating(&input)).unwrap(),
        serde_json::to_value(defaults(&input)).unwrap(),
        serde_json::to_value(injector(&input)).unwrap(),
    ]
}

fn url() -> WebhookEndpoint {
    WebhookEndpoint::Url("https://10.0.0.1:9443/".to_owned())
}

#[test]
fn configurations_are_owned_by_the_namespace() {
    for (object, name) in all(url()).iter().zip([VALIDATING, DEFAULTS, INJECTOR]) {
        assert_eq!(object["metadata"]["name"], name);
        assert_eq!(
            object["metadata"]["ownerReferences"],
            json!([{"apiVersion": "v1", "kind": "Namespace", "name": "assent-system", "uid": "ns-uid"}])
        );
    }
}

#[test]
fn configurations_use_service_or_url() {
    let service = WebhookEndpoint::Service {
        namespace: "assent-system".to_owned(),
        name: "assent".to_owned(),
        port: 443,
    };
    let paths = [VALIDATE_PATH, MUTATE_PATH, INJECT_PATH];
    for (object, path) in all(service).iter().zip(paths) {
        for webhook in object["webhooks"].as_array().unwrap() {
            assert_eq!(
                webhook["clientConfig"],
                json!({"caBundle": "Q0E=", "service":
                    {"namespace": "assent-system", "name": "assent", "path": path, "port": 443}})
            );
        }
    }
    for (object, path) in all(url()).iter().zip(paths) {
        let config = &object["webhooks"][0]["clientConfig"];
        assert_eq!(config["url"], format!("https://10.0.0.1:9443{path}"));
        assert!(config.get("service").is_none());
    }
}

#[test]
fn fail_closed_webhooks_match_narrowly() {
    let [validating, defaults, injector] = all(url());
    let conditions = |webhook: &Value| -> Vec<String> {
        let list = webhook["matchConditions"].as_array().unwrap();
        list.iter()
            .map(|c| c["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let written = ["not-by-ourselves", "not-leaving", "more-than-metadata"];
    let webhooks = validating["webhooks"].as_array().unwrap();
    let told: Vec<_> = webhooks
        .iter()
        .map(|w| {
            (
                w["name"].as_str().unwrap(),
                w["failurePolicy"].as_str().unwrap(),
                conditions(w).len(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("validate.policies.assent.dev", "Fail", 3),
            ("scale.policies.assent.dev", "Fail", 1),
            ("delete-default.policies.assent.dev", "Fail", 3),
            ("delete.policies.assent.dev", "Ignore", 2),
            ("revisions.policies.assent.dev", "Fail", 3),
        ]
    );
    assert_eq!(conditions(&webhooks[0]), written);
    assert_eq!(conditions(&defaults["webhooks"][0]), written);
    let ourselves = webhooks[0]["matchConditions"][0]["expression"]
        .as_str()
        .unwrap();
    assert!(
        ourselves.contains("\"system:serviceaccount:assent-system:assent\""),
        "{ourselves}"
    );
    // No delete of a policy waits for Assent: a namespace must be deletable.
    for webhook in webhooks {
        let rule = &webhook["rules"][0];
        let deletes = rule["operations"]
            .as_array()
            .unwrap()
            .contains(&json!("DELETE"));
        let exempts = |c: &Value| c["name"] == "not-collected";
        let exempts = webhook["matchConditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(exempts);
        assert!(!deletes || exempts || rule["resources"] == json!(["policyservers"]));
    }
    let pods = &injector["webhooks"][0];
    assert_eq!(
        pods["rules"],
        json!([{"apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}])
    );
    assert_eq!(pods["reinvocationPolicy"], "IfNeeded");
    assert_eq!(pods["failurePolicy"], "Fail");
    assert_eq!(
        pods["objectSelector"],
        json!({"matchExpressions": [{"key": SERVER_LABEL, "operator": "Exists"}]})
    );
    assert_eq!(
        pods["namespaceSelector"]["matchExpressions"][0]["values"],
        json!(["kube-system"])
    );
}
