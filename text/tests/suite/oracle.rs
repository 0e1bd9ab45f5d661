//! The same verdict three ways: a text, the module that `opa build` makes of it, and `opa eval`.

mod generate;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use assent_wasm::{Abi, Policy, PolicySpec, Review};
use serde_json::{Value, json, value::RawValue};

use crate::support::{INTERPRETERS, cases, read};

/// A policy in Rego, and where its verdict is.
struct Example {
    text: &'static str,
    package: &'static str,
    /// An expression for the verdict in the terms of `package`.
    verdict: &'static str,
    settings: Value,
}

const MESSAGES: &str =
    r#"{"allowed": count(messages) == 0, "message": concat(", ", messages), "annotations": {}}"#;

const RESPONSE: &str = r#"{"allowed": policy.main.response.allowed, "message": object.get(policy.main.response, ["status", "message"], ""), "annotations": {}}"#;

const PLACEMENT: &str = r#"{"allowed": count(messages) == 0, "message": concat(", ", messages), "annotations": policy.annotations}"#;

/// What a rule of messages is called in each package.
const MESSAGE_RULES: [(&str, &str); 5] = [
    ("no_privileged", "deny"),
    ("require_owner_text", "deny"),
    ("fixed_tag", "deny"),
    ("allowed_repos", "violation"),
    ("placement", "errors"),
];

fn examples() -> Vec<Example> {
    let example = |text, package, verdict, settings| Example {
        text,
        package,
        verdict,
        settings,
    };
    let placements =
        json!({"placements": {"shop": {"region": "eu", "pool": "own"}, "docs": {"region": "us"}}});
    vec![
        example(
            "text/no-privileged/policy.rego",
            "no_privileged",
            MESSAGES,
            json!({}),
        ),
        example(
            "text/require-owner/policy.rego",
            "require_owner_text",
            MESSAGES,
            json!({}),
        ),
        example(
            "text/fixed-tag/policy.rego",
            "fixed_tag",
            MESSAGES,
            json!({}),
        ),
        example("placement/policy.rego", "placement", PLACEMENT, placements),
        example(
            "require-owner/src/policy.rego",
            "require_owner",
            RESPONSE,
            json!({"annotation": "example.com/owner", "pattern": "^team-[a-z]+$"}),
        ),
        example(
            "allowed-repos/src/policy.rego",
            "allowed_repos",
            MESSAGES,
            json!({"repos": ["registry.example.com", "docker.io/library/"]}),
        ),
    ]
}

#[test]
fn texts_modules_and_opa_give_equal_verdicts() {
    for example in examples() {
        let dir = tempfile::tempdir().unwrap();
        // Two of the examples have one package.
        let text = match example.package {
            "require_owner_text" => read(example.text)
                .replace("package require_owner\n", "package require_owner_text\n"),
            _ => read(example.text),
        };
        fs::write(dir.path().join("policy.rego"), &text).unwrap();
        fs::write(dir.path().join("oracle.rego"), example.wrapper()).unwrap();
        let module = built(dir.path());
        let mut compared = 0;
        for (settings, requests) in example.requests() {
            let settings: Value = serde_json::from_str(&settings).unwrap();
            let ours = INTERPRETERS.validate("policy.rego", &text, &settings, &requests);
            let opa = evaluated(dir.path(), &settings, &requests);
            let Ok(opa) = opa else {
                // Such as a pattern in the settings that is none.
                assert!(
                    matches!(ours.last(), Some(Err(_))),
                    "{}: {ours:?}",
                    example.text
                );
                continue;
            };
            assert_eq!(opa.len(), requests.len(), "{}", example.text);
            assert_eq!(
                ours.len(),
                requests.len(),
                "{}: {:?}",
                example.text,
                ours.last()
            );
            for ((request, ours), opa) in requests.iter().zip(ours).zip(opa) {
                let module = verdict_of(&module, &settings, request);
                compare(example.text, request, &ours.unwrap(), &opa, &module);
                compared += 1;
            }
        }
        assert!(compared >= 150, "{}: {compared}", example.text);
    }
}

#[test]
fn text_with_functions_of_opa_alone_is_refused_by_name() {
    let refused = INTERPRETERS.build("policy.rego", &read("jwt-claims/src/policy.rego"));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("io.jwt."), "{message}");
}

impl Example {
    /// Rules that give the verdict as OPA sees it.
    fn wrapper(&self) -> String {
        let package = self.package;
        let rule = MESSAGE_RULES.iter().find(|(one, _)| *one == package);
        let messages = rule.map_or(String::new(), |(_, rule)| {
            format!(
                "messages := [message(one) | some one in policy.{rule}]\n\n\
                 message(one) := one if is_string(one)\n\n\
                 message(one) := one.msg if is_object(one)\n\n"
            )
        });
        format!(
            "package oracle\n\nimport data.{package} as policy\n\n{messages}verdict := {}\n\n\
             main := {{\"response\": {{\"allowed\": found.allowed, \"status\": {{\"message\": found.message}}}}}}\n\n\
             found := one if {{\n\
             \tone := verdict with input as {{\"request\": input.request, \"review\": input.request, \"parameters\": data.parameters}}\n\
             }}\n",
            self.verdict
        )
    }

