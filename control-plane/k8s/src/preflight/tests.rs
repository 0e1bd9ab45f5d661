#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

#[test]
fn old_api_server_is_refused() {
    for (major, minor, old) in [
        ("1", "30", false),
        ("1", "36+", false),
        ("2", "0", false),
        ("1", "29", true),
        ("1", "29+gke.1", true),
        ("?", "", false),
    ] {
        assert_eq!(version(major, minor).is_some(), old, "{major}.{minor}");
    }
    let problem = version("1", "29").unwrap().to_string();
    assert_eq!(problem, "Kubernetes is 1.29; upgrade it to 1.30 or newer");
}

/// The responses of an API server that has Assent's definitions.
fn served() -> BTreeMap<String, Value> {
    let established = json!({"conditions": [{"type": "Established", "status": "True"}]});
    let ours = assent_api::crd::all().into_iter().map(|mut definition| {
        definition["status"] = established.clone();
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        (name, definition)
    });
    ours.collect()
}

#[track_caller]
fn check(change: impl FnOnce(&mut BTreeMap<String, Value>), expect: &[&str]) {
    let mut served = served();
    change(&mut served);
    let problems: Vec<_> = definitions(&served)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(problems, expect);
}

const SERVERS: &str = "policyservers.policies.assent.dev";

#[test]
fn older_definitions_are_reported() {
    check(|_| {}, &[]);
    check(
        |served| drop(served.remove(SERVERS)),
        &["the definition policyservers.policies.assent.dev is missing; apply the chart's crds/"],
    );
    check(
        |served| served.get_mut(SERVERS).unwrap()["spec"]["versions"][0]["served"] = json!(false),
        &[
            "the definition policyservers.policies.assent.dev does not serve v1alpha1; apply the chart's crds/",
        ],
    );
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
    check(
        |served| {
            let properties = served
                .get_mut(SERVERS)
                .unwrap()
                .pointer_mut(schema)
                .unwrap();
            let spec = properties["spec"]["properties"].as_object_mut().unwrap();
            spec.remove("webhookMode");
            let secure = &mut spec["sources"]["properties"]["secure"]["items"]["properties"];
            secure.as_object_mut().unwrap().remove("certificateFrom");
            spec.insert("newer".to_owned(), json!({"type": "string"}));
        },
        &[
            "the definition policyservers.policies.assent.dev is older than this control plane and does not know spec.sources.secure[].certificateFrom, spec.webhookMode; apply the chart's crds/",
        ],
    );
    check(
        |served| {
            let conditions =
                json!([{"type": "NamesAccepted", "status": "False", "message": "\"ps\" is taken"}]);
            served.get_mut(SERVERS).unwrap()["status"]["conditions"] = conditions;
        },
        &["the definition policyservers.policies.assent.dev is not established: \"ps\" is taken"],
    );
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Rule {
    let owned = |list: &[&str]| list.iter().map(|&item| item.to_owned()).collect();
    Rule {
        groups: owned(groups),
        resources: owned(resources),
        verbs: owned(verbs),
        names: owned(names),
    }
}

#[test]
fn rules_grant_what_they_name() {
    let find = |resource: &str| REQUIRED.iter().find(|p| p.resource == resource).unwrap();
    let status = find("policyservers/status");
    let group = assent_api::GROUP;
    for (rule, expect) in [
        (
            rule(&[group], &["policyservers/status"], &["patch"], &[]),
            true,
        ),
        (rule(&["*"], &["*"], &["*"], &[]), true),
        (rule(&[group], &["*/status"], &["*"], &[]), true),
        (rule(&[group], &["policyservers"], &["*"], &[]), false),
        (
            rule(&[group], &["policyservers/status"], &["get"], &[]),
            false,
        ),
        (
            rule(&["apps"], &["policyservers/status"], &["*"], &[]),
            false,
        ),
        (
            rule(&[group], &["policyservers/status"], &["*"], &["default"]),
            false,
        ),
    ] {
        assert_eq!(
            is_granted(std::slice::from_ref(&rule), status, "patch"),
            expect,
            "{rule:?}"
        );
    }
    let definitions = find("customresourcedefinitions");
    let groups = ["apiextensions.k8s.io"];
    let all = rule(
        &groups,
        &["customresourcedefinitions"],
        &["get"],
        definitions.names,
    );
    let some = rule(
        &groups,
        &["customresourcedefinitions"],
        &["get"],
        &definitions.names[..1],
    );
    assert!(is_granted(&[all], definitions, "get"));
    assert!(!is_granted(&[some], definitions, "get"));
}

#[test]
fn all_missing_parts_are_reported_at_once() {
    let pods = REQUIRED
        .iter()
        .find(|p| p.resource == "statefulsets")
        .unwrap();
    let missing = Missing(vec![
        version("1", "29").unwrap(),
        pods.problem(
            vec!["create".to_owned(), "patch".to_owned()],
            "assent-system",
        ),
        REQUIRED[0].problem(vec!["get".to_owned()], "assent-system"),
    ]);
    assert_eq!(
        missing.to_string(),
        "the cluster is not ready for Assent:\n  \
         Kubernetes is 1.29; upgrade it to 1.30 or newer\n  \
         no permission to create, patch statefulsets.apps in the namespace assent-system; apply the chart's roles\n  \
         no permission to get admissionpolicies.policies.assent.dev; apply the chart's roles"
    );
}

/// The threats: no wildcards, and secrets in Assent's own namespace only.
#[test]
fn no_unneeded_permission_is_requested() {
    let names: Vec<_> = assent_api::crd::all()
        .iter()
        .map(|crd| crd["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    for permission in REQUIRED {
        let words = permission.verbs.iter().chain(permission.names);
        let mut words = words.chain([&permission.group, &permission.resource]);
        assert!(!words.any(|word| word.contains('*')), "{permission:?}");
        if permission.resource == "secrets" {
            assert_eq!(permission.scope, Scope::Namespace);
        }
        if permission.resource == "customresourcedefinitions" {
            assert_eq!(permission.names, names);
        }
    }
}
