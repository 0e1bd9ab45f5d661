//! Tests of exemptions: nothing that a user writes lets a policy see an exempt request.

use super::*;

const NAME: &str = "kubernetes.io/metadata.name";

/// The exempting condition of a policy's webhook.
fn ours(policy: &Parsed) -> String {
    let webhook = webhook_of(policy);
    let first = &webhook["matchConditions"][0];
    assert_eq!(first["name"], "policies.assent.dev/exempt");
    first["expression"].as_str().unwrap().to_owned()
}

#[test]
fn condition_names_everything_exempt() {
    expect![[r#"
        !(request.resource.group == "policies.assent.dev"
        || request.resource.group == "" && request.resource.resource in ["events", "nodes"]
        || request.resource.group == "events.k8s.io" && request.resource.resource in ["events"]
        || request.resource.group == "certificates.k8s.io" && request.resource.resource in ["certificatesigningrequests"]
        || request.resource.group == "coordination.k8s.io" && request.resource.resource in ["leases"]
        || request.resource.group == "authentication.k8s.io" && request.resource.resource in ["tokenreviews"]
        || request.resource.group == "authorization.k8s.io" && request.resource.resource in ["localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"]
        || has(request.userInfo.username) && request.userInfo.username in ["system:serviceaccount:assent-system:assent"])"#]].assert_eq(&ours(&mk_policy(json!({}))));
}

/// Evaluates the exempting condition as an API server does.
#[track_caller]
fn seen(group: &str, resource: &str, user: &str) -> bool {
    let expression = ours(&mk_policy(json!({})));
    let program = cel::Program::compile(&expression).unwrap();
    let mut context = cel::Context::default();
    let request = json!({
        "resource": {"group": group, "version": "v1", "resource": resource},
        "userInfo": {"username": user},
    });
    context.add_variable("request", request).unwrap();
    match program.execute(&context).unwrap() {
        cel::Value::Bool(seen) => seen,
        other => panic!("not a bool: {other:?}"),
    }
}

#[test]
fn exempt_resources_are_not_seen() {
    for (group, resource) in [
        ("policies.assent.dev", "policyservers"),
        ("policies.assent.dev", "clusteradmissionpolicies"),
        ("", "nodes"),
        ("", "events"),
        ("events.k8s.io", "events"),
        ("certificates.k8s.io", "certificatesigningrequests"),
        ("coordination.k8s.io", "leases"),
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        ("authorization.k8s.io", "localsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ] {
        assert!(!seen(group, resource, "jane"), "{group}/{resource}");
    }
}

#[test]
fn everything_else_is_seen() {
    for (group, resource) in [
        ("", "pods"),
        ("", "namespaces"),
        ("apps", "deployments"),
        // Custom resources of the same names are ordinary resources.
        ("example.com", "nodes"),
        ("example.com", "events"),
        ("example.com", "leases"),
    ] {
        assert!(seen(group, resource, "jane"), "{group}/{resource}");
    }
}

#[test]
fn requests_of_the_control_plane_are_not_seen() {
    assert!(!seen(
        "",
        "pods",
        "system:serviceaccount:assent-system:assent"
    ));
    assert!(seen(
        "",
        "pods",
        "system:serviceaccount:assent-system:other"
    ));
}

#[test]
fn condition_without_service_accounts_names_no_users() {
    let defaults = WebhookDefaults {
        service_accounts: Vec::new(),
        ..mk_defaults()
    };
    let policy = mk_policy(json!({}));
    let conditions = crate::webhook::exempt::conditions(&policy, &defaults);
    assert!(!conditions[0].expression.contains("userInfo"));
}

#[test]
fn namespace_selectors_are_combined_with_and() {
    let webhook = webhook_of(&mk_policy(everything()));
    assert_eq!(
        webhook["namespaceSelector"],
        json!({
            "matchLabels": {"team": "x"},
            "matchExpressions": [
                {"key": "env", "operator": "In", "values": ["prod", "test"]},
                {
                    "key": NAME, "operator": "NotIn",
                    "values": ["assent-system", "kube-node-lease", "kube-system", "other"],
                },
            ],
        })
    );
}

#[test]
fn namespaced_policy_stays_in_its_namespace() {
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]},
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["*"]},
    ]);
    let mut policy = mk(&PolicyKey::namespaced("team", "x"), json!({"rules": rules}));
    // Even if the parser accepted another scope.
    policy.rules[1].scope = Scope::All;
    let webhook = webhook_of(&policy);
    for rule in webhook["rules"].as_array().unwrap() {
        assert_eq!(rule["scope"], "Namespaced");
    }
    let expressions = webhook["namespaceSelector"]["matchExpressions"].as_array();
    let own = json!({"key": NAME, "operator": "In", "values": ["team"]});
    assert!(expressions.unwrap().contains(&own));
}

/// `count` conditions of a user.
fn conditions(count: usize) -> Vec<Value> {
    let condition = |i| json!({"name": format!("c{i}"), "expression": format!("{i} != 0 // {i}")});
    (0..count).map(condition).collect()
}

#[test]
fn user_conditions_follow_the_exempting_one() {
    let webhook = webhook_of(&mk_policy(json!({"matchConditions": conditions(63)})));
    let all = webhook["matchConditions"].as_array().unwrap();
    assert_eq!(all.len(), 64);
    assert_eq!(all[1..], conditions(63));
}

#[test]
fn maximum_of_user_conditions_leaves_room_for_the_exempting_one() {
    let policy = mk_policy(json!({"matchConditions": conditions(64)}));
    let webhook = webhook_of(&policy);
    let all = webhook["matchConditions"].as_array().unwrap();
    assert_eq!(all.len(), 64);
    assert_eq!(all[1..63], conditions(64)[..62]);
    assert_eq!(all[63]["name"], "c62");
    let folded = all[63]["expression"].as_str().unwrap();
    assert_eq!(folded, "(\n62 != 0 // 62\n) && (\n63 != 0 // 63\n)");
    assert_eq!(ours(&policy), ours(&mk_policy(json!({}))));
}

#[test]
fn user_condition_may_have_the_name_of_the_exempting_one() {
    let name = "policies.assent.dev/exempt";
    let theirs = json!([{"name": name, "expression": "true"}]);
    let webhook = webhook_of(&mk_policy(json!({"matchConditions": theirs})));
    let all = webhook["matchConditions"].as_array().unwrap();
    assert_eq!(all[0]["name"], "policies.assent.dev/exemptx");
    assert_eq!(all[1], theirs[0]);
}
