//! The document: what a ValidatingAdmissionPolicy has under `spec`, as far as it is about one request.

use std::{collections::BTreeSet, sync::Arc};

use cel::{Env, IdedExpr};
use interpreter_guest::Problem;
use serde::Deserialize;

use crate::{
    Cel, Validation,
    check::{self, Used},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Spec {
    #[serde(default)]
    variables: Vec<Variable>,
    #[serde(default)]
    match_conditions: Vec<Variable>,
    #[serde(default)]
    validations: Vec<Written>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    #[serde(default)]
    audit_annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    expression: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    expression: String,
    message: Option<String>,
    message_expression: Option<String>,
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Annotation {
    key: String,
    value_expression: String,
}

/// Compiles expressions one after the other; later ones may use the variables of earlier ones.
struct Compiler {
    env: Env,
    variables: BTreeSet<String>,
    used: Used,
}

impl Spec {
    pub(crate) fn compile(self, file: &str, env: Env) -> Result<Cel, Problem> {
        if self.validations.is_empty()
            && self.annotations.is_empty()
            && self.audit_annotations.is_empty()
        {
            return Err(format!("{file}: there are no validations").into());
        }
        let mut compiler = Compiler {
            env,
            variables: BTreeSet::new(),
            used: Used::default(),
        };
        // Conditions can't use variables: they decide whether anything else is looked at.
        let conditions = compiler.named("matchConditions", self.match_conditions, false)?;
        let variables = compiler.named("variables", self.variables, true)?;
        let mut validations = Vec::new();
        for (index, written) in self.validations.into_iter().enumerate() {
            validations.push(compiler.validation(index, written)?);
        }
        let annotations = compiler.annotations("annotations", self.annotations)?;
        let audit_annotations = compiler.annotations("auditAnnotations", self.audit_annotations)?;
        Ok(Cel {
            env: Arc::new(compiler.env),
            variables,
            conditions,
            validations,
            annotations,
            audit_annotations,
            used: compiler.used,
        })
    }
}

impl Compiler {
    fn named(
        &mut self,
        field: &str,
        all: Vec<Variable>,
        declare: bool,
    ) -> Result<Vec<(String, IdedExpr)>, Problem> {
        let mut compiled = Vec::new();
        for (index, Variable { name, expression }) in all.into_iter().enumerate() {
            let expression = self.compile(format!("{field}[{index}].expression"), &expression)?;
            if declare && !self.variables.insert(name.clone()) {
                return Err(format!("{field}[{index}].name: {name} is declared twice").into());
            }
            compiled.push((name, expression));
        }
        Ok(compiled)
    }

    fn annotations(
        &mut self,
        field: &str,
        all: Vec<Annotation>,
    ) -> Result<Vec<(String, IdedExpr)>, Problem> {
        let mut compiled = Vec::new();
        for (index, annotation) in all.into_iter().enumerate() {
            let path = format!("{field}[{index}].valueExpression");
            let value = self.compile(path, &annotation.value_expression)?;
            compiled.push((annotation.key, value));
        }
        Ok(compiled)
    }

    fn validation(&mut self, index: usize, written: Written) -> Result<Validation, Problem> {
        let path = |field: &str| format!("validations[{index}].{field}");
        let expression = self.compile(path("expression"), &written.expression)?;
        let message_expression = match &written.message_expression {
            Some(text) => Some(self.compile(path("messageExpression"), text)?),
            None => None,
        };
        let code = match written.reason.as_deref() {
            None | Some("Invalid") => 422,
            Some("Unauthorized") => 401,
            Some("Forbidden") => 403,
            Some("RequestEntityTooLarge") => 413,
            Some(other) => {
                let path = path("reason");
                return Err(format!("{path}: {other:?} is not one of Unauthorized, Forbidden, Invalid, RequestEntityTooLarge").into());
            }
        };
        Ok(Validation {
            expression,
            text: written.expression,
            message: written.message,
            message_expression,
            code,
        })
    }

    fn compile(&mut self, path: String, text: &str) -> Result<IdedExpr, Problem> {
        let problem = |(line, column), message| Problem::Field {
            path: path.clone(),
            text: text.to_owned(),
            line,
            column,
            message,
        };
        let program = self.env.compile(text).map_err(|errors| {
            let first = errors.errors.into_iter().next();
            first.map_or_else(
                || problem((1, 1), "it is not CEL".to_owned()),
                |error| {
                    let at = |number: isize| usize::try_from(number).unwrap_or(1).max(1);
                    problem((at(error.pos.0), at(error.pos.1)), error.msg)
                },
            )
        })?;
        let mut expression = program.expression().clone();
        let checked = check::expression(&mut expression, &self.variables, &mut self.used);
        checked.map_err(|(id, message)| {
            let offset = program
                .source_info()
                .offset_for(id)
                .map_or(0, |(start, _)| start);
            problem(position(text, offset as usize), message)
        })?;
        Ok(expression)
    }
}

/// Line and column of a position in characters.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before: Vec<char> = text.chars().take(offset).collect();
    let line = before.iter().filter(|char| **char == '\n').count();
    let column = before
        .iter()
        .rev()
        .take_while(|char| **char != '\n')
        .count();
    (line + 1, column + 1)
}
