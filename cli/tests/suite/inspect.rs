//! `assent inspect`.

use serde_json::json;

use crate::support::{Files, assent, module, policy};

#[test]
fn every_abi_is_recognised() {
    for (name, abi) in [
        ("no-privileged", "wapc"),
        ("require-owner", "opa"),
        ("allowed-repos", "gatekeeper"),
        ("image-tag", "wasi"),
    ] {
        let done = assent(&["inspect", &module(name), "-o", "json"]);
        let findings = done.expect(0).json();
        assert_eq!(findings["abi"], abi);
        assert_eq!(findings["loads"], true);
        assert_eq!(findings["problem"], json!(null));
        assert_eq!(
            findings["size"],
            std::fs::metadata(module(name)).unwrap().len()
        );
        assert_eq!(findings["metadata"]["policyType"], "kubernetes");
    }
}

#[test]
fn text_shows_the_essentials() {
    let bytes = std::fs::read(module("no-privileged")).unwrap();
    let digest = assent_core::Digest::of(&bytes).to_string();
    let done = assent(&["inspect", &module("no-privileged")]);
    for part in [
        digest.as_str(),
        "abi          wapc",
        "wapc.__guest_request",
        "loads        yes",
    ] {
        assert!(
            done.expect(0).out.contains(part),
            "no {part:?} in {done:#?}"
        );
    }
}

#[test]
fn module_that_needs_settings_still_loads() {
    let done = assent(&["inspect", &module("add-labels"), "-o", "json"]);
    let findings = done.expect(0).json();
    let words = findings["settingsRefused"].as_str();
    assert!(
        words.is_some_and(|words| words.contains("labels")),
        "{findings}"
    );
}

#[test]
fn manifest_is_vetted_with_its_settings() {
    let manifest = std::fs::read_to_string(policy("no-privileged").join("manifest.yaml")).unwrap();
    let absolute = manifest.replace("policy.wasm", &module("no-privileged"));
    let wrong = absolute.replace("exemptImages:", "exemptImagez:");
    let files = Files::new(&[
        ("good.yaml", absolute.as_bytes()),
        ("wrong.yaml", wrong.as_bytes()),
    ]);
    assent(&["inspect", &files.path("good.yaml")]).expect(0);
    let done = assent(&["inspect", &files.path("wrong.yaml"), "-o", "json"]);
    let findings = done.expect(1).json();
    assert_eq!(findings["loads"], false);
    assert!(
        findings["problem"]
            .as_str()
            .unwrap()
            .contains("exemptImagez"),
        "{findings}"
    );
}

#[test]
fn modules_that_do_not_load_have_a_problem() {
    let bytes = std::fs::read(module("no-privileged")).unwrap();
    let files = Files::new(&[
        ("cut.wasm", &bytes[..bytes.len() / 2]),
        ("foreign.wasm", b"\0asm\x01\0\0\0"),
        ("component.wasm", b"\0asm\x0d\0\x01\0"),
    ]);
    for (name, part) in [
        ("cut.wasm", "parse"),
        ("foreign.wasm", ""),
        ("component.wasm", "component"),
    ] {
        let done = assent(&["inspect", &files.path(name), "-o", "json"]);
        let findings = done.expect(1).json();
        assert_eq!(findings["loads"], false);
        assert!(
            findings["problem"].as_str().unwrap().contains(part),
            "{findings}"
        );
        let text = assent(&["inspect", &files.path(name)]);
        assert!(text.expect(1).out.contains("loads        no: "), "{text:?}");
    }
}

#[test]
fn unreadable_input_is_exit_code_2() {
    let files = Files::new(&[("text", b"hello")]);
    assent(&["inspect", &files.path("missing.wasm")])
        .expect(2)
        .says("there is no file");
    assent(&["inspect", &files.path("text")])
        .expect(2)
        .says("neither a WebAssembly module");
    assent(&["inspect", "https://127.0.0.1:1/policy.wasm"])
        .expect(2)
        .says("failed to fetch");
}
