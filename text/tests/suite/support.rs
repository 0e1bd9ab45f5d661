//! The interpreters, and what the tests have in common.

use std::{fs, path::Path, sync::LazyLock, time::Duration};

use assent_text::{Error, Language, Text};
use assent_wasm::{Calls, Engine, EngineConfig, Limits};
use serde_json::{Value, json};

/// One engine and its compiled interpreters for all tests: compiling takes seconds.
pub(crate) struct Interpreters {
    pub(crate) engine: Engine,
    rego: Vec<u8>,
    cel: Vec<u8>,
}

pub(crate) static INTERPRETERS: LazyLock<Interpreters> = LazyLock::new(|| {
    let engine = Engine::new(EngineConfig::small()).unwrap();
    let compile = |language: Language| {
        engine
            .precompile_interpreter(language.interpreter())
            .unwrap()
    };
    Interpreters {
        rego: compile(Language::Rego),
        cel: compile(Language::Cel),
        engine,
    }
});

// === impl Interpreters ===

impl Interpreters {
    pub(crate) fn compiled(&self, language: Language) -> &[u8] {
        match language {
            Language::Rego => &self.rego,
            Language::Cel => &self.cel,
        }
    }

    pub(crate) fn build(&self, file: &str, text: &str) -> Result<Vec<u8>, Error> {
        let text = Text::from_file(file, text).unwrap();
        let interpreter = self.compiled(text.language);
        text.build(&self.engine, Some(interpreter), Limits::default())
    }

    /// The verdicts of a text on requests with these settings, without a module in between; the first error is the
    /// last result.
    pub(crate) fn validate(
        &self,
        file: &str,
        text: &str,
        settings: &Value,
        requests: &[Value],
    ) -> Vec<Result<Value, String>> {
        let limits = Limits {
            timeout: Duration::from_secs(60),
            ..Limits::default()
        };
        self.validate_within(file, text, settings, requests, limits)
    }

    pub(crate) fn validate_within(
        &self,
        file: &str,
        text: &str,
        settings: &Value,
        requests: &[Value],
        limits: Limits,
    ) -> Vec<Result<Value, String>> {
        let language = Language::of_file(file).unwrap();
        let text = match language {
            Language::Rego => text.to_owned(),
            Language::Cel => assent_yaml::load_first(text).unwrap().to_string(),
        };
        let payloads = requests
            .iter()
            .map(|request| json!({"request": request, "settings": settings}));
        let calls = Calls {
            text: json!({"file": file, "text": text}).to_string().into_bytes(),
            operation: "validate",
            payloads: payloads.map(|one| one.to_string().into_bytes()).collect(),
        };
        let (interpreter, compiled) = (language.interpreter(), self.compiled(language));
        let ran = self
            .engine
            .interpret(interpreter, Some(compiled), calls, limits);
        let (answer, verdicts) = ran.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("entrypoint"), "{file}: {answer}");
        verdicts
            .into_iter()
            .map(|verdict| {
                let verdict = verdict.map_err(|error| error.to_string())?;
                Ok(serde_json::from_slice(&verdict).unwrap())
            })
            .collect()
    }
}

/// A file of the example policies.
pub(crate) fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../policies")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A request to create an object.
pub(crate) fn creation(object: &Value) -> Value {
    json!({
        "uid": "1", "operation": "CREATE", "name": "n", "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "u"}, "object": object, "oldObject": null,
    })
}

/// A case of the example policies, as `assent test` reads them.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) settings: Value,
    pub(crate) request: Value,
    pub(crate) expect: Value,
}

/// The cases of a text, with the settings of its manifest unless they have others.
pub(crate) fn cases(policy: &str) -> Vec<Case> {
    let yaml = |file: &str| assent_yaml::load_first(&read(&format!("{policy}/{file}"))).unwrap();
    let (document, manifest) = (yaml("tests/cases.yaml"), yaml("manifest.yaml"));
    let or = |value: &Value, other: &Value| match value {
        Value::Null => other.clone(),
        value => value.clone(),
    };
    let settings = or(&document["settings"], &manifest["spec"]["settings"]);
    let cases = document["cases"].as_array().unwrap().iter();
    cases
        .map(|case| Case {
            name: case["name"].to_string(),
            settings: or(&case["settings"], &settings),
            request: creation(&case["object"]),
            expect: case["expect"].clone(),
        })
        .collect()
}
