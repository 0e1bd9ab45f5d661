//! Builtins whose usual form has no bound, with one.

use regorus::Value;

use super::{Bounded, TooMuch, rego, string};
use crate::{
    limits::{JSON_DEPTH, OUTPUT_BYTES},
    opa::deadline,
};

/// Comparisons in one call.
const MAX_WORK: usize = 1_000_000;

/// Numbers in one range.
const MAX_NUMBERS: usize = 1_000_000;

/// Each `copy` of a patch may double the document.
const MAX_COPIES: usize = 8;

/// Operations of a patch that are applied at once.
const OPERATIONS: usize = 16;

/// Longest glob.
const MAX_GLOB: usize = 8 << 10;

/// States of the automaton for a letter of a glob, wildcards included.
const STATES_PER_LETTER: usize = 8;

/// Bytes that are compared between two looks at the clock.
const LONG_COMPARISON: usize = 1 << 20;

/// Digits and a unit.
const MAX_QUANTITY: usize = 64;

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "strings.any_prefix_match" => |args| any_match(args, |text, part| text.starts_with(part)),
        "strings.any_suffix_match" => |args| any_match(args, |text, part| text.ends_with(part)),
        "object.subset" => |args| match args {
            [whole, part] => Ok(Some(Value::Bool(is_subset(whole, part)))),
            _ => Ok(None),
        },
        "object.union_n" => union_n,
        "json.patch" => json_patch,
        "json.marshal_with_options" => marshal_with_options,
        "glob.match" => glob_match,
        "indexof_n" => indexof_n,
        "units.parse" => |args| quantity(args, "units.parse"),
        "units.parse_bytes" => |args| quantity(args, "units.parse_bytes"),
        "numbers.range_step" => range_step,
        _ => return None,
    })
}

/// The strings of a string, an array or a set.
fn strings(value: &Value) -> Option<Vec<&str>> {
    let text = |value: &'_ Value| matches!(value, Value::String(_));
    match value {
        Value::String(string) => Some(vec![string]),
        Value::Array(items) if items.iter().all(text) => {
            Some(items.iter().filter_map(as_str).collect())
        }
        Value::Set(items) if items.iter().all(text) => {
            Some(items.iter().filter_map(as_str).collect())
        }
        _ => None,
    }
}

fn as_str(value: &Value) -> Option<&str> {
    if let Value::String(string) = value {
        Some(string)
    } else {
        None
    }
}

fn any_match(args: &[Value], matches: fn(&str, &str) -> bool) -> Result<Option<Value>, TooMuch> {
    let [texts, parts] = [0, 1].map(|index| args.get(index).and_then(strings));
    let (Some(texts), Some(parts)) = (texts, parts) else {
        return Ok(None);
    };
    within(texts.len().saturating_mul(parts.len()), MAX_WORK)?;
    let found = texts.iter().any(|text| {
        parts.iter().any(|part| {
            deadline::tick();
            matches(text, part)
        })
    });
    Ok(Some(Value::Bool(found)))
}

/// Whether one value contains another: fields of objects, members of sets, items of arrays in a row.
fn is_subset(whole: &Value, part: &Value) -> bool {
    deadline::tick();
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().all(|(key, inner)| {
            let outer = whole.get(key);
            outer.is_some_and(|outer| is_subset(outer, inner))
        }),
        (Value::Set(whole), Value::Set(part)) => part.iter().all(|item| {
            deadline::check();
            whole.contains(item)
        }),
        (Value::Array(whole), Value::Array(part)) => {
            let (whole, part) = (whole.as_slice(), part.as_slice());
            part.is_empty() || whole.windows(part.len()).any(|window| equal(window, part))
        }
        (Value::Array(whole), part @ Value::Set(_)) => {
            let whole: std::collections::BTreeSet<Value> = whole.iter().cloned().collect();
            is_subset(&Value::from(whole), part)
        }
        (whole, part) => whole == part,
    }
}

/// Items may be large: the clock is looked at for each of those.
fn equal(left: &[Value], right: &[Value]) -> bool {
    left.iter().zip(right).all(|(left, right)| {
        match left {
            Value::Array(_) | Value::Set(_) | Value::Object(_) | Value::String(_) => {
                deadline::check();
            }
            _ => deadline::tick(),
        }
        left == right
    })
}

/// One after the other: the joined object is copied each time.
fn union_n(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let Some(Value::Array(objects)) = args.first() else {
        return Ok(None);
    };
    let mut joined = Value::new_object();
    for object in objects.iter() {
        deadline::check();
        match rego::delegate("object.union", &[joined, object.clone()]) {
            Some(next) => joined = next,
            None => return Ok(None),
        }
    }
    Ok(Some(joined))
}

