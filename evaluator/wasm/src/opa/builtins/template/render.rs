//! From a template to text.

use regorus::Value;

use super::{Error, Node, Operand, Pipe};
use crate::{
    limits::OUTPUT_BYTES,
    opa::{deadline, value},
};

/// What is known while rendering.
struct Renderer<'v> {
    out: String,
    /// Variables with their values, the newest last.
    variables: Vec<(String, Item<'v>)>,
    steps: usize,
}

/// A value. Numbers of the data are texts to Go, numbers of the template are not.
#[derive(Clone)]
enum Item<'v> {
    None,
    Data(&'v Value),
    Own(Value),
}

/// Nodes that are rendered in one call.
const MAX_STEPS: usize = 200_000;

pub(super) fn render(nodes: &[Node], data: &Value) -> Result<String, Error> {
    let root = Item::Data(data);
    let mut renderer = Renderer {
        out: String::new(),
        variables: vec![("$".to_owned(), root.clone())],
        steps: 0,
    };
    renderer.nodes(nodes, &root)?;
    Ok(renderer.out)
}

// === impl Renderer ===

impl<'v> Renderer<'v> {
    fn nodes(&mut self, nodes: &[Node], dot: &Item<'v>) -> Result<(), Error> {
        for node in nodes {
            deadline::tick();
            self.steps += 1;
            if self.steps > MAX_STEPS || self.out.len() > OUTPUT_BYTES {
                return Err(Error::TooMuch);
            }
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Value(pipe) => {
                    let item = self.pipe(pipe, dot)?;
                    if pipe.variables.is_empty() {
                        self.out.push_str(&item.text());
                    }
                }
                Node::If(pipe, body, otherwise) | Node::With(pipe, body, otherwise) => {
                    let known = self.variables.len();
                    let item = self.pipe(pipe, dot)?;
                    let inside = if matches!(node, Node::With(..)) {
                        &item
                    } else {
                        dot
                    };
                    if item.is_true() {
                        self.nodes(body, inside)?;
                    } else {
                        self.nodes(otherwise, dot)?;
                    }
                    self.variables.truncate(known);
                }
                Node::Range(pipe, body, otherwise) => self.range(pipe, body, otherwise, dot)?,
            }
        }
        Ok(())
    }

    fn range(
        &mut self,
        pipe: &Pipe,
        body: &[Node],
        otherwise: &[Node],
        dot: &Item<'v>,
    ) -> Result<(), Error> {
        let known = self.variables.len();
        let items = self.commands(&pipe.commands, dot)?.items()?;
        if items.is_empty() {
            return self.nodes(otherwise, dot);
        }
        if pipe.variables.len() > 2 || !pipe.declares {
            return Err(Error::TooMuch);
        }
        for (key, item) in items {
            match pipe.variables.as_slice() {
                [] => {}
                [one] => self.variables.push((one.clone(), item.clone())),
                [index, one, ..] => {
                    self.variables.push((index.clone(), key));
                    self.variables.push((one.clone(), item.clone()));
                }
            }
            self.nodes(body, &item)?;
            self.variables.truncate(known);
        }
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Item<'v>) -> Result<Item<'v>, Error> {
        let item = self.commands(&pipe.commands, dot)?;
        let [name] = pipe.variables.as_slice() else {
            return if pipe.variables.is_empty() {
                Ok(item)
            } else {
                Err(Error::Wrong)
            };
        };
        if pipe.declares {
            self.variables.push((name.clone(), item.clone()));
        } else {
            let known = self
                .variables
                .iter_mut()
                .rev()
                .find(|(known, _)| known == name);
            known.ok_or(Error::Wrong)?.1 = item.clone();
        }
        Ok(item)
    }

    fn commands(&mut self, commands: &[Vec<Operand>], dot: &Item<'v>) -> Result<Item<'v>, Error> {
        let mut last = None;
        for command in commands {
            last = Some(self.command(command, last, dot)?);
        }
        last.ok_or(Error::Wrong)
    }

    fn command(
        &mut self,
        command: &[Operand],
        last: Option<Item<'v>>,
        dot: &Item<'v>,
    ) -> Result<Item<'v>, Error> {
        let (first, rest) = command.split_first().ok_or(Error::Wrong)?;
        let Operand::Function(name) = first else {
            // Only functions take arguments.
            return if rest.is_empty() && last.is_none() {
                self.operand(first, dot)
            } else {
                Err(Error::Wrong)
            };
        };
        let mut arguments = Vec::new();
        for operand in rest {
            let item = self.operand(operand, dot)?;
            // These two look no further than they must.
            let decided = match name.as_str() {
                "and" => !item.is_true(),
                "or" => item.is_true(),
                _ => false,
            };
            if decided {
                return Ok(item);
            }
            arguments.push(item);
        }
        arguments.extend(last);
        call(name, &arguments)
    }

    fn operand(&mut self, operand: &Operand, dot: &Item<'v>) -> Result<Item<'v>, Error> {
        Ok(match operand {
            Operand::Dot => dot.clone(),
            Operand::Nil => return Err(Error::Wrong),
            Operand::Constant(value) => Item::Own(value.clone()),
            Operand::Variable(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                known.ok_or(Error::Wrong)?.1.clone()
            }
            Operand::Function(name) => call(name, &[])?,
            Operand::Pipe(pipe) => self.commands(&pipe.commands, dot)?,
            Operand::Field(of, name) => self.operand(of, dot)?.field(name)?,
        })
    }
}

// === impl Item ===

impl<'v> Item<'v> {
    fn value(&self) -> &Value {
        match self {
            Self::None => &Value::Null,
            Self::Data(value) => value,
            Self::Own(value) => value,
        }
    }

    /// What Go calls empty is false; a number of the data is a text that is not empty.
    fn is_true(&self) -> bool {
        match (self, self.value()) {
            (_, Value::Null | Value::Undefined) => false,
            (_, Value::Bool(is)) => *is,
            (Self::Own(_), number @ Value::Number(_)) => *number != Value::from(0_i64),
            (_, Value::Number(_)) => true,
            (_, Value::String(text)) => !text.is_empty(),
            (_, Value::Array(items)) => !items.is_empty(),
            (_, Value::Set(items)) => !items.is_empty(),
            (_, Value::Object(fields)) => !fields.is_empty(),
        }
    }

    fn field(&self, name: &str) -> Result<Self, Error> {
        match self {
            Self::Data(Value::Object(fields)) => {
                let field = fields.get(&Value::from(name));
                Ok(field.map_or(Self::None, Self::Data))
            }
            _ => Err(Error::Wrong),
        }
    }

    /// Keys and values, in order.
    fn items(&self) -> Result<Vec<(Self, Self)>, Error> {
        let numbered =
            |(index, item): (usize, &'v Value)| (Self::Own(Value::from(index)), Self::Data(item));
        match self {
            Self::None | Self::Data(Value::Null) => Ok(Vec::new()),
            Self::Data(Value::Array(items)) => Ok(items.iter().enumerate().map(numbered).collect()),
            Self::Data(Value::Set(items)) => Ok(items.iter().enumerate().map(numbered).collect()),
            Self::Data(Value::Object(fields)) => Ok(fields
                .iter_sorted()
                .map(|(key, item)| (Self::Data(key), Self::Data(item)))
                .collect()),
            Self::Own(Value::Number(_)) => Err(Error::TooMuch),
            _ => Err(Error::Wrong),
        }
    }

    fn text(&self) -> String {
        match self.value() {
            Value::Null | Value::Undefined => "<no value>".to_owned(),
            value => shown(value),
        }
    }

    /// What both sides of a comparison must be alike in.
    fn basic(&self) -> Result<(u8, String), Error> {
        match (self, self.value()) {
            (Self::Own(_), number @ Value::Number(_)) => Ok((1, value::number(number))),
            (_, number @ Value::Number(_)) => Ok((2, value::number(number))),
            (_, Value::String(text)) => Ok((2, text.to_string())),
            (_, Value::Bool(is)) => Ok((3, is.to_string())),
            _ => Err(Error::TooMuch),
        }
    }
}

/// The way Go prints values.
fn shown(value: &Value) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(" "));
    match value {
        Value::Null | Value::Undefined => "<nil>".to_owned(),
        Value::Bool(is) => is.to_string(),
        Value::Number(_) => value::number(value),
        Value::String(text) => text.to_string(),
        Value::Array(items) => list(items.iter().map(shown).collect()),
        Value::Set(items) => list(items.iter().map(shown).collect()),
        Value::Object(fields) => {
            let fields = fields
                .iter_sorted()
                .map(|(key, value)| format!("{}:{}", shown(key), shown(value)));
            format!("map[{}]", fields.collect::<Vec<_>>().join(" "))
        }
    }
}

