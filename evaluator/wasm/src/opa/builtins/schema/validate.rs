//! Validates a document against a schema.

use regorus::Value;

use super::{
    compile::{Dependency, Index, Items, Part, Rest, Schema},
    format,
    problem::{Place, Problem},
};
use crate::opa::{
    builtins::{TooMuch, bounded::within},
    deadline, value,
};

/// Checks one document.
pub(super) struct Validator<'s> {
    schema: &'s Schema,
    steps: usize,
}

/// Parts that are checked in one call.
const MAX_STEPS: usize = 200_000;

/// Parts within parts; one that names itself has no end.
const MAX_DEPTH: usize = 256;

type Fields = regorus::value::Object;
type Array = regorus::value::Array;

// === impl Validator ===

impl<'s> Validator<'s> {
    pub(super) fn new(schema: &'s Schema) -> Self {
        Self { schema, steps: 0 }
    }

    pub(super) fn check(mut self, document: &Value) -> Result<Vec<Problem>, TooMuch> {
        self.part(0, document, &Place::root(), 0)
    }

    fn part(
        &mut self,
        index: Index,
        value: &Value,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        deadline::tick();
        self.steps += 1;
        within(self.steps, MAX_STEPS)?;
        within(depth, MAX_DEPTH)?;
        let part = &self.schema.parts[index];
        if let Some(verdict) = part.verdict {
            return Ok(if verdict {
                Vec::new()
            } else {
                vec![at.problem("false", "nothing is allowed here")]
            });
        }
        let depth = depth + 1;
        if let Some(other) = part.same_as {
            return self.part(other, value, at, depth);
        }
        let kind = kind(value);
        let fits =
            |wanted: &&'static str| *wanted == kind || (*wanted == "number" && kind == "integer");
        if !part.types.is_empty() && !part.types.iter().any(fits) {
            let why = format!("expected {}, found {kind}", part.types.join("/"));
            return Ok(vec![at.problem("invalid_type", &why)]);
        }
        let mut found = self.combined(part, value, at, depth)?;
        match value {
            Value::Number(_) => found.extend(numbers(part, value, at)),
            Value::Array(items) => found.extend(self.items(part, items, at, depth)?),
            Value::Object(fields) => found.extend(self.fields(part, fields, at, depth)?),
            Value::String(text) => found.extend(texts(part, text, at)),
            _ => {}
        }
        found.extend(values(part, value, at));
        Ok(found)
    }

    fn combined(
        &mut self,
        part: &Part,
        value: &Value,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let mut found = Vec::new();
        if !part.any_of.is_empty() {
            let (fitting, closest) = self.alternatives(&part.any_of, value, at, depth)?;
            if fitting == 0 {
                found.push(at.problem("number_any_of", "it is like none of the allowed schemas"));
                found.extend(closest);
            }
        }
        if !part.one_of.is_empty() {
            let (fitting, closest) = self.alternatives(&part.one_of, value, at, depth)?;
            if fitting != 1 {
                found.push(at.problem(
                    "number_one_of",
                    "it must be like exactly one of the schemas",
                ));
            }
            if fitting == 0 {
                found.extend(closest);
            }
        }
        let mut all = true;
        for schema in &part.all_of {
            let problems = self.part(*schema, value, at, depth)?;
            all &= problems.is_empty();
            found.extend(problems);
        }
        if !all {
            found.push(at.problem("number_all_of", "it must be like all of the schemas"));
        }
        if let Some(not) = part.not
            && self.part(not, value, at, depth)?.is_empty()
        {
            found.push(at.problem("number_not", "it must not be like the schema"));
        }
        if let Value::Object(fields) = value {
            found.extend(self.dependencies(part, value, fields, at, depth)?);
        }
        found.extend(self.condition(part, value, at, depth)?);
        Ok(found)
    }

