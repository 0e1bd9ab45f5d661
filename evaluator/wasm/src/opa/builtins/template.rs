//! Templates of Go: texts with values, conditions and loops in them.
//!
//! Written here because no crate fits: the one for this syntax (`gtmpl`) is no longer maintained, has no bound on loops
//! and output, and formats values differently from OPA. Engines that are maintained have another syntax.

use regorus::Value;

use super::{Bounded, TooMuch, string};

mod parse;
mod render;

/// A part of a template.
#[derive(Debug)]
enum Node {
    Text(String),
    /// A value, and the variable that it is put into instead of being shown.
    Value(Pipe),
    If(Pipe, Vec<Node>, Vec<Node>),
    With(Pipe, Vec<Node>, Vec<Node>),
    Range(Pipe, Vec<Node>, Vec<Node>),
}

/// Commands, each getting the result of the one before as its last argument.
#[derive(Debug)]
struct Pipe {
    variables: Vec<String>,
    /// Whether the variables are new.
    declares: bool,
    commands: Vec<Vec<Operand>>,
}

#[derive(Debug)]
enum Operand {
    Dot,
    Nil,
    Constant(Value),
    Variable(String),
    Function(String),
    Field(Box<Operand>, String),
    Pipe(Box<Pipe>),
}

/// Why a template gives no text.
#[derive(Debug)]
enum Error {
    /// It is wrong, here as in OPA.
    Wrong,
    /// It has a word that is not understood here, or asks for more than a call may do.
    TooMuch,
}

pub(super) fn find(name: &str) -> Option<Bounded> {
    (name == "strings.render_template").then_some(render_template as Bounded)
}

fn render_template(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let (Some(text), Some(data @ Value::Object(_))) = (string(args, 0), args.get(1)) else {
        return Ok(None);
    };
    let rendered = parse::nodes(text).and_then(|nodes| render::render(&nodes, data));
    match rendered {
        // OPA's word for what Go calls "no value".
        Ok(text) => Ok(Some(Value::from(text.replace("<no value>", "<undefined>")))),
        Err(Error::Wrong) => Ok(None),
        Err(Error::TooMuch) => Err(TooMuch),
    }
}
