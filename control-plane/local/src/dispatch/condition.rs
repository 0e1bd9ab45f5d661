//! Match conditions: CEL over the request.

use std::{
    collections::HashMap,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, LazyLock},
};

use assent_api::rules::{FailurePolicy, MatchCondition};
use cel::{Context, Env, Program, objects::Key};
use serde_json::Value;

use super::{Matched, Request};

/// A compiled condition.
pub(super) struct Condition {
    name: String,
    program: Program,
}

/// A condition that is not CEL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.matchConditions[{index}].expression: {why}")]
pub struct ConditionError {
    /// Which of the conditions.
    pub index: usize,
    /// What is wrong with it.
    pub why: String,
}

/// The language with the libraries that an API server offers, as far as they exist here.
static LANGUAGE: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib().with_optional_support(true);
    let extended = [
        env.add_extension(cel::extensions::strings),
        env.add_extension(cel::extensions::lists),
        env.add_extension(cel::extensions::math),
        env.add_extension(cel::extensions::encoders),
    ];
    for result in extended {
        result.expect("the extensions must not overlap");
    }
    Arc::new(env)
});

/// Compiles conditions.
pub(super) fn compile(conditions: &[MatchCondition]) -> Result<Vec<Condition>, ConditionError> {
    let compile = |(index, condition): (usize, &MatchCondition)| {
        let program = guarded(|| LANGUAGE.compile(&condition.expression))
            .and_then(|compiled| compiled.map_err(|errors| errors.to_string()))
            .map_err(|why| ConditionError { index, why })?;
        Ok(Condition {
            name: condition.name.clone(),
            program,
        })
    };
    conditions.iter().enumerate().map(compile).collect()
}

/// Whether all conditions hold. One that does not hold decides, whatever errors others have;
/// on an error `failurePolicy` decides.
pub(super) fn check(
    conditions: &[Condition],
    request: &Request,
    failure_policy: FailurePolicy,
) -> Matched {
    if conditions.is_empty() {
        return Matched::Yes;
    }
    let context = context(request);
    let mut error = None;
    for condition in conditions {
        match condition.holds(&context) {
            Ok(true) => {}
            Ok(false) => return Matched::No,
            Err(why) => {
                error.get_or_insert(format!("match condition \"{}\": {why}", condition.name));
            }
        }
    }
    match (error, failure_policy) {
        (None, _) => Matched::Yes,
        (Some(_), FailurePolicy::Ignore) => Matched::No,
        (Some(why), FailurePolicy::Fail) => Matched::Error(why),
    }
}

fn context(request: &Request) -> Context<'static, 'static> {
    let mut whole = request.rest.clone();
    if let Value::Object(map) = &mut whole {
        map.insert("object".to_owned(), request.object.clone());
        map.insert("oldObject".to_owned(), request.old_object.clone());
    }
    let mut context = Context::with_env(LANGUAGE.clone());
    context.add_variable_from_value("object", to_cel(&request.object));
    context.add_variable_from_value("oldObject", to_cel(&request.old_object));
    context.add_variable_from_value("request", to_cel(&whole));
    context
}

/// Integers become `int`, as they do in an API server: an expression may not mix them with
/// `uint`.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(truth) => cel::Value::Bool(*truth),
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => cel::Value::Int(n),
            (None, Some(n)) => cel::Value::UInt(n),
            (None, None) => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let fields = map.iter().map(|(k, v)| (Key::from(k.as_str()), to_cel(v)));
            let map: HashMap<Key, cel::Value> = fields.collect();
            cel::Value::Map(cel::objects::Map { map: Arc::new(map) })
        }
    }
}

/// An expression is somebody's input: whatever it does to the interpreter is its own error.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| "the expression made the interpreter fail".to_owned())
}

// === impl Condition ===

impl Condition {
    fn holds(&self, context: &Context<'_, '_>) -> Result<bool, String> {
        match guarded(|| self.program.execute(context))? {
            Ok(cel::Value::Bool(truth)) => Ok(truth),
            Ok(other) => Err(format!("must give true or false, not {}", other.type_of())),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Condition")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
