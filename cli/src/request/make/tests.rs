#![allow(clippy::unwrap_used)]
use super::*;

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": []}})
}

fn options() -> RequestOptions {
    RequestOptions::default()
}

#[test]
fn created_pod_is_what_an_api_server_sends() {
    let request = make(&pod("web"), None, &options()).unwrap();
    let mut object = pod("web");
    object["metadata"]["namespace"] = "default".into();
    let expect = json!({
        "uid": request["uid"],
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "web",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "assent-user", "groups": ["system:authenticated"]},
        "object": object,
        "oldObject": null,
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    });
    assert_eq!(request, expect);
    assert_eq!(request["uid"].as_str().unwrap().len(), 36);
    assert_eq!(
        make(&pod("web"), None, &options()).unwrap()["uid"],
        request["uid"]
    );
    assert_ne!(
        make(&pod("db"), None, &options()).unwrap()["uid"],
        request["uid"]
    );
}

#[test]
fn options_are_used() {
    let options = RequestOptions {
        operation: Some(Operation::Delete),
        user: Some("alice".into()),
        groups: vec!["staff".into(), "ops".into()],
        namespace: Some("shop".into()),
        resource: Some("pods/eviction".into()),
        dry_run: true,
    };
    let request = make(&pod("web"), None, &options).unwrap();
    assert_eq!(request["object"], Value::Null);
    assert_eq!(request["oldObject"]["metadata"]["namespace"], "shop");
    assert_eq!(request["subResource"], "eviction");
    assert_eq!(
        request["userInfo"],
        json!({"username": "alice", "groups": ["staff", "ops"]})
    );
    assert_eq!(request["options"]["kind"], "DeleteOptions");
    assert_eq!(request["options"]["dryRun"], json!(["All"]));
    assert_eq!(request["dryRun"], true);
}

#[test]
fn scope_follows_the_kind() {
    let namespace = |object: Value, given: Option<&str>| {
        let options = RequestOptions {
            namespace: given.map(str::to_owned),
            ..options()
        };
        make(&object, None, &options).unwrap()["namespace"].clone()
    };
    let object =
        |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "x"}});
    assert_eq!(namespace(object("v1", "Namespace"), Some("shop")), "x");
    assert_eq!(namespace(object("v1", "Node"), Some("shop")), Value::Null);
    assert_eq!(
        namespace(object("example.com/v1", "Widget"), None),
        Value::Null
    );
    assert_eq!(
        namespace(object("example.com/v1", "Widget"), Some("shop")),
        "shop"
    );
    let mut own = object("example.com/v1", "Widget");
    own["metadata"]["namespace"] = "own".into();
    assert_eq!(namespace(own, None), "own");
}

#[test]
fn update_needs_the_same_object_as_it_was() {
    let update = |old: &Value| make(&pod("web"), Some(old), &options());
    let request = update(&pod("web")).unwrap();
    assert_eq!(request["operation"], "UPDATE");
    assert_eq!(request["oldObject"]["metadata"]["namespace"], "default");
    let error = update(&pod("db")).unwrap_err().to_string();
    assert_eq!(
        error,
        "the old object is Pod default/db, not Pod default/web"
    );
    let only = |operation| RequestOptions {
        operation: Some(operation),
        ..options()
    };
    let error = make(&pod("web"), None, &only(Operation::Update)).unwrap_err();
    assert!(matches!(error, MakeError::NoOldObject(_)), "{error}");
    let error = make(&pod("web"), Some(&pod("web")), &only(Operation::Create)).unwrap_err();
    assert_eq!(error.to_string(), "a CREATE has no old object");
}

#[test]
fn documents_that_are_no_objects_are_refused() {
    let error = |object: Value| make(&object, None, &options()).unwrap_err().to_string();
    assert!(error(json!([])).contains("no apiVersion"));
    assert!(error(json!({"apiVersion": "v1"})).contains("no kind"));
    assert!(error(json!({"apiVersion": "v1", "kind": "Pod"})).contains("generateName"));
    let mut object = pod("web");
    object["metadata"]["namespace"] = "a".into();
    let given = RequestOptions {
        namespace: Some("b".into()),
        ..options()
    };
    let error = make(&object, None, &given).unwrap_err().to_string();
    assert!(
        error.contains("\"a\"") && error.contains("\"b\""),
        "{error}"
    );
}

#[test]
fn generated_name_is_empty_in_the_request() {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-"}});
    assert_eq!(make(&object, None, &options()).unwrap()["name"], "");
    assert_eq!(
        identity(&object, &options()).unwrap(),
        "Pod default/(generated name)"
    );
}
