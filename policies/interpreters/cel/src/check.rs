//! Finds names that do not exist before anything is evaluated, and undoes the escapes of Kubernetes.

use std::collections::BTreeSet;

use cel::{
    IdedExpr,
    common::ast::{CallExpr, EntryExpr, Expr, LiteralValue},
};
use regex::Regex;

use crate::library::{FUNCTIONS, NAMESPACES, REFUSED};

/// Which variables the text uses: the others are not converted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) object: bool,
    pub(crate) old_object: bool,
    pub(crate) params: bool,
    pub(crate) request: bool,
}

/// Names of types, which are values.
const TYPES: [&str; 12] = [
    "bool",
    "bytes",
    "double",
    "dyn",
    "google",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// Words that a property can be named by only in the escaped form `__word__`.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

type Failure = (u64, String);

struct Checker<'a> {
    variables: &'a BTreeSet<String>,
    used: &'a mut Used,
    /// Variables of comprehensions around the current expression.
    bound: Vec<String>,
}

/// Checks an expression; the error has the number of the node.
pub(crate) fn expression(
    expr: &mut IdedExpr,
    variables: &BTreeSet<String>,
    used: &mut Used,
) -> Result<(), Failure> {
    let mut checker = Checker {
        variables,
        used,
        bound: Vec::new(),
    };
    checker.expr(expr)
}

impl Checker<'_> {
    fn expr(&mut self, node: &mut IdedExpr) -> Result<(), Failure> {
        let id = node.id;
        match &mut node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.ident(id, name),
            Expr::Select(select) => {
                if let Expr::Ident(name) = &select.operand.expr
                    && name == "variables"
                    && !self.bound.contains(name)
                    && !self.variables.contains(&select.field)
                {
                    return Err((
                        id,
                        format!("undeclared reference to 'variables.{}'", select.field),
                    ));
                }
                unescape(&mut select.field);
                self.expr(&mut select.operand)
            }
            Expr::List(list) => self.exprs(&mut list.elements),
            Expr::Map(map) => map
                .entries
                .iter_mut()
                .try_for_each(|entry| self.entry(&mut entry.expr)),
            Expr::Struct(structure) => Err((
                id,
                format!(
                    "undeclared reference to '{}': objects can't be constructed",
                    structure.type_name
                ),
            )),
            Expr::Call(call) => {
                let namespace = match call.target.as_ref().map(|target| &target.expr) {
                    Some(Expr::Ident(name))
                        if NAMESPACES.contains(&name.as_str()) && !self.bound.contains(name) =>
                    {
                        Some(name.clone())
                    }
                    _ => None,
                };
                let name = match &namespace {
                    Some(namespace) => format!("{namespace}.{}", call.func_name),
                    None => call.func_name.clone(),
                };
                known(&name)
                    .and_then(|()| pattern(call))
                    .map_err(|message| (id, message))?;
                if let (None, Some(target)) = (namespace, &mut call.target) {
                    self.expr(target)?;
                }
                // `has(object.field)` and the optional forms have the field's name as text.
                self.exprs(&mut call.args)
            }
            Expr::Comprehension(comprehension) => {
                let comprehension = &mut **comprehension;
                self.expr(&mut comprehension.iter_range)?;
                self.expr(&mut comprehension.accu_init)?;
                let outer = self.bound.len();
                self.bound.push(comprehension.iter_var.clone());
                self.bound.extend(comprehension.iter_var2.clone());
                self.bound.push(comprehension.accu_var.clone());
                self.expr(&mut comprehension.loop_cond)?;
                self.expr(&mut comprehension.loop_step)?;
                self.expr(&mut comprehension.result)?;
                self.bound.truncate(outer);
                Ok(())
            }
        }
    }

    fn exprs(&mut self, exprs: &mut [IdedExpr]) -> Result<(), Failure> {
        exprs.iter_mut().try_for_each(|expr| self.expr(expr))
    }

    fn entry(&mut self, entry: &mut EntryExpr) -> Result<(), Failure> {
        match entry {
            EntryExpr::StructField(field) => self.expr(&mut field.value),
            EntryExpr::MapEntry(entry) => {
                self.expr(&mut entry.key)?;
                self.expr(&mut entry.value)
            }
        }
    }

    fn ident(&mut self, id: u64, name: &str) -> Result<(), Failure> {
        if self.bound.iter().any(|bound| bound == name) {
            return Ok(());
        }
        match name {
            "object" => self.used.object = true,
            "oldObject" => self.used.old_object = true,
            "params" => self.used.params = true,
            "request" => self.used.request = true,
            "variables" if !self.variables.is_empty() => {}
            "namespaceObject" => {
                return Err((
                    id,
                    "namespaceObject is not available in policies written as text".to_owned(),
                ));
            }
            "authorizer" => {
                return Err((
                    id,
                    "authorizer is not available: a policy can't ask the API server".to_owned(),
                ));
            }
            name if TYPES.contains(&name) => {}
            name => return Err((id, format!("undeclared reference to '{name}'"))),
        }
        Ok(())
    }
}

/// A regular expression that is written out is checked before anything is evaluated, as the API server does.
fn pattern(call: &CallExpr) -> Result<(), String> {
    if !matches!(&call.func_name[..], "matches" | "find" | "findAll") {
        return Ok(());
    }
    let index = usize::from(call.target.is_none());
    if let Some(Expr::Literal(LiteralValue::String(text))) =
        call.args.get(index).map(|arg| &arg.expr)
    {
        Regex::new(text.inner()).map_err(|error| format!("invalid matches argument: {error}"))?;
    }
    Ok(())
}

/// Operators have names that nobody can write.
fn known(name: &str) -> Result<(), String> {
    let operator = name.starts_with(['_', '@', '!', '-']);
    if operator || FUNCTIONS.contains(&name) {
        return Ok(());
    }
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, library)) => Err(format!(
            "{name} is not available: policies written as text do not have the {library} library of Kubernetes"
        )),
        None => Err(format!("undeclared reference to '{name}'")),
    }
}

/// `__namespace__` is the property `namespace`, `a__dash__b` is `a-b`.
fn unescape(field: &mut String) {
    if !field.contains("__") {
        return;
    }
    if let Some(word) = field
        .strip_prefix("__")
        .and_then(|rest| rest.strip_suffix("__"))
        && RESERVED.contains(&word)
    {
        *field = word.to_owned();
        return;
    }
    *field = field
        .replace("__dash__", "-")
        .replace("__dot__", ".")
        .replace("__slash__", "/")
        .replace("__underscores__", "__");
}