fn call<'v>(name: &str, arguments: &[Item<'v>]) -> Result<Item<'v>, Error> {
    let own = |value: Value| Ok(Item::Own(value));
    match (name, arguments) {
        ("and" | "or", [.., last]) => Ok(last.clone()),
        ("not", [one]) => own(Value::Bool(!one.is_true())),
        ("len", [one]) => own(Value::from(length(one.value())?)),
        ("print", items) => own(Value::from(joined(items))),
        ("println", items) => {
            let texts: Vec<String> = items.iter().map(Item::text).collect();
            own(Value::from(texts.join(" ") + "\n"))
        }
        ("eq", [first, others @ ..]) if !others.is_empty() => {
            let mut same = false;
            for other in others {
                same |= compare(first, other)?.is_eq();
            }
            own(Value::Bool(same))
        }
        ("ne", [a, b]) => own(Value::Bool(compare(a, b)?.is_ne())),
        ("lt", [a, b]) => own(Value::Bool(compare(a, b)?.is_lt())),
        ("le", [a, b]) => own(Value::Bool(compare(a, b)?.is_le())),
        ("gt", [a, b]) => own(Value::Bool(compare(a, b)?.is_gt())),
        ("ge", [a, b]) => own(Value::Bool(compare(a, b)?.is_ge())),
        ("index", [of, keys @ ..]) => index(of, keys),
        ("and" | "or" | "not" | "len" | "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "index", _) => {
            Err(Error::Wrong)
        }
        // The rest of Go's functions.
        ("printf" | "html" | "js" | "urlquery" | "slice" | "call", _) => Err(Error::TooMuch),
        _ => Err(Error::Wrong),
    }
}

