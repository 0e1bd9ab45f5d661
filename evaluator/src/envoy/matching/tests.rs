use super::*;

/// One entry, written as data: hosts, paths, prefixes, methods, headers (`name` or `name=value`).
fn entry(hosts: &[&str], paths: &[&str], prefixes: &[&str]) -> RequestMatch {
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    RequestMatch {
        hosts: own(hosts),
        paths: own(paths),
        path_prefixes: own(prefixes),
        ..RequestMatch::default()
    }
}

fn scope(matches: Vec<RequestMatch>) -> RequestScope {
    RequestScope {
        matches,
        ..RequestScope::default()
    }
}

fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

#[track_caller]
fn check(matcher: &Matcher, host: &str, path: &str, expected: &[usize]) {
    let headers = BTreeMap::new();
    let facts = Facts {
        host: normal_host(host),
        method: "GET",
        headers: &headers,
    };
    assert_eq!(matcher.find(&facts, path), expected, "{host} {path}");
}

#[test]
fn hosts_and_paths_select_policies() {
    let matcher = Matcher::new(&[
        scope(vec![]),
        scope(vec![entry(&["a.example.com"], &[], &[])]),
        scope(vec![entry(&["*.example.com"], &[], &["/api", "/v1/"])]),
        scope(vec![
            entry(&[], &["/health"], &[]),
            entry(&["b.test"], &[], &["/"]),
        ]),
    ]);
    check(&matcher, "a.example.com", "/", &[0, 1]);
    check(&matcher, "A.Example.COM.:8443", "/api", &[0, 1, 2]);
    check(&matcher, "x.y.example.com", "/api/x", &[0, 2]);
    check(&matcher, "x.example.com", "/apix", &[0]);
    check(&matcher, "x.example.com", "/v1", &[0, 2]);
    check(&matcher, "x.example.com", "/v1/", &[0, 2]);
    check(&matcher, "example.com", "/api", &[0]);
    check(&matcher, ".example.com", "/api", &[0]);
    check(&matcher, "other", "/health", &[0, 3]);
    check(&matcher, "other", "/health/", &[0]);
    check(&matcher, "b.test:80", "/anything", &[0, 3]);
    check(&matcher, "", "", &[0]);
}

#[test]
fn methods_and_headers_must_fit() {
    let guarded = RequestMatch {
        methods: vec!["POST".into(), "PUT".into()],
        headers: vec![
            HeaderMatch {
                name: "x-tenant".into(),
                exact: Some("a".into()),
            },
            HeaderMatch {
                name: "authorization".into(),
                exact: None,
            },
        ],
        ..RequestMatch::default()
    };
    let matcher = Matcher::new(&[scope(vec![guarded])]);
    let full = [("x-tenant", "a"), ("authorization", "")];
    for (method, pairs, matched) in [
        ("POST", &full[..], true),
        ("PUT", &full[..], true),
        ("post", &full[..], false),
        ("GET", &full[..], false),
        ("POST", &full[..1], false),
        ("POST", &[("x-tenant", "b"), ("authorization", "x")], false),
    ] {
        let headers = headers(pairs);
        let facts = Facts {
            host: "any".into(),
            method,
            headers: &headers,
        };
        let found = matcher.find(&facts, "/");
        assert_eq!(!found.is_empty(), matched, "{method} {pairs:?}");
    }
}

#[test]
fn hosts_are_normalised() {
    for (authority, host) in [
        ("Example.com", "example.com"),
        ("example.com:443", "example.com"),
        ("example.com.", "example.com"),
        ("[::1]:80", "[::1]"),
        ("[::1]", "[::1]"),
        ("::1", "::1"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("a:b", "a:b"),
        ("", ""),
    ] {
        assert_eq!(normal_host(authority), host, "{authority}");
    }
}

/// The lookups of a request do not depend on how many other hosts and paths have policies.
#[test]
fn lookups_touch_only_what_matches() {
    let scopes: Vec<RequestScope> = (0..40_000)
        .map(|n| {
            let (host, path) = (format!("h{}.test", n % 200), format!("/p{}", n / 200));
            scope(vec![entry(&[&host], &[], &[&path])])
        })
        .collect();
    let matcher = Matcher::new(&scopes);
    let mut found = Vec::new();
    matcher.hosts["h7.test"].find("/p9/x", &mut found);
    assert_eq!(found, [9 * 200 + 7]);
    assert!(matcher.hosts["h7.test"].prefixes.len() <= 3);
    check(&matcher, "h7.test", "/p9/x", &[9 * 200 + 7]);
}