    /// How many schemas match, and the violations of the best match.
    fn alternatives(
        &mut self,
        schemas: &[Index],
        value: &Value,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<(usize, Vec<Problem>), TooMuch> {
        let (mut fitting, mut closest) = (0, None::<Vec<Problem>>);
        for schema in schemas {
            let problems = self.part(*schema, value, at, depth)?;
            if problems.is_empty() {
                fitting += 1;
            } else if closest
                .as_ref()
                .is_none_or(|best| problems.len() < best.len())
            {
                closest = Some(problems);
            }
        }
        Ok((fitting, closest.unwrap_or_default()))
    }

    fn dependencies(
        &mut self,
        part: &Part,
        value: &Value,
        fields: &Fields,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let mut found = Vec::new();
        for (name, dependency) in &part.dependencies {
            if !has(fields, name) {
                continue;
            }
            match dependency {
                Dependency::Like(schema) => found.extend(self.part(*schema, value, at, depth)?),
                Dependency::Names(names) => {
                    let missing = names.iter().filter(|needed| !has(fields, needed));
                    found.extend(missing.map(|needed| {
                        at.problem("missing_dependency", &format!("{name} needs {needed}"))
                    }));
                }
            }
        }
        Ok(found)
    }

    fn condition(
        &mut self,
        part: &Part,
        value: &Value,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let Some(condition) = part.condition else {
            return Ok(Vec::new());
        };
        let holds = self.part(condition, value, at, depth)?.is_empty();
        let (schema, kind, why) = if holds {
            (
                part.then,
                "condition_then",
                "it is like the schema of if, and not like that of then",
            )
        } else {
            (
                part.otherwise,
                "condition_else",
                "it is not like the schema of if, and not like that of else",
            )
        };
        let Some(schema) = schema else {
            return Ok(Vec::new());
        };
        let mut found = self.part(schema, value, at, depth)?;
        if !found.is_empty() {
            found.insert(0, at.problem(kind, why));
        }
        Ok(found)
    }

    fn items(
        &mut self,
        part: &Part,
        items: &Array,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let mut found = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let schema = match (&part.items, &part.additional_items) {
                (Items::Any, _) => None,
                (Items::All(schema), _) => Some(*schema),
                (Items::Each(schemas), rest) => match (schemas.get(index), rest) {
                    (Some(schema), _) => Some(*schema),
                    (None, Rest::Like(schema)) if !schemas.is_empty() => Some(*schema),
                    _ => None,
                },
            };
            if let Some(schema) = schema {
                found.extend(self.part(schema, item, &at.inside(index.to_string()), depth)?);
            }
        }
        if let (Items::Each(schemas), Rest::Nothing) = (&part.items, &part.additional_items)
            && !schemas.is_empty()
            && items.len() > schemas.len()
        {
            found.push(at.problem(
                "array_no_additional_items",
                "there are more items than allowed",
            ));
        }
        found.extend(part.item_count.problems(
            items.len(),
            at,
            ["array_min_items", "array_max_items"],
            "items",
        ));
        if part.unique_items {
            found.extend(repeated(items, at));
        }
        if let Some(schema) = part.contains {
            found.extend(self.contains(schema, items, at, depth)?);
        }
        Ok(found)
    }

    fn contains(
        &mut self,
        schema: Index,
        items: &Array,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let mut closest = None::<Vec<Problem>>;
        for (index, item) in items.iter().enumerate() {
            let problems = self.part(schema, item, &at.inside(index.to_string()), depth)?;
            if problems.is_empty() {
                return Ok(problems);
            }
            if closest
                .as_ref()
                .is_none_or(|best| problems.len() < best.len())
            {
                closest = Some(problems);
            }
        }
        let mut found = vec![at.problem("contains", "no item is like the schema")];
        found.extend(closest.unwrap_or_default());
        Ok(found)
    }