/// Every line gets the prefix, and the indentation once per level.
fn marshal_with_options(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let (Some(value), Some(Value::Object(options))) = (args.first(), args.get(1)) else {
        return Ok(None);
    };
    let length = |name: &str| {
        let option = options.get(&Value::from(name));
        option.and_then(as_str).map_or(0, str::len)
    };
    let per_line = length("prefix").saturating_add(length("indent").saturating_mul(JSON_DEPTH));
    within(lines(value).saturating_mul(per_line), OUTPUT_BYTES)?;
    Ok(rego::delegate("json.marshal_with_options", args))
}

/// The lines of a value that is printed with indentation, at most.
fn lines(value: &Value) -> usize {
    deadline::tick();
    match value {
        Value::Array(items) => 2 + items.iter().map(lines).sum::<usize>(),
        Value::Set(items) => 2 + items.iter().map(lines).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(_, value)| lines(value)).sum::<usize>(),
        _ => 1,
    }
}

/// A glob becomes a regular expression of some states per letter, which is not interrupted.
fn glob_match(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let length = |index: usize| string(args, index).map_or(0, str::len);
    let (pattern, text) = (length(0), length(2));
    within(pattern, MAX_GLOB)?;
    deadline::afford(
        pattern
            .saturating_mul(text)
            .saturating_mul(STATES_PER_LETTER),
    );
    Ok(rego::delegate("glob.match", args))
}

/// Positions of the second text in the first, counted in characters.
fn indexof_n(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(text), Some(part)] = [0, 1].map(|index| string(args, index)) else {
        return Ok(None);
    };
    let (mut found, mut long) = (Vec::new(), 0);
    for (position, (at, _)) in text.char_indices().enumerate() {
        long += part.len();
        if long > LONG_COMPARISON {
            long = 0;
            deadline::check();
        } else {
            deadline::tick();
        }
        if text[at..].starts_with(part) {
            deadline::reserve_values(1);
            found.push(Value::from(position));
            within(found.len(), MAX_NUMBERS)?;
        }
    }
    Ok(Some(Value::from(found)))
}

fn json_patch(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let Some(Value::Array(operations)) = args.get(1) else {
        return Ok(None);
    };
    let operation = Value::from("op");
    let is_copy = |item: &&Value| match item {
        Value::Object(fields) => fields.get(&operation).and_then(as_str) == Some("copy"),
        _ => false,
    };
    within(operations.iter().filter(is_copy).count(), MAX_COPIES)?;
    within(operations.len(), MAX_WORK)?;
    let Some(mut document) = args.first().cloned() else {
        return Ok(None);
    };
    // Each operation may move all items of a large array: some at a time, with a look at the clock in between.
    let operations: Vec<Value> = operations.iter().cloned().collect();
    for some in operations.chunks(OPERATIONS) {
        deadline::check();
        match rego::delegate("json.patch", &[document, Value::from(some.to_vec())]) {
            Some(Value::Undefined) | None => return Ok(None),
            Some(patched) => document = patched,
        }
    }
    Ok(Some(document))
}

/// Exponents make numbers that take forever to write.
fn quantity(args: &[Value], name: &str) -> Result<Option<Value>, TooMuch> {
    let Some(text) = string(args, 0) else {
        return Ok(None);
    };
    let exponent = text
        .to_ascii_lowercase()
        .split_once('e')
        .map_or(0, |(_, rest)| rest.trim_matches(['+', '-', '"']).len());
    if text.len() <= MAX_QUANTITY && exponent <= 2 {
        return Ok(rego::delegate(name, args));
    }
    // What is no number at all is undefined however long it is.
    let number = text.trim_matches('"').trim_end_matches(char::is_alphabetic);
    match number.parse::<f64>() {
        Ok(_) => Err(TooMuch),
        Err(_) => Ok(None),
    }
}

/// Numbers from one to another, both included, upwards or downwards.
fn range_step(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let int = |index: usize| match args.get(index) {
        Some(Value::Number(number)) => number.as_i128(),
        _ => None,
    };
    let (Some(from), Some(to), Some(step)) = (int(0), int(1), int(2)) else {
        return Ok(None);
    };
    if step <= 0 {
        return Ok(None);
    }
    let count = to.abs_diff(from) / step.unsigned_abs();
    within(usize::try_from(count).unwrap_or(usize::MAX), MAX_NUMBERS)?;
    deadline::reserve_values(usize::try_from(count).unwrap_or(usize::MAX));
    let count = i128::try_from(count).map_err(|_| TooMuch)?;
    let sign = if from <= to { 1 } else { -1 };
    let numbers = (0..=count).map(|index| {
        deadline::tick();
        Value::from(from + sign * step * index)
    });
    Ok(Some(Value::from(numbers.collect::<Vec<_>>())))
}

/// Whether a call stays within its bound.
pub(super) fn within(work: usize, most: usize) -> Result<(), TooMuch> {
    if work <= most { Ok(()) } else { Err(TooMuch) }
}
