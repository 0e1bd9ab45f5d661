#![allow(clippy::unwrap_used)]

use kube::core::DynamicObject;
use serde_json::json;

use super::*;

fn revision(name: &str, module: &str, server: &str) -> DynamicObject {
    let object = json!({
        "metadata": { "name": name, "namespace": "assent-system", "uid": name },
        "spec": {
            "policyRef": { "kind": "ClusterAdmissionPolicy", "name": "a", "uid": "u" },
            "generation": 1,
            "moduleUrl": format!("registry://example.com/{module}"),
            "moduleDigest": Digest::of(module.as_bytes()).to_string(),
            "moduleSize": 7,
            "abi": "wapc",
            "contentDigest": "",
            "settings": "{}",
            "hostCapabilities": [],
            "timeoutMs": 1,
            "memoryBytes": 1,
            "policy": { "policyServer": server },
        },
    });
    serde_json::from_value(object).unwrap()
}

fn urls(fetches: Vec<Fetch>) -> Vec<String> {
    fetches.into_iter().map(|fetch| fetch.url).collect()
}

#[test]
fn each_module_is_fetched_once_and_not_before_servers_are_known() {
    let (mut index, mut known) = (Index::default(), HashSet::new());
    index.reset(
        Kind::Revisions,
        vec![
            revision("a-1", "x", "default"),
            revision("a-2", "x", "default"),
            revision("b-1", "y", "elsewhere"),
        ],
    );
    assert!(wanted(&index, &mut known).is_empty());
    index.reset(Kind::Servers, Vec::new());
    let fetched = urls(wanted(&index, &mut known));
    assert_eq!(
        fetched,
        ["registry://example.com/x", "registry://example.com/y"]
    );
    assert!(wanted(&index, &mut known).is_empty());
    index.apply(Kind::Revisions, revision("b-2", "z", "elsewhere"));
    assert_eq!(
        urls(wanted(&index, &mut known)),
        ["registry://example.com/z"]
    );
}
