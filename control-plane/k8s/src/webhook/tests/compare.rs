//! Tests of the comparison: equal configurations need no write.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::*;

/// As the API server stores it, with its defaults.
fn filled_in(desired: &Desired) -> DynamicObject {
    let mut object = stored(desired);
    object.metadata.uid = Some("a".into());
    object.metadata.resource_version = Some("1".into());
    object.metadata.generation = Some(1);
    let mutating = desired.kind() == Kind::Mutating;
    for webhook in object.data["webhooks"].as_array_mut().unwrap() {
        let mut default = |pointer: &str, field: &str, value: Value| {
            let at = webhook.pointer_mut(pointer).and_then(Value::as_object_mut);
            if let Some(map) = at {
                map.entry(field).or_insert(value);
            }
        };
        default("", "failurePolicy", json!("Fail"));
        default("", "matchPolicy", json!("Equivalent"));
        default("", "timeoutSeconds", json!(10));
        default("", "namespaceSelector", json!({}));
        default("", "objectSelector", json!({}));
        default("/rules/0", "scope", json!("*"));
        default("/clientConfig/service", "port", json!(443));
        if mutating {
            default("", "reinvocationPolicy", json!("Never"));
        }
    }
    object
}

/// The same without fields that an older writer left to the API server's defaults.
fn sparse(mut desired: Desired) -> Desired {
    if let Desired::Validating(object) = &mut desired {
        let webhook = &mut object.webhooks.as_mut().unwrap()[0];
        webhook.failure_policy = None;
        webhook.match_policy = None;
        webhook.timeout_seconds = None;
        webhook.object_selector = None;
        webhook.rules.as_mut().unwrap()[0].scope = None;
        webhook.client_config.service.as_mut().unwrap().port = None;
    }
    desired
}

#[test]
fn written_configuration_equals_the_desired_one() {
    for more in [json!({}), json!({"mutating": true}), everything()] {
        let desired = build(&mk_policy(more));
        assert!(!differs(&stored(&desired), &desired));
        assert!(!differs(&filled_in(&desired), &desired));
    }
}

#[test]
fn defaults_of_the_api_server_are_no_difference() {
    let desired = sparse(build(&mk_policy(json!({}))));
    assert!(!differs(&filled_in(&desired), &desired));
    assert!(!differs(&stored(&desired), &build(&mk_policy(json!({})))));
}

#[test]
fn foreign_metadata_is_no_difference() {
    let desired = build(&mk_policy(json!({})));
    let mut object = filled_in(&desired);
    let theirs = || ("theirs".to_owned(), "1".to_owned());
    object
        .metadata
        .labels
        .get_or_insert_default()
        .extend([theirs()]);
    object
        .metadata
        .annotations
        .get_or_insert_default()
        .extend([theirs()]);
    let owners = object.metadata.owner_references.as_mut().unwrap();
    owners.insert(0, OwnerReference::default());
    assert!(!differs(&object, &desired));
}

/// Every leaf of the webhook is changed and removed.
#[test]
fn each_edit_of_a_webhook_is_a_difference() {
    let desired = build(&mk_policy(everything()));
    let mut pointers = Vec::new();
    leaves("", &json_of(&desired)["webhooks"], &mut pointers);
    assert!(pointers.len() > 40, "{pointers:?}");
    for pointer in pointers {
        let mut object = filled_in(&desired);
        let leaf = object.data["webhooks"].pointer_mut(&pointer).unwrap();
        *leaf = match leaf.take() {
            Value::Number(_) => json!(3),
            Value::String(text) if pointer.ends_with("caBundle") => json!(format!("AAAA{text}")),
            other => json!(format!("{}x", other.as_str().unwrap())),
        };
        assert!(differs(&object, &desired), "{pointer}");
    }
}

fn leaves(pointer: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| leaves(&format!("{pointer}/{key}"), value, out)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, value)| leaves(&format!("{pointer}/{i}"), value, out)),
        _ => out.push(pointer.to_owned()),
    }
}

#[test]
fn each_edit_of_required_metadata_is_a_difference() {
    type Edit = fn(&mut DynamicObject);
    let edits: [Edit; 6] = [
        |object| object.metadata.labels = None,
        |object| object.metadata.annotations = None,
        |object| object.metadata.owner_references = None,
        |object| object.metadata.owner_references.as_mut().unwrap()[0].uid = "old".into(),
        |object| object.data["webhooks"] = json!([]),
        |object| {
            let webhooks = object.data["webhooks"].as_array_mut().unwrap();
            webhooks.push(webhooks[0].clone());
        },
    ];
    let desired = build(&mk_policy(json!({})));
    for (i, edit) in edits.into_iter().enumerate() {
        let mut object = filled_in(&desired);
        edit(&mut object);
        assert!(differs(&object, &desired), "edit {i}");
    }
}

#[test]
fn update_is_conditional_and_keeps_foreign_metadata() {
    let desired = build(&mk_policy(json!({})));
    let mut actual = filled_in(&desired).metadata;
    let mut stale = actual.owner_references.clone().unwrap().remove(0);
    stale.uid = "an older life".into();
    actual.owner_references = Some(vec![stale, OwnerReference::default()]);
    actual.labels = Some([("theirs".to_owned(), "1".to_owned())].into());
    actual.finalizers = Some(vec!["theirs".into()]);
    actual.managed_fields = Some(Vec::new());

    let merged = merged(&actual, &desired);
    let metadata = merged.metadata();
    assert_eq!(metadata.resource_version.as_deref(), Some("1"));
    assert_eq!(metadata.uid.as_deref(), Some("a"));
    assert_eq!(metadata.finalizers, actual.finalizers);
    assert_eq!(metadata.managed_fields, None);
    assert_eq!(metadata.labels.as_ref().unwrap().len(), 3);
    let owners = metadata.owner_references.as_ref().unwrap();
    let uids: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
    assert_eq!(uids, ["", "ns-uid"]);
    assert!(!differs(&stored(&merged), &desired));
}