    /// The cases of the repository, and generated ones, by their settings.
    fn requests(&self) -> BTreeMap<String, Vec<Value>> {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let directory = Path::new(self.text).parent().unwrap();
        if directory.ends_with("src") {
            let tests = directory.parent().unwrap().join("tests");
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
            for file in fs::read_dir(root.join(tests)).unwrap() {
                let path = file.unwrap().path();
                if path.is_file() {
                    let case: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
                    let settings = case["settings"].to_string();
                    all.entry(settings)
                        .or_default()
                        .push(case["request"].clone());
                }
            }
        } else {
            for case in cases(directory.to_str().unwrap()) {
                let settings = case.settings.to_string();
                all.entry(settings).or_default().push(case.request);
            }
        }
        let generated = all.entry(self.settings.to_string()).or_default();
        generated.extend(generate::requests(160));
        all
    }
}

fn opa(directory: &Path, args: &[&str]) -> Result<Vec<u8>, String> {
    let program =
        std::env::var_os("ASSENT_OPA").expect("ASSENT_OPA must name opa: run `just test`");
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .output()
        .expect("opa must start");
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The module that `opa build` makes of the policy and its wrapper.
fn built(directory: &Path) -> assent_wasm::Module {
    let build = [
        "build",
        "--target",
        "wasm",
        "--entrypoint",
        "oracle/main",
        "--output",
        "bundle.tar.gz",
        "policy.rego",
        "oracle.rego",
    ];
    opa(directory, &build).unwrap();
    let unpacked = Command::new("tar")
        .args([
            "-xzf",
            "bundle.tar.gz",
            "--absolute-names",
            "--transform=s,^/,,",
            "/policy.wasm",
        ])
        .current_dir(directory)
        .status();
    assert!(unpacked.unwrap().success());
    let wasm = fs::read(directory.join("policy.wasm")).unwrap();
    INTERPRETERS.engine.compile(&wasm).unwrap()
}

/// The verdicts of `opa eval`, by one process for all requests.
fn evaluated(directory: &Path, settings: &Value, requests: &[Value]) -> Result<Vec<Value>, String> {
    let inputs: Vec<_> = requests
        .iter()
        .map(|request| json!({"request": request, "review": request, "parameters": settings}))
        .collect();
    let mut data = settings.clone();
    data["inputs"] = inputs.into();
    fs::write(directory.join("data.json"), data.to_string()).unwrap();
    let query = "[one | some i in data.inputs; one := data.oracle.verdict with input as i]";
    let eval = [
        "eval",
        "--strict-builtin-errors",
        "--format",
        "json",
        "--data",
        "policy.rego",
        "--data",
        "oracle.rego",
        "--data",
        "data.json",
        query,
    ];
    let output = opa(directory, &eval)?;
    let mut output: Value = serde_json::from_slice(&output).unwrap();
    let value = output["result"][0]["expressions"][0]["value"].take();
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn verdict_of(module: &assent_wasm::Module, settings: &Value, request: &Value) -> (bool, String) {
    let mut data = settings.clone();
    data["parameters"] = settings.clone();
    let spec = PolicySpec {
        settings_json: data.to_string().into(),
        ..PolicySpec::new(Abi::Opa)
    };
    let policy = Policy::prepare(&INTERPRETERS.engine, module, spec).unwrap();
    let request = RawValue::from_string(request.to_string()).unwrap();
    let verdict = policy.evaluate(&Review::admission(&request).unwrap());
    let verdict = verdict.unwrap_or_else(|error| panic!("{error}: {request}"));
    (verdict.allowed, verdict.message.unwrap_or_default())
}

/// Modules of `opa build` go through sets in an order of their own.
fn sorted(message: &str) -> Vec<&str> {
    let mut parts: Vec<_> = message.split(", ").collect();
    parts.sort_unstable();
    parts
}

fn compare(policy: &str, request: &Value, ours: &Value, opa: &Value, module: &(bool, String)) {
    let at = format!("{policy}: {request}\nours: {ours}\nopa eval: {opa}\nopa build: {module:?}");
    let allowed = ours["accepted"].as_bool().unwrap();
    assert_eq!(Some(allowed), opa["allowed"].as_bool(), "{at}");
    assert_eq!(allowed, module.0, "{at}");
    if !allowed {
        let message = sorted(ours["message"].as_str().unwrap_or_default());
        assert_eq!(message, sorted(opa["message"].as_str().unwrap()), "{at}");
        assert_eq!(message, sorted(&module.1), "{at}");
        return;
    }
    let before = &request["object"]["metadata"]["annotations"];
    let mut wanted = before.as_object().cloned().unwrap_or_default();
    wanted.extend(opa["annotations"].as_object().cloned().unwrap_or_default());
    let after = match ours.get("mutated_object") {
        Some(object) => &object["metadata"]["annotations"],
        None => before,
    };
    assert_eq!(
        after.as_object().cloned().unwrap_or_default(),
        wanted,
        "{at}"
    );
}
