#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::watch::{Change, What};

fn mk_revision(policy: &str, generation: i64, module: &str, server: &str) -> DynamicObject {
    let object = json!({
        "metadata": {
            "name": format!("{policy}-{generation}-u"),
            "namespace": "assent-system",
            "uid": format!("{policy}-{generation}"),
            "ownerReferences": [{
                "apiVersion": assent_api::API_VERSION, "kind": "ClusterAdmissionPolicy",
                "name": policy, "uid": "u",
            }],
        },
        "spec": {
            "policyRef": { "kind": "ClusterAdmissionPolicy", "name": policy, "uid": "u" },
            "generation": generation,
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

fn apply(objects: &mut Objects<DynamicObject>, kind: Kind, what: What) {
    let converter = Converter::new("assent-system", parse::Options::default());
    let change = converter.change(Change { kind, what });
    objects.apply(change.unwrap());
}

fn urls(modules: Vec<StoredModule>) -> Vec<String> {
    modules.into_iter().map(|module| module.url).collect()
}

#[test]
fn standby_fetches_each_module_once_after_servers_are_listed() {
    let (mut objects, mut requested) = (Objects::default(), HashSet::new());
    let listed = vec![
        mk_revision("a", 1, "x", "default"),
        mk_revision("a", 2, "x", "default"),
        mk_revision("b", 1, "y", "elsewhere"),
    ];
    apply(&mut objects, Kind::Revisions, What::Listed(listed));
    assert!(wanted(&objects, &mut requested).is_empty());
    apply(&mut objects, Kind::Servers, What::Listed(Vec::new()));
    let fetched = urls(wanted(&objects, &mut requested));
    assert_eq!(
        fetched,
        ["registry://example.com/x", "registry://example.com/y"]
    );
    assert!(wanted(&objects, &mut requested).is_empty());
    let added = Box::new(mk_revision("b", 2, "z", "elsewhere"));
    apply(&mut objects, Kind::Revisions, What::Applied(added));
    assert_eq!(
        urls(wanted(&objects, &mut requested)),
        ["registry://example.com/z"]
    );
}
