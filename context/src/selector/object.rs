//! The object form of label selectors: `matchLabels` and `matchExpressions`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    Error,
    label::{Operator, Requirement},
};

pub(super) fn read(object: &Value) -> Result<Vec<Requirement>, Error> {
    let fields = match object {
        Value::Object(fields) => fields,
        Value::Null => return Ok(Vec::new()),
        _ => return Err(Error::Form("must be an object")),
    };
    let mut requirements = Vec::new();
    for (field, value) in fields {
        match (field.as_str(), value) {
            (_, Value::Null) => {}
            ("matchLabels", Value::Object(labels)) => match_labels(labels, &mut requirements)?,
            ("matchExpressions", Value::Array(list)) => {
                for one in list {
                    requirements.push(expression(one)?);
                }
            }
            ("matchLabels", _) => return Err(Error::Form("needs an object in matchLabels")),
            ("matchExpressions", _) => {
                return Err(Error::Form("needs a list in matchExpressions"));
            }
            _ => {
                return Err(Error::Form(
                    "may have matchLabels and matchExpressions only",
                ));
            }
        }
    }
    Ok(requirements)
}

fn match_labels(labels: &Map<String, Value>, out: &mut Vec<Requirement>) -> Result<(), Error> {
    for (key, value) in labels {
        let value = value.as_str();
        let value = value.ok_or(Error::Form("needs text as values of matchLabels"))?;
        out.push(Requirement {
            key: key.clone(),
            operator: Operator::In(BTreeSet::from([value.to_owned()])),
        });
    }
    Ok(())
}

fn expression(expression: &Value) -> Result<Requirement, Error> {
    const KEY: Error = Error::Form("needs a key in every entry of matchExpressions");
    let key = expression["key"].as_str().ok_or(KEY)?.to_owned();
    let values = values(&expression["values"])?;
    let operator = expression["operator"].as_str().unwrap_or_default();
    let operator = match operator {
        "In" => Operator::In(values),
        "NotIn" => Operator::NotIn(values),
        "Exists" | "DoesNotExist" if !values.is_empty() => return Err(Error::Values(key)),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => return Err(Error::Operator(other.to_owned())),
    };
    Ok(Requirement { key, operator })
}

fn values(values: &Value) -> Result<BTreeSet<String>, Error> {
    const TEXT: Error = Error::Form("needs a list of texts as values of matchExpressions");
    let list = match values {
        Value::Null => return Ok(BTreeSet::new()),
        Value::Array(list) => list.iter(),
        _ => return Err(TEXT),
    };
    list.map(|value| Ok(value.as_str().ok_or(TEXT)?.to_owned()))
        .collect()
}
