//! The example policies, case by case: real toolchains, real modules.

use std::{fs, path::PathBuf};

use assent_wasm::{Abi, Policy, PolicySpec, PolicyType, Review, Verdict};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::guests::{ENGINE, spec};

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    settings: Option<Box<RawValue>>,
    request: Box<RawValue>,
    expect: Expect,
}

#[derive(Deserialize)]
struct Expect {
    allowed: bool,
    message_contains: Option<String>,
    patched: Option<Value>,
}

#[derive(Deserialize)]
struct SettingsCase {
    name: String,
    settings: Box<RawValue>,
    expect: Valid,
}

#[derive(Deserialize)]
struct Valid {
    valid: bool,
    message_contains: Option<String>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../policies")
        .join(name)
}

/// The JSON files of a folder; none if it does not exist.
fn files(folder: PathBuf) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

fn prepare(
    module: &assent_wasm::Module,
    settings: Option<&RawValue>,
) -> Result<Policy, assent_wasm::PrepareError> {
    let inspection = module.inspection();
    let settings_json = settings.map_or("{}", RawValue::get).to_owned().into();
    let mutating = inspection.metadata.as_ref().unwrap().mutating;
    // Debug builds on a busy machine: the deadline is not what is tested here.
    let limits = assent_wasm::Limits {
        timeout: std::time::Duration::from_secs(60),
        ..Default::default()
    };
    let raw = inspection.metadata.as_ref().unwrap().policy_type == PolicyType::Raw;
    let spec = PolicySpec {
        settings_json,
        mutating,
        limits,
        raw,
        // The raw ones of the examples decide about requests at Envoy.
        check: raw,
        ..spec(inspection.abi.unwrap())
    };
    let policy = Policy::prepare(&ENGINE, module, spec)?;
    policy.validate_settings()?;
    policy.self_test()?;
    Ok(policy)
}

fn patched(request: &RawValue, verdict: &Verdict) -> Option<Value> {
    let patch: json_patch::Patch = serde_json::from_slice(verdict.patch.as_ref()?).unwrap();
    let mut object = serde_json::from_str::<Value>(request.get()).unwrap()["object"].take();
    json_patch::patch(&mut object, &patch).unwrap();
    Some(object)
}

#[track_caller]
fn check(name: &str, abi: Abi, at_least: usize) {
    let module = ENGINE
        .compile(&fs::read(folder(name).join("policy.wasm")).unwrap())
        .unwrap();
    assert_eq!(module.inspection().abi, Some(abi));
    let cases = files(folder(name).join("tests"));
    assert!(
        cases.len() >= at_least,
        "only {} cases of {name} were found",
        cases.len()
    );
    for case in cases {
        let case: Case = serde_json::from_str(&case).unwrap();
        let policy = prepare(&module, case.settings.as_deref()).unwrap();
        let review = match policy.spec().check {
            true => Review::check(case.request.get()),
            false => Review::admission(&case.request).unwrap(),
        };
        let verdict = policy
            .evaluate(&review)
            .unwrap_or_else(|error| panic!("{name}, {}: {error}", case.name));
        assert_eq!(
            verdict.allowed, case.expect.allowed,
            "{name}, {}: {verdict:?}",
            case.name
        );
        let message = verdict.message.clone().unwrap_or_default();
        let expected = case.expect.message_contains.unwrap_or_default();
        assert!(
            message.contains(&expected),
            "{name}, {}: {message}",
            case.name
        );
        assert_eq!(
            patched(&case.request, &verdict),
            case.expect.patched,
            "{name}, {}",
            case.name
        );
    }
    for case in files(folder(name).join("tests/settings")) {
        let case: SettingsCase = serde_json::from_str(&case).unwrap();
        let outcome = prepare(&module, Some(&case.settings)).map(drop);
        assert_eq!(
            outcome.is_ok(),
            case.expect.valid,
            "{name}, {}: {outcome:?}",
            case.name
        );
        let message = outcome
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            message.contains(&case.expect.message_contains.unwrap_or_default()),
            "{name}: {message}"
        );
    }
}

/// A case whose object is a mebibyte larger, by fields that no policy knows and letters of all widths.
fn enlarged(case: &Case) -> Option<Box<RawValue>> {
    let mut request: Value = serde_json::from_str(case.request.get()).unwrap();
    let object = request["object"].as_object_mut()?;
    let text = "ä\u{1F9F1} \"padding\" \\ ".repeat(48);
    let padding = (0..1024).map(|n| (format!("field-{n}"), Value::from(text.as_str())));
    object.insert(
        "padding".to_owned(),
        padding.collect::<serde_json::Map<_, _>>().into(),
    );
    let text = request.to_string();
    assert!(text.len() > 1 << 20, "{}", text.len());
    Some(RawValue::from_string(text).unwrap())
}

/// The verdict about a large object is the same as about a small one.
#[track_caller]
fn check_large(name: &str) {
    let wasm = fs::read(folder(name).join("policy.wasm")).unwrap();
    let module = ENGINE.compile(&wasm).unwrap();
    let mut seen = [0, 0];
    for case in files(folder(name).join("tests")) {
        let case: Case = serde_json::from_str(&case).unwrap();
        let Some(request) = enlarged(&case) else {
            continue;
        };
        // Two of each kind: the others differ in what has nothing to do with size.
        let seen = &mut seen[usize::from(case.expect.allowed)];
        if std::mem::replace(seen, *seen + 1) >= 2 {
            continue;
        }
        let policy = prepare(&module, case.settings.as_deref()).unwrap();
        let verdict = policy.evaluate(&Review::admission(&request).unwrap());
        let verdict = verdict.unwrap_or_else(|error| panic!("{name}, {}: {error}", case.name));
        assert_eq!(
            verdict.allowed, case.expect.allowed,
            "{name}, {}",
            case.name
        );
        let patched = patched(&request, &verdict);
        assert_eq!(
            patched.is_some(),
            case.expect.patched.is_some(),
            "{name}, {}",
            case.name
        );
    }
    assert!(seen[1] >= 2, "{name}: {seen:?}");
}

#[test]
fn objects_of_a_mebibyte_are_evaluated() {
    for name in [
        "no-privileged",
        "add-labels",
        "require-owner",
        "allowed-repos",
        "image-tag",
    ] {
        check_large(name);
    }
}

#[test]
fn no_privileged_rust_wapc() {
    check("no-privileged", Abi::Wapc, 5);
}

#[test]
fn add_labels_rust_wapc_mutating() {
    check("add-labels", Abi::Wapc, 5);
}

#[test]
fn require_owner_rego() {
    check("require-owner", Abi::Opa, 5);
}

#[test]
fn jwt_claims_rego_at_envoy() {
    check("jwt-claims", Abi::Opa, 10);
}

#[test]
fn allowed_repos_gatekeeper() {
    check("allowed-repos", Abi::Gatekeeper, 5);
}

#[test]
fn image_tag_go_wasi() {
    check("image-tag", Abi::Wasi, 5);
}

#[test]
fn entrypoints_are_found_by_name() {
    let module = ENGINE
        .compile(&fs::read(folder("require-owner").join("policy.wasm")).unwrap())
        .unwrap();
    let with = |entrypoint: &str| {
        let spec = PolicySpec {
            entrypoint: entrypoint.to_owned(),
            ..spec(Abi::Opa)
        };
        Policy::prepare(&ENGINE, &module, spec).map(drop)
    };
    for name in ["require_owner/main", "data.require_owner.main", ""] {
        with(name).unwrap();
    }
    let error = with("nothing/here").unwrap_err().to_string();
    assert!(error.contains("require_owner/main"), "{error}");
}
