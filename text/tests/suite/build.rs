//! Texts become modules that an evaluator runs as any other.

use assent_text::origin;
use assent_wasm::{Abi, Policy, PolicySpec, Review, Verdict};
use serde_json::{Value, json, value::RawValue};

use crate::support::{INTERPRETERS, creation};

fn policy(file: &str, text: &str, mutating: bool, settings: Value) -> Policy {
    let wasm = INTERPRETERS.build(file, text).unwrap();
    let module = INTERPRETERS.engine.compile(&wasm).unwrap();
    let spec = PolicySpec {
        mutating,
        settings_json: settings.to_string().into(),
        ..PolicySpec::new(Abi::Wapc)
    };
    Policy::prepare(&INTERPRETERS.engine, &module, spec).unwrap()
}

fn evaluate(policy: &Policy, object: &Value) -> Verdict {
    let request = creation(object);
    let request = RawValue::from_string(request.to_string()).unwrap();
    policy
        .evaluate(&Review::admission(&request).unwrap())
        .unwrap()
}

fn pod(labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "labels": labels}, "spec": {"containers": []}})
}

const DENY: &str = "package owners\n\ndeny contains msg if {\n\tnot input.request.object.metadata.labels.owner\n\tmsg := sprintf(\"%s has no owner\", [input.request.object.metadata.name])\n}\n\ndeny contains \"digits\" if regex.match(`^\\d+$`, input.request.object.metadata.labels.owner)\n";

#[test]
fn rego_text_decides_like_a_module() {
    let first = INTERPRETERS.build("deny.rego", DENY).unwrap();
    assert_eq!(
        first,
        INTERPRETERS.build("deny.rego", DENY).unwrap(),
        "equal texts must give equal bytes"
    );
    let inspection = assent_wasm::inspect(&first).unwrap();
    let exports: Vec<_> = inspection
        .exports
        .iter()
        .map(|export| &export.name[..])
        .collect();
    assert_eq!(exports, ["memory", "__guest_call"]);
    let origin = origin(inspection.metadata.as_ref().unwrap()).unwrap();
    assert_eq!((&origin.language[..], &origin.text[..]), ("rego", DENY));
    assert_eq!(origin.entrypoint.as_deref(), Some("data.owners.deny"));

    let prepared = policy("deny.rego", DENY, false, json!({}));
    prepared.validate_settings().unwrap();
    prepared.self_test().unwrap();
    assert!(evaluate(&prepared, &pod(json!({"owner": "a"}))).allowed);
    let denied = evaluate(&prepared, &pod(json!({})));
    assert_eq!(denied.message.as_deref(), Some("n has no owner"));
    // `\d` needs Unicode tables; without them it would be an error that turns into an allow.
    let denied = evaluate(&prepared, &pod(json!({"owner": "12٣"})));
    assert_eq!(denied.message.as_deref(), Some("digits"));
}

#[test]
fn settings_are_data_and_annotations_are_merged() {
    let text = "package placement\n\n# assent.mutating\nmain := {\"errors\": errors, \"annotations\": {\"zone\": data.zone}}\n\nerrors contains \"no zone\" if not data.zone\n";
    let prepared = policy("placement.rego", text, true, json!({"zone": "a"}));
    let mut object = pod(json!({}));
    object["metadata"]["annotations"] = json!({"zone": "mine", "other": "kept"});
    object["spec"]["large"] = json!(u64::MAX);
    let verdict = evaluate(&prepared, &object);
    let patch: Value = serde_json::from_slice(verdict.patch.as_ref().unwrap()).unwrap();
    assert_eq!(
        patch,
        json!([{"op": "replace", "path": "/metadata/annotations/zone", "value": "a"}])
    );
}

#[test]
fn cel_text_decides_like_a_module() {
    let text = "variables:\n- name: labels\n  expression: \"has(object.metadata.labels) ? object.metadata.labels : {}\"\nvalidations:\n- expression: \"'owner' in variables.labels\"\n  message: no owner\n- expression: \"!('cpu' in variables.labels) || quantity(variables.labels.cpu).isLessThan(quantity('2'))\"\n  messageExpression: \"'too much: ' + variables.labels.cpu\"\n- expression: \"object.metadata.name.matches('^\\\\\\\\w+$') && request.operation == 'CREATE' && params.most > 1\"\n";
    let prepared = policy("owner.cel.yaml", text, false, json!({"most": 2}));
    prepared.self_test().unwrap();
    assert!(evaluate(&prepared, &pod(json!({"owner": "a", "cpu": "1500m"}))).allowed);
    let denied = evaluate(&prepared, &pod(json!({"cpu": "3k"})));
    assert_eq!(denied.message.as_deref(), Some("no owner, too much: 3k"));
    assert_eq!(denied.code, Some(422));
}

#[test]
fn errors_have_file_line_column_and_the_line() {
    let error = |file: &str, text: &str| INTERPRETERS.build(file, text).unwrap_err().to_string();
    let wrong = error(
        "p.rego",
        "package p\n\ndeny contains msg if {\n\tmsg := 1 +\n}\n",
    );
    assert!(wrong.starts_with("--> p.rego:4:"), "{wrong}");
    let wrong = error(
        "p.rego",
        "package p\n\nallow if http.send({}).status == 200\n",
    );
    assert!(
        wrong.starts_with("--> p.rego:3:") && wrong.contains("| allow if http.send"),
        "{wrong}"
    );
    assert!(
        wrong.ends_with("http.send is not available: a policy has no network"),
        "{wrong}"
    );
    let wrong = error("p.rego", "package p\n\nx := 1\n");
    assert!(wrong.contains("no rule decides"), "{wrong}");
    let wrong = error(
        "p.cel.yaml",
        "validations:\n- expression: object.spec.x ==\n",
    );
    assert!(wrong.starts_with("--> p.cel.yaml:2:"), "{wrong}");
    let wrong = error(
        "p.cel.yaml",
        "validations:\n- expression: authorizer.path('/').check('get').allowed()\n",
    );
    assert!(
        wrong.contains("authorizer is not available") || wrong.contains("allowed is not available"),
        "{wrong}"
    );
    let wrong = error("p.cel.yaml", "validations: []\nrules: []\n");
    assert!(wrong.contains("unknown field \"rules\""), "{wrong}");
    let wrong = error("p.rego", &"#".repeat(10 << 20));
    assert!(wrong.contains("more than the 262144 allowed"), "{wrong}");
}
