use super::*;

fn request() -> Request {
    Request {
        group: String::new(),
        version: "v1".into(),
        resource: "pods".into(),
        operation: "CREATE".into(),
        namespace: "team".into(),
        object: json!({"metadata": {"name": "x", "labels": {"app": "web"}}, "spec": {"replicas": 3}}),
        rest: json!({"userInfo": {"username": "jane", "groups": ["dev"]}, "dryRun": false}),
        ..Request::default()
    }
}

fn labels(namespace: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            assent_api::tenancy::NAMESPACE_NAME_LABEL.to_owned(),
            namespace.to_owned(),
        ),
        ("env".to_owned(), "prod".to_owned()),
    ])
}

#[track_caller]
fn check(target: &Target, request: &Request, expect: bool) {
    let matched = target.matches(request, &labels(&request.namespace));
    let expect = if expect { Matched::Yes } else { Matched::No };
    assert_eq!(matched, expect, "{request:?}");
}

fn rule(field: &str, value: Value) -> Arc<Target> {
    let mut rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    rule[field] = value;
    cluster("p", json!({"rules": [rule]}))
}

#[test]
fn resources_and_subresources() {
    for (pattern, resource, subresource, expect) in [
        ("pods", "pods", "", true),
        ("pods", "pods", "exec", false),
        ("pods", "services", "", false),
        ("pods/exec", "pods", "exec", true),
        ("pods/exec", "pods", "", false),
        ("pods/*", "pods", "", true),
        ("pods/*", "pods", "log", true),
        ("pods/*", "services", "status", false),
        ("*/scale", "deployments", "scale", true),
        ("*/scale", "deployments", "", false),
        ("*", "services", "", true),
        ("*", "services", "status", false),
        ("*/*", "services", "", true),
        ("*/*", "services", "status", true),
    ] {
        let request = Request {
            resource: resource.into(),
            subresource: subresource.into(),
            ..request()
        };
        check(&rule("resources", json!([pattern])), &request, expect);
    }
}

#[test]
fn groups_versions_operations() {
    for (field, pattern, group, version, operation, expect) in [
        ("apiGroups", json!(["apps"]), "apps", "v1", "CREATE", true),
        ("apiGroups", json!(["apps"]), "", "v1", "CREATE", false),
        ("apiGroups", json!([""]), "", "v1", "CREATE", true),
        ("apiGroups", json!(["*"]), "x.io", "v1", "CREATE", true),
        ("apiVersions", json!(["v1", "v2"]), "", "v2", "CREATE", true),
        ("apiVersions", json!(["v2"]), "", "v1", "CREATE", false),
        ("apiVersions", json!(["*"]), "", "v9", "CREATE", true),
        (
            "operations",
            json!(["UPDATE", "DELETE"]),
            "",
            "v1",
            "DELETE",
            true,
        ),
        ("operations", json!(["UPDATE"]), "", "v1", "CREATE", false),
        ("operations", json!(["CONNECT"]), "", "v1", "CONNECT", true),
        ("operations", json!(["*"]), "", "v1", "CONNECT", true),
    ] {
        let request = Request {
            group: group.into(),
            version: version.into(),
            operation: operation.into(),
            ..request()
        };
        check(&rule(field, pattern), &request, expect);
    }
    // One of several rules is enough.
    let pod = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]});
    let other = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]});
    check(
        &cluster("p", json!({"rules": [other, pod]})),
        &request(),
        true,
    );
}

#[test]
fn rules_match_their_scope() {
    for (scope, resource, namespace, expect) in [
        ("*", "nodes", "", true),
        ("Namespaced", "pods", "team", true),
        ("Namespaced", "nodes", "", false),
        ("Cluster", "nodes", "", true),
        ("Cluster", "pods", "team", false),
        // A request for a Namespace names it as its namespace, and yet is outside of namespaces.
        ("Cluster", "namespaces", "team", true),
        ("Namespaced", "namespaces", "team", false),
    ] {
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"], "scope": scope}]);
        let request = Request {
            resource: resource.into(),
            namespace: namespace.into(),
            ..request()
        };
        check(&cluster("p", json!({"rules": rules})), &request, expect);
    }
}

