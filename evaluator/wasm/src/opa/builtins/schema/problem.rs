//! Violations of a schema, and where they are.

use regorus::Value;

/// A violation of the schema.
#[derive(Clone)]
pub(super) struct Problem {
    kind: &'static str,
    field: String,
    description: String,
}

/// Where in the document, from the inside.
pub(super) struct Place<'a> {
    name: String,
    outer: Option<&'a Place<'a>>,
}

const ROOT: &str = "(Root)";

// === impl Problem ===

impl Problem {
    pub(super) fn value(&self) -> Value {
        let fields = [
            ("type", self.kind.to_owned()),
            ("field", self.field.clone()),
            ("desc", self.description.clone()),
            ("error", format!("{}: {}", self.field, self.description)),
        ];
        let fields = fields
            .into_iter()
            .map(|(name, text)| (Value::from(name), Value::from(text)));
        Value::from(fields.collect::<std::collections::BTreeMap<_, _>>())
    }
}

// === impl Place ===

impl Place<'_> {
    pub(super) fn root() -> Self {
        Self {
            name: ROOT.to_owned(),
            outer: None,
        }
    }

    pub(super) fn inside(&self, name: String) -> Place<'_> {
        Place {
            name,
            outer: Some(self),
        }
    }

    pub(super) fn problem(&self, kind: &'static str, description: &str) -> Problem {
        let mut names = vec![self.name.as_str()];
        let mut at = self;
        while let Some(outer) = at.outer {
            names.push(&outer.name);
            at = outer;
        }
        // The root is named only if there is nothing else.
        if names.len() > 1 {
            names.pop();
        }
        names.reverse();
        Problem {
            kind,
            field: names.join("."),
            description: description.to_owned(),
        }
    }
}

// === impl Range ===

impl super::compile::Range {
    pub(super) fn problems(
        &self,
        count: usize,
        at: &Place<'_>,
        [few, many]: [&'static str; 2],
        of: &str,
    ) -> impl Iterator<Item = Problem> {
        let least = self.least.filter(|least| count < *least);
        let most = self.most.filter(|most| count > *most);
        let few =
            least.map(|least| at.problem(few, &format!("it must have at least {least} {of}")));
        let many = most.map(|most| at.problem(many, &format!("it must have at most {most} {of}")));
        few.into_iter().chain(many)
    }
}
