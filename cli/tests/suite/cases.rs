//! Cases of every example policy, one of each kind: the tests of the sandbox run all of them, and
//! here each one costs a compilation.

use std::{collections::BTreeSet, fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::support::{Done, Files, assent, module, policy};

/// Cases of a directory, by file name.
fn cases(dir: &Path) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let name = path.display().to_string();
            found.push((
                name,
                serde_json::from_slice(&fs::read(path).unwrap()).unwrap(),
            ));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn run(name: &str, request: &Value, settings: &Value) -> Done {
    let files = Files::new(&[
        ("request.json", request.to_string().as_bytes()),
        ("settings.json", settings.to_string().as_bytes()),
    ]);
    let (request, settings) = (files.path("request.json"), files.path("settings.json"));
    assent(&[
        "run",
        &module(name),
        "--request",
        &request,
        "--settings",
        &settings,
        "-o",
        "json",
    ])
}

#[track_caller]
fn check(name: &str, file: &str, case: &Value) {
    let request = &case["request"];
    let done = run(name, request, &case["settings"]);
    let expect = &case["expect"];
    let allowed = expect["allowed"].as_bool().unwrap();
    assert_eq!(done.code, i32::from(!allowed), "{file}: {done:#?}");
    let response = done.json();
    assert_eq!(response["allowed"], allowed, "{file}");
    assert_eq!(response["uid"], request["uid"], "{file}");
    let message = response["status"]["message"].as_str().unwrap_or_default();
    let part = expect["message_contains"].as_str().unwrap_or_default();
    assert!(message.contains(part), "{file}: {message:?} lacks {part:?}");
    assert_eq!(
        patched(request, &response),
        expect.get("patched").cloned(),
        "{file}"
    );
}

/// The object after the patch; none without one.
fn patched(request: &Value, response: &Value) -> Option<Value> {
    let patch = response["patch"].as_str()?;
    assert_eq!(response["patchType"], "JSONPatch");
    let patch: json_patch::Patch =
        serde_json::from_slice(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
    let mut object = request["object"].clone();
    json_patch::patch(&mut object, &patch).unwrap();
    Some(object)
}

#[track_caller]
fn check_settings(name: &str, file: &str, case: &Value, request: &Value) {
    let done = run(name, request, &case["settings"]);
    let expect = &case["expect"];
    if expect["valid"].as_bool().unwrap() {
        assert!(matches!(done.code, 0 | 1), "{file}: {done:#?}");
        return;
    }
    done.expect(2)
        .says(expect["message_contains"].as_str().unwrap_or_default());
    assert_eq!(done.out, "", "{file}");
}

fn check_all(name: &str, at_least: usize) {
    let tests = policy(name).join("tests");
    let found = cases(&tests);
    assert!(
        found.len() >= at_least,
        "only {} cases of {name}",
        found.len()
    );
    for (file, case) in one_of_each(&found, |case| {
        let expect = &case["expect"];
        (expect["allowed"].as_bool(), expect.get("patched").is_some())
    }) {
        check(name, file, case);
    }
    let request = &found[0].1["request"];
    let settings = cases(&tests.join("settings"));
    for (file, case) in one_of_each(&settings, |case| case["expect"]["valid"].as_bool()) {
        check_settings(name, file, case, request);
    }
}

fn one_of_each<K: Ord>(
    cases: &[(String, Value)],
    kind: impl Fn(&Value) -> K,
) -> impl Iterator<Item = &(String, Value)> {
    let mut seen = BTreeSet::new();
    cases
        .iter()
        .filter(move |(_, case)| seen.insert(kind(case)))
}

#[test]
fn add_labels_passes_its_cases() {
    check_all("add-labels", 14);
}

#[test]
fn allowed_repos_passes_its_cases() {
    check_all("allowed-repos", 22);
}

#[test]
fn image_tag_passes_its_cases() {
    check_all("image-tag", 20);
}

#[test]
fn no_privileged_passes_its_cases() {
    check_all("no-privileged", 25);
}

#[test]
fn require_owner_passes_its_cases() {
    check_all("require-owner", 17);
}

#[test]
fn every_policy_has_a_test() {
    let policies = fs::read_dir(policy(""))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let with_modules = policies.filter(|path| path.join("policy.wasm").exists());
    assert_eq!(
        with_modules.count(),
        5,
        "a policy was added: give it a test here"
    );
}