#[test]
fn namespaced_policies_see_their_namespace_only() {
    let target = mk_target(
        "AdmissionPolicy",
        "p",
        json!({"rules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}]}),
    );
    for (resource, namespace, expect) in [
        ("pods", "team", true),
        ("pods", "other", false),
        ("nodes", "", false),
        ("namespaces", "team", false),
    ] {
        let request = Request {
            resource: resource.into(),
            namespace: namespace.into(),
            ..request()
        };
        check(&target, &request, expect);
    }
}

fn selector(expression: Value) -> Value {
    json!({"matchExpressions": [expression]})
}

#[test]
fn object_selectors() {
    let object = |labels: Value| json!({"metadata": {"labels": labels}});
    for (select, new, old, expect) in [
        (json!({}), json!(null), json!(null), true),
        (
            json!({"matchLabels": {"app": "web"}}),
            object(json!({"app": "web"})),
            json!(null),
            true,
        ),
        (
            json!({"matchLabels": {"app": "web"}}),
            object(json!({"app": "db"})),
            json!(null),
            false,
        ),
        (
            json!({"matchLabels": {"app": "web", "x": "y"}}),
            object(json!({"app": "web"})),
            json!(null),
            false,
        ),
        // A policy must not be escaped by taking its label off in the very update.
        (
            json!({"matchLabels": {"app": "web"}}),
            object(json!({})),
            object(json!({"app": "web"})),
            true,
        ),
        (
            json!({"matchLabels": {"app": "web"}}),
            json!(null),
            object(json!({"app": "web"})),
            true,
        ),
        (
            selector(json!({"key": "app", "operator": "In", "values": ["a", "b"]})),
            object(json!({"app": "b"})),
            json!(null),
            true,
        ),
        (
            selector(json!({"key": "app", "operator": "In", "values": ["a"]})),
            object(json!({})),
            json!(null),
            false,
        ),
        (
            selector(json!({"key": "app", "operator": "NotIn", "values": ["a"]})),
            object(json!({"app": "a"})),
            json!(null),
            false,
        ),
        (
            selector(json!({"key": "app", "operator": "NotIn", "values": ["a"]})),
            object(json!({})),
            json!(null),
            true,
        ),
        (
            selector(json!({"key": "app", "operator": "Exists"})),
            object(json!({"app": ""})),
            json!(null),
            true,
        ),
        (
            selector(json!({"key": "app", "operator": "Exists"})),
            json!({"metadata": {}}),
            json!(null),
            false,
        ),
        (
            selector(json!({"key": "app", "operator": "DoesNotExist"})),
            json!({"metadata": {}}),
            json!(null),
            true,
        ),
        (
            selector(json!({"key": "app", "operator": "DoesNotExist"})),
            object(json!({"app": "x"})),
            json!(null),
            false,
        ),
        // The options of an exec have no metadata: they have no labels to select by.
        (
            selector(json!({"key": "app", "operator": "DoesNotExist"})),
            json!({"command": ["sh"]}),
            json!(null),
            false,
        ),
    ] {
        let request = Request {
            object: new,
            old_object: old,
            ..request()
        };
        check(
            &cluster("p", json!({"objectSelector": select})),
            &request,
            expect,
        );
    }
}

#[test]
fn namespace_selectors() {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}]);
    let by = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let namespace = json!({"metadata": {"name": "team", "labels": {"env": "test"}}});
    for (select, resource, ns, object, expect) in [
        (
            by("kubernetes.io/metadata.name", "team"),
            "pods",
            "team",
            json!({}),
            true,
        ),
        (
            by("kubernetes.io/metadata.name", "team"),
            "pods",
            "other",
            json!({}),
            false,
        ),
        (by("env", "prod"), "pods", "team", json!({}), true),
        (by("env", "test"), "pods", "team", json!({}), false),
        // What is outside of namespaces is never skipped by a namespace selector.
        (by("env", "nothing"), "nodes", "", json!({}), true),
        // A Namespace is judged by its own labels.
        (
            by("env", "test"),
            "namespaces",
            "team",
            namespace.clone(),
            true,
        ),
        (
            by("env", "prod"),
            "namespaces",
            "team",
            namespace.clone(),
            false,
        ),
        (
            by("kubernetes.io/metadata.name", "team"),
            "namespaces",
            "team",
            namespace,
            true,
        ),
    ] {
        let request = Request {
            resource: resource.into(),
            namespace: ns.into(),
            object,
            ..request()
        };
        check(
            &cluster("p", json!({"rules": rules, "namespaceSelector": select})),
            &request,
            expect,
        );
    }
}

