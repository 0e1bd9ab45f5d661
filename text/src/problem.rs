//! What an interpreter finds wrong with a text, as its author reads it.

use serde::Deserialize;

use crate::Text;

#[derive(Deserialize)]
pub(crate) enum Problem {
    /// With everything in it.
    #[serde(rename = "message")]
    Message(String),
    /// In one field of a document; the position is within the field.
    #[serde(rename = "field")]
    Field {
        path: String,
        text: String,
        line: usize,
        column: usize,
        message: String,
    },
}

impl Problem {
    pub(crate) fn render(&self, source: &Text) -> String {
        match self {
            Self::Message(message) => message.clone(),
            Self::Field {
                path,
                text,
                line,
                column,
                message,
            } => {
                let wanted = text.lines().nth(line - 1).unwrap_or_default();
                let message = format!("{path}: {message}");
                match locate(&source.text, wanted) {
                    Some((at, shown, start)) => {
                        render(&source.file, at, shown, start + column - 1, &message)
                    }
                    None => render(&source.file, *line, wanted, *column, &message),
                }
            }
        }
    }
}

/// The line of a document that contains a line of one of its fields: its number, itself, and the column.
fn locate<'a>(document: &'a str, wanted: &str) -> Option<(usize, &'a str, usize)> {
    if wanted.trim().is_empty() {
        return None;
    }
    document.lines().enumerate().find_map(|(number, line)| {
        let at = line.find(wanted)?;
        Some((number + 1, line, line[..at].chars().count() + 1))
    })
}

/// As the interpreter of Rego does it.
pub(crate) fn render(file: &str, line: usize, shown: &str, column: usize, message: &str) -> String {
    let width = line.to_string().len() + 1;
    let before = " ".repeat(column.saturating_sub(1));
    format!(
        "--> {file}:{line}:{column}\n{:width$}|\n{line:<width$}| {shown}\n{:width$}| {before}^\nerror: {message}",
        "", ""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Language;

    #[test]
    fn position_in_a_field_becomes_one_in_the_file() {
        let source = Text {
            language: Language::Cel,
            file: "p.cel.yaml".into(),
            text: "validations:\n- expression: object.spec.x ==\n".into(),
            entrypoint: String::new(),
        };
        let problem = Problem::Field {
            path: "validations[0].expression".into(),
            text: "object.spec.x ==".into(),
            line: 1,
            column: 17,
            message: "unexpected end".into(),
        };
        let expected = "--> p.cel.yaml:2:31\n  |\n2 | - expression: object.spec.x ==\n  |                               ^\nerror: validations[0].expression: unexpected end";
        assert_eq!(problem.render(&source), expected);
    }
}