    fn fields(
        &mut self,
        part: &Part,
        fields: &Fields,
        at: &Place<'_>,
        depth: usize,
    ) -> Result<Vec<Problem>, TooMuch> {
        let kinds = ["array_min_properties", "array_max_properties"];
        let mut found: Vec<Problem> = part
            .property_count
            .problems(fields.len(), at, kinds, "properties")
            .collect();
        let missing = part.required.iter().filter(|name| !has(fields, name));
        found.extend(missing.map(|name| at.problem("required", &format!("{name} is required"))));
        for (name, value) in fields.iter_sorted() {
            let Value::String(name) = name else {
                continue;
            };
            let inside = at.inside(name.to_string());
            let mut known = false;
            if let Some(schema) = part.properties.get(&**name) {
                known = true;
                found.extend(self.part(*schema, value, &inside, depth)?);
            }
            for (_, schema) in part
                .pattern_properties
                .iter()
                .filter(|(regex, _)| regex.is_match(name))
            {
                known = true;
                found.extend(self.part(*schema, value, &inside, depth)?);
            }
            match &part.additional_properties {
                Rest::Nothing if !known => {
                    let why = format!("{name} is not allowed");
                    found.push(at.problem("additional_property_not_allowed", &why));
                }
                Rest::Like(schema) if !known => {
                    found.extend(self.part(*schema, value, &inside, depth)?)
                }
                _ => {}
            }
            if let Some(schema) = part.property_names {
                let problems = self.part(schema, &Value::from(&**name), at, depth)?;
                if !problems.is_empty() {
                    let why = format!("no property may be called {name}");
                    found.push(at.problem("invalid_property_name", &why));
                    found.extend(problems);
                }
            }
        }
        Ok(found)
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_integer() => "integer",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) | Value::Set(_) => "array",
        Value::Object(_) => "object",
        Value::Null | Value::Undefined => "null",
    }
}

fn has(fields: &Fields, name: &str) -> bool {
    fields.get(&Value::from(name)).is_some()
}

fn numbers(part: &Part, value: &Value, at: &Place<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut check =
        |bound: &Option<Value>, holds: fn(&Value, &Value) -> bool, kind, words: &str| {
            if let Some(bound) = bound
                && !holds(value, bound)
            {
                let why = format!("it must be {words} {}", value::number(bound));
                found.push(at.problem(kind, &why));
            }
        };
    check(
        &part.multiple_of,
        is_multiple,
        "multiple_of",
        "a multiple of",
    );
    check(
        &part.maximum,
        |value, bound| value <= bound,
        "number_lte",
        "at most",
    );
    check(
        &part.exclusive_maximum,
        |value, bound| value < bound,
        "number_lt",
        "less than",
    );
    check(
        &part.minimum,
        |value, bound| value >= bound,
        "number_gte",
        "at least",
    );
    check(
        &part.exclusive_minimum,
        |value, bound| value > bound,
        "number_gt",
        "greater than",
    );
    found
}

/// By decimal digits: 0.3 is three times 0.1.
fn is_multiple(value: &Value, of: &Value) -> bool {
    let (value, of) = (value::number(value), value::number(of));
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let most = decimals(&value).max(decimals(&of));
    let scaled = |text: &str| -> Option<i128> {
        let zeros = "0".repeat(most - decimals(text));
        format!("{}{zeros}", text.replace('.', "")).parse().ok()
    };
    match (scaled(&value), scaled(&of)) {
        (Some(value), Some(of)) if of != 0 => value % of == 0,
        _ => {
            let (value, of): (Result<f64, _>, Result<f64, _>) = (value.parse(), of.parse());
            matches!((value, of), (Ok(value), Ok(of)) if (value / of).fract() == 0.0)
        }
    }
}

fn texts(part: &Part, text: &str, at: &Place<'_>) -> Vec<Problem> {
    let count = text.chars().count();
    let mut found: Vec<Problem> = part
        .length
        .problems(count, at, ["string_gte", "string_lte"], "letters")
        .collect();
    if let Some(pattern) = &part.pattern
        && !pattern.is_match(text)
    {
        found.push(at.problem("pattern", &format!("it does not match {pattern}")));
    }
    found
}

fn values(part: &Part, value: &Value, at: &Place<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(constant) = &part.constant
        && value != constant
    {
        found.push(at.problem("const", &format!("it must be {}", value::display(constant))));
    }
    if !part.one_of_values.is_empty() && !part.one_of_values.contains(value) {
        let allowed: Vec<String> = part.one_of_values.iter().map(value::display).collect();
        found.push(at.problem("enum", &format!("it must be one of {}", allowed.join(", "))));
    }
    if let (Some(format), Value::String(text)) = (&part.format, value)
        && !format::fits(format, text)
    {
        found.push(at.problem("format", &format!("it is no {format}")));
    }
    found
}

fn repeated(items: &Array, at: &Place<'_>) -> Vec<Problem> {
    let mut seen = std::collections::BTreeSet::new();
    let again = items.iter().filter(|item| {
        deadline::tick();
        !seen.insert(*item)
    });
    again
        .map(|_| at.problem("unique", "the items must differ"))
        .collect()
}