/// Between two that are not strings Go puts a space.
fn joined(items: &[Item<'_>]) -> String {
    let mut out = String::new();
    let mut text_before = true;
    for item in items {
        let is_text = matches!(item.value(), Value::String(_));
        if !text_before && !is_text {
            out.push(' ');
        }
        out.push_str(&item.text());
        text_before = is_text;
    }
    out
}

fn length(value: &Value) -> Result<usize, Error> {
    match value {
        Value::String(text) => Ok(text.len()),
        Value::Array(items) => Ok(items.len()),
        Value::Set(items) => Ok(items.len()),
        Value::Object(fields) => Ok(fields.len()),
        number @ Value::Number(_) => Ok(value::number(number).len()),
        _ => Err(Error::Wrong),
    }
}

fn compare(a: &Item<'_>, b: &Item<'_>) -> Result<std::cmp::Ordering, Error> {
    let ((kind, a_text), (other, b_text)) = (a.basic()?, b.basic()?);
    match (kind, other) {
        (1, 1) => Ok(a.value().cmp(b.value())),
        (2, 2) | (3, 3) => Ok(a_text.cmp(&b_text)),
        _ => Err(Error::Wrong),
    }
}

fn index<'v>(of: &Item<'v>, keys: &[Item<'v>]) -> Result<Item<'v>, Error> {
    let mut at = of.clone();
    for key in keys {
        at = match (&at, key) {
            (Item::Data(Value::Array(items)), Item::Own(Value::Number(number))) => {
                let index = number
                    .as_i64()
                    .and_then(|index| usize::try_from(index).ok());
                Item::Data(
                    index
                        .and_then(|index| items.get(index))
                        .ok_or(Error::Wrong)?,
                )
            }
            (Item::Data(Value::Object(_)), key) => match key.value() {
                Value::String(name) => at.field(name)?,
                _ => return Err(Error::Wrong),
            },
            _ => return Err(Error::Wrong),
        };
    }
    Ok(at)
}
