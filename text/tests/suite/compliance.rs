//! OPA's own test cases, run by the interpreter of Rego.
//!
//! `ASSENT_OPA_CASES` names their directory (`scripts/tools opa-cases`). A case passes, is refused when its text is
//! built, or ends in an error, which denies nothing and allows nothing. None may give another result than OPA gives.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use assent_text::Language;
use assent_wasm::{Calls, Limits};
use serde_json::{Value, json};

use crate::support::INTERPRETERS;

/// What became of the cases; the reasons with their counts.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    refused: BTreeMap<String, usize>,
    failed: BTreeMap<String, usize>,
    differ: Vec<String>,
}

/// How a text or a query ended.
enum Ended {
    Refused(String),
    Failed(String),
    Result(Value),
}

#[test]
fn cases_of_opa_pass_or_are_refused() {
    let directory = std::env::var("ASSENT_OPA_CASES")
        .expect("ASSENT_OPA_CASES must name the directory of OPA's test cases: run `just test`");
    let mut tally = Tally::default();
    let mut files = Vec::new();
    list(Path::new(&directory), &mut files);
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let Ok(document) = assent_yaml::load_first(&text) else {
            tally.refuse("the file of the case can't be read".into());
            continue;
        };
        for case in document["cases"].as_array().into_iter().flatten() {
            run(case, &mut tally);
        }
    }
    eprintln!("{}", tally.report());
    assert!(tally.passed > 1_000, "only {} passed", tally.passed);
    tally.differ.retain(|case| !KNOWN.contains(&case.as_str()));
    assert!(tally.differ.is_empty(), "{:#?}", tally.differ);
}

/// OPA limits the exponent of numbers with units; here such a number is a large one.
const KNOWN: [&str; 2] = [
    "units_parse/exponent too large: an error was expected",
    "units_parse_bytes/exponent too large: an error was expected",
];

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|end| end == "yaml") {
            files.push(path);
        }
    }
}

/// Policies are evaluated with strict errors. A case that fails because of that is evaluated as OPA does it: what it
/// shows of the language counts.
fn run(case: &Value, tally: &mut Tally) {
    let note = case["note"].as_str().unwrap_or_default();
    let wants_error = case.get("want_error").is_some() || case.get("want_error_code").is_some();
    match evaluate(case, true) {
        Ended::Refused(_) | Ended::Failed(_) if wants_error => tally.passed += 1,
        Ended::Refused(why) => tally.refuse(why),
        Ended::Failed(why) => match evaluate(case, false) {
            Ended::Result(result) if holds(case, &result) => tally.passed += 1,
            _ => tally.fail(why),
        },
        Ended::Result(_) if wants_error => {
            tally.differ.push(format!("{note}: an error was expected"));
        }
        Ended::Result(result) if holds(case, &result) => tally.passed += 1,
        Ended::Result(result) => tally.differ.push(format!(
            "{note}: {} instead of {}",
            result["result"], case["want_result"]
        )),
    }
}

fn evaluate(case: &Value, strict: bool) -> Ended {
    let modules = case["modules"].as_array().into_iter().flatten();
    let modules: Vec<_> = modules.filter_map(Value::as_str).collect();
    let (first, more) = modules
        .split_first()
        .map_or(("package empty", &[][..]), |(first, more)| (*first, more));
    let more: Vec<_> = more
        .iter()
        .enumerate()
        .map(|(n, text)| json!([format!("{}.rego", n + 1), text]))
        .collect();
    let input = match case["input_term"].as_str() {
        // Written as a term of Rego: only those that are JSON can be passed on.
        Some(term) => match serde_json::from_str(term) {
            Ok(value) => value,
            Err(_) => return Ended::Refused("the input is not JSON".into()),
        },
        None => case["input"].clone(),
    };
    let text = json!({"file": "0.rego", "text": first, "more": more, "entrypoint": "-"});
    let query = json!({
        "query": case["query"], "input": input, "data": case["data"],
        "strict": strict,
    });
    let calls = Calls {
        text: text.to_string().into_bytes(),
        operation: "evaluate",
        payloads: vec![query.to_string().into_bytes()],
    };
    let (interpreter, compiled) = (
        Language::Rego.interpreter(),
        INTERPRETERS.compiled(Language::Rego),
    );
    // The machine that runs the tests may be busy.
    let limits = Limits {
        timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let ran = INTERPRETERS
        .engine
        .interpret(interpreter, Some(compiled), calls, limits);
    let (answer, mut evaluated) = match ran {
        Ok(ran) => ran,
        Err(error) => return Ended::Refused(reason(&error.to_string())),
    };
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    if let Some(problem) = answer.get("problem") {
        return Ended::Refused(reason(problem["message"].as_str().unwrap_or_default()));
    }
    match evaluated.pop().unwrap() {
        Ok(result) => Ended::Result(serde_json::from_slice(&result).unwrap()),
        Err(error) => Ended::Failed(reason(&error.to_string())),
    }
}

impl Tally {
    fn refuse(&mut self, why: String) {
        *self.refused.entry(why).or_default() += 1;
    }

    fn fail(&mut self, why: String) {
        *self.failed.entry(why).or_default() += 1;
    }

    fn report(&self) -> String {
        let count = |all: &BTreeMap<String, usize>| all.values().sum::<usize>();
        let mut report = format!(
            "{} passed, {} refused when built, {} ended in an error, {} differ\n",
            self.passed,
            count(&self.refused),
            count(&self.failed),
            self.differ.len()
        );
        for (what, all) in [("refused", &self.refused), ("error", &self.failed)] {
            for (why, count) in all {
                let _ = writeln!(report, "{what} {count}: {why}");
            }
        }
        report
    }
}

/// The last line of a message.
fn reason(error: &str) -> String {
    let last = error.lines().last().unwrap_or_default();
    last.chars().take(140).collect()
}

/// Whether the bindings are those that the case wants.
fn holds(case: &Value, result: &Value) -> bool {
    let rows = result["result"].as_array().cloned().unwrap_or_default();
    if let Some(wanted) = case.get("want_defined").and_then(Value::as_bool) {
        return wanted != rows.is_empty();
    }
    let Some(wanted) = case.get("want_result") else {
        return true;
    };
    let bindings: Vec<Value> = rows
        .iter()
        .map(|row| comparable(row["bindings"].clone(), case))
        .collect();
    let wanted = wanted.as_array().into_iter().flatten();
    let wanted: Vec<Value> = wanted.map(|one| comparable(one.clone(), case)).collect();
    bindings.len() == wanted.len() && wanted.iter().all(|one| bindings.contains(one))
}

/// Numbers by value, and lists in order if the case says that theirs has none.
fn comparable(value: Value, case: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let items = items.into_iter().map(|item| comparable(item, case));
            let mut items: Vec<_> = items.collect();
            if case["sort_bindings"] == true {
                items.sort_by_key(Value::to_string);
            }
            Value::Array(items)
        }
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (key, comparable(value, case)))
            .collect(),
        Value::Number(number) => number.as_f64().map_or(Value::Null, |number| json!(number)),
        other => other,
    }
}
