//! The interpreter of policies written in Rego, on `regorus`.
//!
//! `regorus` runs as it is by default: an error of a builtin function ends the evaluation. OPA makes such a
//! call undefined, which turns `not f(x)` into true for a reason that nobody meant.

mod functions;
mod outcome;
mod walk;

use std::num::{NonZeroU32, NonZeroUsize};

use interpreter_guest::{Answer, Language, Payload, Problem, Source};
use regorus::{Engine, Value, utils::limits::PolicyLengthConfig};
use serde::Deserialize;

use outcome::Form;

interpreter_guest::export!(Rego);

/// The first line of a text in the syntax before Rego v1.
const V0: &str = "# rego.v0";

/// Rules that decide if none is named, with what their results mean.
const RULES: [&str; 4] = ["deny", "violation", "main", "allow"];

/// The host has limited the text already.
const LENGTHS: PolicyLengthConfig = PolicyLengthConfig {
    max_col: NonZeroU32::MAX,
    max_file_bytes: NonZeroUsize::MAX,
    max_lines: NonZeroUsize::MAX,
};

/// A text that is ready to be evaluated.
pub struct Rego {
    engine: Engine,
    rule: String,
    form: Form,
    /// Whether the text refers to `data` outside of its packages. Preparing the engine for other data takes longer than
    /// most evaluations, so it is not done in vain.
    reads_data: bool,
}

impl Language for Rego {
    fn build(source: &Source) -> Result<Self, Problem> {
        let mut engine = Engine::new();
        engine.set_rego_v0(
            source
                .text
                .lines()
                .next()
                .is_some_and(|line| line.trim() == V0),
        );
        engine.set_policy_length_config(LENGTHS);
        functions::add(&mut engine)?;
        add(&mut engine, &source.file, &source.text)?;
        for (file, text) in &source.more {
            add(&mut engine, file, text)?;
        }
        let found = walk::modules(engine.get_modules());
        if let Some(problem) = found.problem {
            return Err(problem.into());
        }
        let rule = rule(source, &found)?;
        let mut policy = Self {
            form: Form::of(&rule),
            rule,
            engine,
            reads_data: found.reads_data,
        };
        policy.check()?;
        Ok(policy)
    }

    fn entrypoint(&self) -> String {
        self.rule.clone()
    }

    fn validate(&mut self, payload: &Payload<'_>) -> Result<Answer, String> {
        let request = Value::from_json_str(payload.request.get()).map_err(plain)?;
        let settings = match payload.settings {
            Some(settings) => Value::from_json_str(settings.get()).map_err(plain)?,
            None => Value::new_object(),
        };
        if self.reads_data && settings.as_object().is_ok() {
            self.engine.clear_data();
            self.engine.add_data(settings.clone()).map_err(plain)?;
        }
        functions::reset();
        self.engine.set_input(input(request, settings)?);
        let result = self.engine.eval_rule(self.rule.clone()).map_err(plain)?;
        outcome::answer(&result, self.form, payload.request)
    }

    fn evaluate(&mut self, input: &str) -> Result<String, String> {
        let call: Evaluation = serde_json::from_str(input).map_err(|error| error.to_string())?;
        let engine = &mut self.engine;
        engine.set_strict_builtin_errors(call.strict);
        engine.clear_data();
        if let Some(data) = call.data {
            engine.add_data(data).map_err(plain)?;
        }
        engine.set_input(call.input.unwrap_or(Value::Undefined));
        let results = engine.eval_query(call.query, false).map_err(plain)?;
        serde_json::to_string(&results).map_err(|error| error.to_string())
    }
}

impl Rego {
    /// Analyses the text with an empty input: that is when names and recursion are checked.
    fn check(&mut self) -> Result<(), String> {
        if self.rule.is_empty() {
            return Ok(());
        }
        self.engine.set_input(Value::new_object());
        let analysed = self.engine.eval_query("1".to_owned(), false);
        analysed.map(|_| ()).map_err(plain)
    }
}

/// One call of `evaluate`.
#[derive(Deserialize)]
struct Evaluation {
    query: String,
    input: Option<Value>,
    data: Option<Value>,
    #[serde(default)]
    strict: bool,
}

fn add(engine: &mut Engine, file: &str, text: &str) -> Result<(), String> {
    let added = engine.add_policy(file.to_owned(), text.to_owned());
    added.map(|_| ()).map_err(plain)
}

/// `regorus` starts messages that have a position with an empty line.
fn plain(error: impl std::fmt::Display) -> String {
    error.to_string().trim_start().to_owned()
}

/// The path of the rule that decides.
fn rule(source: &Source, found: &walk::Found) -> Result<String, String> {
    // For tests of the language: such a module only evaluates queries.
    if source.entrypoint == "-" {
        return Ok(String::new());
    }
    let file = &source.file;
    if !source.entrypoint.is_empty() {
        let wanted = path(&source.entrypoint);
        return found
            .rules
            .iter()
            .find(|rule| {
                **rule == wanted || **rule == format!("{}.{}", found.package, source.entrypoint)
            })
            .cloned()
            .ok_or_else(|| {
                format!(
                    "{file}: there is no rule {}: the text has {}",
                    source.entrypoint,
                    list(&found.rules)
                )
            });
    }
    let candidates: Vec<_> = RULES
        .iter()
        .map(|name| format!("{}.{name}", found.package))
        .filter(|path| found.rules.contains(path))
        .collect();
    match &candidates[..] {
        [one] => Ok(one.clone()),
        [] => Err(format!(
            "{file}: no rule decides: define deny, violation, main or allow in {}, or name the rule as the entrypoint",
            found.package
        )),
        several => Err(format!(
            "{file}: which rule decides is not clear, there are {}: name one as the entrypoint",
            several.join(" and ")
        )),
    }
}

/// `a/b` and `a.b` as `opa build` takes them, `data.a.b` as queries are written.
fn path(entrypoint: &str) -> String {
    let dotted = entrypoint.replace('/', ".");
    if dotted.starts_with("data.") {
        dotted
    } else {
        format!("data.{dotted}")
    }
}

fn list(rules: &std::collections::BTreeSet<String>) -> String {
    let rules: Vec<_> = rules.iter().map(String::as_str).collect();
    if rules.is_empty() {
        "none".to_owned()
    } else {
        rules.join(", ")
    }
}

/// The request under both names that policies use, and the settings under that of Gatekeeper.
fn input(request: Value, settings: Value) -> Result<Value, String> {
    let mut input = Value::new_object();
    let fields = input.as_object_mut().map_err(plain)?;
    fields.insert(Value::from("request"), request.clone());
    fields.insert(Value::from("review"), request);
    fields.insert(Value::from("parameters"), settings);
    Ok(input)
}
