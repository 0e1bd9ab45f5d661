//! Nothing that a user writes lets a policy see what no policy may see.

use super::*;

const NAME: &str = "kubernetes.io/metadata.name";

/// Our condition of a policy.
fn ours(policy: &Parsed) -> String {
    let webhook = webhook_of(policy);
    let first = &webhook["matchConditions"][0];
    assert_eq!(first["name"], "policies.assent.dev/exempt");
    first["expression"].as_str().unwrap().to_owned()
}

#[test]
fn our_condition_names_everything_exempt() {
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

/// Runs our condition as an API server does.
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
        // Custom resources of the same names are ordinary ones.
        ("example.com", "nodes"),
        ("example.com", "events"),
        ("example.com", "leases"),
    ] {
        assert!(seen(group, resource, "jane"), "{group}/{resource}");
    }
}

#[test]
fn our_own_requests_are_not_seen() {
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
fn without_service_accounts_the_condition_says_nothing_of_users() {
    let defaults = WebhookDefaults {
        service_accounts: Vec::new(),
        ..mk_defaults()
    };
    let policy = mk_policy(json!({}));
    let conditions = crate::webhook::exempt::conditions(&policy, &defaults);
    assert!(!conditions[0].expression.contains("userInfo"));
}

#[test]
fn selectors_of_namespaces_are_anded() {
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
fn a_namespaced_policy_stays_in_its_namespace() {
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]},
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["*"]},
    ]);
    let mut policy = mk(&PolicyKey::namespaced("team", "x"), json!({"rules": rules}));
    // Whatever the parser let through.
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
fn users_conditions_stand_beside_ours() {
    let webhook = webhook_of(&mk_policy(json!({"matchConditions": conditions(63)})));
    let all = webhook["matchConditions"].as_array().unwrap();
    assert_eq!(all.len(), 64);
    assert_eq!(all[1..], conditions(63));
}

#[test]
fn as_many_conditions_as_may_be_leave_room_for_ours() {
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
fn a_users_condition_may_have_the_name_of_ours() {
    let name = "policies.assent.dev/exempt";
    let theirs = json!([{"name": name, "expression": "true"}]);
    let webhook = webhook_of(&mk_policy(json!({"matchConditions": theirs})));
    let all = webhook["matchConditions"].as_array().unwrap();
    assert_eq!(all[0]["name"], "policies.assent.dev/exemptx");
    assert_eq!(all[1], theirs[0]);
}
