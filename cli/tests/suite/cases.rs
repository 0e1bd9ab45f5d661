//! The cases of the example policies, by `assent test` and `assent run`.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::support::{Files, assent, module, policy};

/// Every case of the repository is run as a user would run it.
#[test]
fn example_policies_pass_their_cases() {
    let files = Files::new(&[]);
    let junit = files.path("results.xml");
    let policies = policy("");
    let args = ["test", policies.to_str().unwrap(), "--junit", &junit];
    let done = assent(&[&args[..], &["-o", "json"]].concat());
    let report = done.expect(0).json();
    assert_eq!(
        (&report["failed"], &report["errors"]),
        (&0.into(), &0.into())
    );
    let mut by_policy: BTreeMap<String, usize> = BTreeMap::new();
    for case in report["cases"].as_array().unwrap() {
        let manifest = Path::new(case["policy"].as_str().unwrap()).to_owned();
        let name = manifest.parent().unwrap().file_name().unwrap();
        *by_policy
            .entry(name.to_str().unwrap().to_owned())
            .or_default() += 1;
    }
    for entry in fs::read_dir(&policies).unwrap() {
        let dir = entry.unwrap().path();
        if dir.join("policy.wasm").exists() {
            let name = dir.file_name().unwrap().to_str().unwrap();
            let cases = by_policy.get(name).copied().unwrap_or_default();
            assert!(cases >= 10, "{name} has {cases} cases");
        }
    }
    let xml = fs::read_to_string(junit).unwrap();
    let tests = by_policy.values().sum::<usize>();
    assert!(
        xml.contains(&format!("tests=\"{tests}\" failures=\"0\" errors=\"0\"")),
        "{xml}"
    );
}

/// `assent run` takes a case for its request and settings; what it expects is compared here.
#[test]
fn run_takes_cases() {
    for (name, case, changes) in [
        ("add-labels", "pod-no-labels", true),
        ("no-privileged", "pod-privileged", false),
        ("require-owner", "configmap-owner", false),
    ] {
        let path = policy(name).join(format!("tests/{case}.json"));
        let expect: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let allowed = expect["expect"]["allowed"].as_bool().unwrap();
        let done = assent(&[
            "run",
            &module(name),
            "-f",
            path.to_str().unwrap(),
            "-o",
            "json",
        ]);
        let rows = done.expect(i32::from(!allowed)).json();
        let response = &rows[0]["response"];
        assert_eq!(
            rows[0]["result"],
            if allowed { "allowed" } else { "denied" }
        );
        assert_eq!(response["uid"], expect["request"]["uid"]);
        assert_eq!(response["patchType"].is_string(), changes, "{rows}");
    }
}
