use serde_json::json;

use super::*;

const DOCUMENT: &str = "\
| arrow | decides | performs |
|---|---|---|
| object → snapshot | `core::plane` | |

| path | contents | invariant |
|---|---|---|
| `core` | | |
| `k8s` | | |

| crate | uses | its tests also use |
|---|---|---|
| `core` | | |
| `k8s` | `core` | |

| library | used by | exceptions to be removed |
|---|---|---|
| `kube/client` | `k8s` | |
";

fn mk_package(name: &str, dependencies: Vec<Dependency>) -> Package {
    Package {
        name: name.to_owned(),
        directory: name.to_owned(),
        dependencies,
        closure: BTreeSet::new(),
    }
}

fn own(name: &str) -> Dependency {
    Dependency {
        name: name.to_owned(),
        own: true,
        ..Dependency::default()
    }
}

fn library(name: &str, features: &[&str]) -> Dependency {
    Dependency {
        name: name.to_owned(),
        features: features.iter().map(|f| (*f).to_owned()).collect(),
        ..Dependency::default()
    }
}

fn mk_core() -> Package {
    mk_package("core", vec![library("sha2", &[])])
}

fn mk_k8s() -> Package {
    mk_package("k8s", vec![own("core"), library("kube", &["client"])])
}

#[track_caller]
fn check_finds(packages: &[Package], expect: &[&str]) {
    let document = Document::parse(DOCUMENT).expect("the document must have its tables");
    assert_eq!(check(&document, packages), expect);
}

#[test]
fn documented_workspace_passes() {
    check_finds(&[mk_core(), mk_k8s()], &[]);
}

#[test]
fn undocumented_edge_is_found() {
    let core = mk_package("core", vec![own("k8s")]);
    check_finds(
        &[core, mk_k8s()],
        &[
            "core must not use k8s: ARCHITECTURE.md does not allow it",
            "core must know no runtime, but uses k8s, which may",
        ],
    );
}

#[test]
fn undocumented_edge_of_tests_is_found() {
    let tests = Dependency {
        dev: true,
        ..own("k8s")
    };
    let core = mk_package("core", vec![tests]);
    check_finds(
        &[core, mk_k8s()],
        &["tests of core must not use k8s: ARCHITECTURE.md does not allow it"],
    );
}

#[test]
fn unused_edge_is_found() {
    let k8s = mk_package("k8s", vec![library("kube", &["client"])]);
    check_finds(
        &[mk_core(), k8s],
        &["k8s no longer use core: remove it from ARCHITECTURE.md"],
    );
}

#[test]
fn crate_without_row_is_found() {
    let extra = mk_package("extra", Vec::new());
    check_finds(
        &[mk_core(), mk_k8s(), extra],
        &[
            "ARCHITECTURE.md has no row for the crate extra",
            "the code map of ARCHITECTURE.md lacks extra",
        ],
    );
}

#[test]
fn row_without_crate_is_found() {
    check_finds(
        &[mk_k8s()],
        &["ARCHITECTURE.md has a row for core, which is no crate"],
    );
}

#[test]
fn client_feature_elsewhere_is_found() {
    let core = mk_package("core", vec![library("kube", &["client"])]);
    check_finds(
        &[core, mk_k8s()],
        &[
            "core must not use kube/client",
            "core must know no runtime, but uses kube",
        ],
    );
}

#[test]
fn exception_that_is_not_needed_is_found() {
    let text = DOCUMENT.replace("| `k8s` | |\n", "| `k8s` | `core` |\n");
    let document = Document::parse(&text).expect("the document must have its tables");
    assert_eq!(
        check(&document, &[mk_core(), mk_k8s()]),
        ["core no longer uses kube/client: remove the exception from ARCHITECTURE.md"]
    );
}

#[test]
fn runtime_below_core_is_found() {
    let mut core = mk_core();
    core.closure.insert("tokio".to_owned());
    check_finds(&[core, mk_k8s()], &["tokio is below core, which is pure"]);
}

#[test]
fn runtime_in_core_is_found() {
    let core = mk_package("core", vec![library("tokio", &[])]);
    check_finds(
        &[core, mk_k8s()],
        &["core must know no runtime, but uses tokio"],
    );
}

#[test]
fn metadata_is_read() {
    let dependency =
        |name: &str, kind: Option<&str>| json!({"name": name, "kind": kind, "features": ["f"]});
    let metadata = json!({
        "workspace_root": "/r",
        "workspace_members": ["a", "b"],
        "packages": [
            {"id": "a", "name": "assent-a", "manifest_path": "/r/x/a/Cargo.toml",
             "dependencies": [dependency("assent-b", None), dependency("l", Some("dev"))]},
            {"id": "b", "name": "assent-b", "manifest_path": "/r/Cargo.toml", "dependencies": []},
            {"id": "l", "name": "l", "manifest_path": "/elsewhere/Cargo.toml", "dependencies": []},
        ],
        "resolve": {"nodes": [
            {"id": "a", "deps": [
                {"pkg": "b", "dep_kinds": [{"kind": null}]},
                {"pkg": "l", "dep_kinds": [{"kind": "dev"}]},
            ]},
            {"id": "b", "deps": []},
            {"id": "l", "deps": []},
        ]},
    });
    let packages = read(&metadata).expect("the metadata must be complete");
    let [a, b] = packages.as_slice() else {
        panic!("two members, not {packages:?}");
    };
    assert_eq!((a.name.as_str(), a.directory.as_str()), ("a", "x/a"));
    assert_eq!((b.name.as_str(), b.directory.as_str()), ("b", ""));
    let found: Vec<_> = a
        .dependencies
        .iter()
        .map(|d| (&*d.name, d.own, d.dev))
        .collect();
    assert_eq!(found, [("b", true, false), ("l", false, true)]);
    assert!(a.closure.contains("assent-b") && !a.closure.contains("l"));
}
