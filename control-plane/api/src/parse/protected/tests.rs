#![allow(clippy::unwrap_used)]

use super::*;

/// What a mutating namespaced policy with this rule is told.
fn complaints(
    protected: &ProtectedResources,
    group: &str,
    resource: &str,
    operations: &[Operation],
) -> Vec<String> {
    let sink = Sink::default();
    let rule = Rule {
        api_groups: vec![group.to_owned()],
        api_versions: vec!["v1".to_owned()],
        operations: operations.to_vec(),
        resources: vec!["configmaps".to_owned(), resource.to_owned()],
        ..Rule::default()
    };
    protected.check(&sink, &[rule]);
    match sink.result(Some(())) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
fn check(group: &str, resource: &str, found: Option<&str>) {
    let all = complaints(
        &ProtectedResources::default(),
        group,
        resource,
        &[Operation::Create],
    );
    match found {
        None => assert_eq!(all, Vec::<String>::new()),
        Some(found) => {
            let start =
                format!("spec.rules[0].resources[1]: \"{resource}\" includes {found}, which");
            assert!(all.len() == 1 && all[0].starts_with(&start), "{all:?}");
        }
    }
}

#[test]
fn protected_resources_are_found() {
    const RBAC: &str = "rbac.authorization.k8s.io";
    check("", "secrets", Some("secrets"));
    check("*", "secrets", Some("secrets"));
    check("", "serviceaccounts/token", Some("serviceaccounts"));
    check(
        RBAC,
        "rolebindings",
        Some("rolebindings.rbac.authorization.k8s.io"),
    );
    check(RBAC, "roles", Some("roles.rbac.authorization.k8s.io"));
    check("", "pods/exec", Some("pods/exec"));
}

#[test]
fn wildcards_that_include_protected_resources_are_found() {
    check("", "*", Some("secrets"));
    check("", "*/*", Some("secrets"));
    check("", "secrets/*", Some("secrets"));
    check("", "*/token", Some("serviceaccounts/token"));
    check("", "pods/*", Some("pods/binding"));
    check("*", "*/exec", Some("pods/exec"));
}

#[test]
fn other_resources_are_not_protected() {
    check("", "pods", None);
    check("", "pods/ephemeralcontainers", None);
    check("apps", "*", None);
    check("apps", "secrets", None);
    check("*", "*/scale", None);
}

#[test]
fn deletion_changes_nothing() {
    let all = ProtectedResources::default();
    let none = complaints(&all, "", "secrets", &[Operation::Delete]);
    assert_eq!(none, Vec::<String>::new());
    for operation in [Operation::All, Operation::Update, Operation::Connect] {
        let operations = [Operation::Delete, operation];
        assert_eq!(complaints(&all, "", "secrets", &operations).len(), 1);
    }
}

#[test]
fn lists_are_parsed_and_printed() {
    let text = "widgets.example.com/status,pods";
    let list: ProtectedResources = text.parse().unwrap();
    assert_eq!(list.to_string(), text);
    assert_eq!(complaints(&list, "", "pods", &[Operation::All]).len(), 1);
    assert_eq!(complaints(&list, "", "secrets", &[Operation::All]).len(), 0);
    assert_eq!(
        "".parse::<ProtectedResources>().unwrap(),
        ProtectedResources::none()
    );
    let default = ProtectedResources::default();
    assert_eq!(default.to_string().parse(), Ok(default));
    for wrong in ["Secrets", "a.", "a/", "a/b/c", "*", "a.b_c"] {
        let error = wrong.parse::<ProtectedResources>().unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[test]
fn chart_has_the_same_default() {
    let values = include_str!("../../../../../charts/assent/values.yaml");
    let (_, list) = values.split_once("\nprotectedResources:\n").unwrap();
    let items = list.lines().map_while(|line| line.strip_prefix("  - "));
    let items: Vec<_> = items.collect();
    assert_eq!(items.join(","), ProtectedResources::default().to_string());
}