#[test]
fn match_conditions() {
    for (expressions, expect) in [
        (vec!["true"], true),
        (vec!["request.userInfo.username == 'jane'"], true),
        (vec!["request.userInfo.username == 'joe'"], false),
        (vec!["'dev' in request.userInfo.groups"], true),
        (vec!["object.spec.replicas + 1 == 4"], true),
        (vec!["object.spec.replicas > 5"], false),
        (vec!["oldObject == null"], true),
        (
            vec!["has(object.metadata.labels) && object.metadata.labels.app == 'web'"],
            true,
        ),
        (vec!["!has(object.metadata.annotations)"], true),
        (vec!["object.metadata.name.startsWith('x')"], true),
        (
            vec!["object.metadata.labels.exists(k, k.startsWith('a'))"],
            true,
        ),
        (
            vec!["object.metadata.?annotations.?x.orValue('none') == 'none'"],
            true,
        ),
        (vec!["object.metadata.name.upperAscii() == 'X'"], true),
        (vec!["object.metadata.name.matches('^x$')"], true),
        (vec!["request.object.metadata.name == 'x'"], true),
        (vec!["true", "false"], false),
        // One that does not hold decides, whatever others do.
        (vec!["object.nope.nope == 1", "false"], false),
    ] {
        check(&with_conditions(&expressions, "Fail"), &request(), expect);
    }
}

fn with_conditions(expressions: &[&str], failure_policy: &str) -> Arc<Target> {
    let conditions: Vec<_> = expressions
        .iter()
        .enumerate()
        .map(|(i, expression)| json!({"name": format!("c{i}"), "expression": expression}))
        .collect();
    cluster(
        "p",
        json!({"matchConditions": conditions, "failurePolicy": failure_policy}),
    )
}

#[test]
fn errors_in_conditions_follow_the_failure_policy() {
    for expression in [
        "object.nope.nope == 1",
        "object.metadata.name",
        "1 / 0 == 1",
    ] {
        let fails =
            with_conditions(&["true", expression], "Fail").matches(&request(), &labels("team"));
        assert!(
            matches!(&fails, Matched::Error(why) if why.starts_with("match condition \"c1\": ")),
            "{fails:?}"
        );
        check(&with_conditions(&[expression], "Ignore"), &request(), false);
    }
}

#[test]
fn conditions_that_are_not_cel_are_refused_early() {
    for expression in ["request.", "a ==", "(", "'open"] {
        let value = json!({
            "apiVersion": API_VERSION, "kind": "ClusterAdmissionPolicy", "metadata": {"name": "p"},
            "spec": {"module": "x", "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}],
                "matchConditions": [{"name": "a", "expression": "true"}, {"name": "b", "expression": expression}]},
        });
        let policy = parse::policy(&value, &parse::Options::default()).unwrap();
        let error = check_conditions(&policy).unwrap_err();
        assert_eq!(error.index, 1);
        assert!(
            error
                .to_string()
                .starts_with("spec.matchConditions[1].expression: "),
            "{error}"
        );
    }
}
