use assent_core::policy::{HeaderMatch, RequestMatch, RequestScope};

use super::*;

fn mk(kind: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": "p"});
    if kind == "RequestPolicy" {
        metadata["namespace"] = json!("team");
    }
    let mut base = json!({"module": "example.com/p:v1"});
    merge(&mut base, spec);
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": base})
}

#[test]
fn request_policies_have_their_own_keys_and_defaults() {
    for (kind, key) in [
        ("RequestPolicy", "requests/team/p"),
        ("ClusterRequestPolicy", "cluster-requests/p"),
    ] {
        let value = mk(kind, json!({}));
        let parsed = policy(&value, &standalone()).unwrap();
        assert_eq!((parsed.key.as_str(), parsed.kind().as_str()), (key, kind));
        assert_eq!(parsed.requests.as_deref(), Some(&RequestScope::default()));
        assert_eq!(parsed.limits(Limits::default()).timeout_ms, 500);
        let name = identify(&value, &standalone()).unwrap();
        assert_eq!(name, Object::Policy(parsed.key.clone()));
        // What a revision keeps is read again to the same.
        let kept: Value = serde_json::from_slice(&parsed.spec_json).unwrap();
        assert_eq!(spec(&parsed.key, &kept, &standalone()).unwrap(), parsed);
    }
}

#[test]
fn matches_are_read() {
    let value = mk(
        "RequestPolicy",
        json!({
            "order": 7,
            "readsBody": false,
            "timeoutEvalMilliseconds": 20,
            "match": [{
                "hosts": ["a.example.com", "*.example.com", "[::1]", "10.0.0.1"],
                "paths": ["/", "/a/b"],
                "pathPrefixes": ["/café/"],
                "methods": ["GET", "M-SEARCH"],
                "headers": [{"name": "x-a", "exact": ""}, {"name": "x-b", "present": true}],
            }],
        }),
    );
    let parsed = policy(&value, &standalone()).unwrap();
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let header = |name: &str, exact: Option<&str>| HeaderMatch {
        name: name.into(),
        exact: exact.map(Into::into),
    };
    let expected = RequestScope {
        matches: vec![RequestMatch {
            hosts: own(&["a.example.com", "*.example.com", "[::1]", "10.0.0.1"]),
            paths: own(&["/", "/a/b"]),
            path_prefixes: own(&["/café/"]),
            methods: own(&["GET", "M-SEARCH"]),
            headers: vec![header("x-a", Some("")), header("x-b", None)],
        }],
        order: 7,
        reads_body: false,
    };
    assert_eq!(parsed.requests.as_deref(), Some(&expected));
    assert_eq!(parsed.limits(Limits::default()).timeout_ms, 20);
}

#[test]
fn mistakes_in_matches_are_refused() {
    let host = "is not a host: write it in lower case and without a port, such as shop.example.com or *.example.com";
    refuse(
        &mk(
            "ClusterRequestPolicy",
            json!({
                "order": 1001,
                "rules": [],
                "timeoutEvalMilliseconds": 0,
                "match": [
                    {},
                    {"hosts": ["A.example.com", "a:80", "*"]},
                    {"paths": ["a", "/a?b", "/%61", "/a/../b", "//a"]},
                    {"methods": ["get"], "headers": [{"name": "X-A"}, {"name": ":path", "present": false}]},
                ],
            }),
        ),
        &[
            "spec.match[0]: must have hosts, paths, pathPrefixes, methods or headers; without any entry the policy decides about all requests",
            &format!("spec.match[1].hosts[0]: \"A.example.com\" {host}"),
            &format!("spec.match[1].hosts[1]: \"a:80\" {host}"),
            &format!("spec.match[1].hosts[2]: \"*\" {host}"),
            "spec.match[2].paths[0]: \"a\" is not a path: it must begin with a slash and have at most 1024 characters",
            "spec.match[2].paths[1]: \"/a?b\" is not a path as it is compared: write it unescaped, without query and fragment",
            "spec.match[2].paths[2]: \"/%61\" is not a path as it is compared: write it unescaped, without query and fragment",
            "spec.match[2].paths[3]: \"/a/../b\" is not a path as it is compared: remove empty and dot segments",
            "spec.match[2].paths[4]: \"//a\" is not a path as it is compared: remove empty and dot segments",
            "spec.match[3].headers[0].name: must be the name of a header in lower case; use hosts, paths and methods for what is no header",
            "spec.match[3].headers[0]: must have either exact or present",
            "spec.match[3].headers[1].name: must be the name of a header in lower case; use hosts, paths and methods for what is no header",
            "spec.match[3].headers[1].present: must be true; a policy can't match requests without a header",
            "spec.match[3].methods[0]: \"get\" is not a method in upper case, such as GET",
            "spec.order: must be between 0 and 1000, not 1001",
            "spec.rules: unknown field; remove it (known are module, policyServer, settings, match, order, readsBody, mode, timeoutEvalMilliseconds, entrypoint, rollout, revisionHistoryLimit)",
            "spec.timeoutEvalMilliseconds: must be between 1 and 30000, not 0",
        ],
    );
}
