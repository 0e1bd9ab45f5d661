//! Which replicas a request of client status asks for.

use assent_proto::envoy::r#type::matcher::v3::{
    NodeMatcher, StringMatcher, string_matcher::MatchPattern,
};
use tonic::Status;

#[cfg(test)]
mod tests;

/// Matches the names of replicas.
#[derive(Debug)]
pub(super) struct Matcher {
    /// Any of these is enough. Without one, every replica matches.
    patterns: Vec<Pattern>,
}

/// Matches a name.
#[derive(Debug)]
struct Pattern {
    form: Form,
    /// In lower case if case is ignored.
    text: String,
    ignore_case: bool,
}

/// Where the text must be in the name.
#[derive(Clone, Copy, Debug)]
enum Form {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

// === impl Matcher ===

impl Matcher {
    pub(super) fn matches(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

impl TryFrom<Vec<NodeMatcher>> for Matcher {
    type Error = Status;

    fn try_from(matchers: Vec<NodeMatcher>) -> Result<Self, Status> {
        let patterns = matchers.into_iter().map(|matcher| {
            if !matcher.node_metadatas.is_empty() {
                return Err(refused("node_metadatas", "replicas have no metadata"));
            }
            // A matcher that constrains nothing would match everything by accident.
            let id = matcher
                .node_id
                .ok_or_else(|| refused("node_id", "it is missing"))?;
            Pattern::try_from(id)
        });
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
        })
    }
}

// === impl Pattern ===

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let lower;
        let name = match self.ignore_case {
            true => {
                lower = name.to_lowercase();
                &lower
            }
            false => name,
        };
        match self.form {
            Form::Exact => name == self.text,
            Form::Prefix => name.starts_with(&self.text),
            Form::Suffix => name.ends_with(&self.text),
            Form::Contains => name.contains(&self.text),
        }
    }
}

impl TryFrom<StringMatcher> for Pattern {
    type Error = Status;

    fn try_from(matcher: StringMatcher) -> Result<Self, Status> {
        let (form, text) = match matcher.match_pattern {
            Some(MatchPattern::Exact(text)) => (Form::Exact, text),
            Some(MatchPattern::Prefix(text)) => (Form::Prefix, text),
            Some(MatchPattern::Suffix(text)) => (Form::Suffix, text),
            Some(MatchPattern::Contains(text)) => (Form::Contains, text),
            Some(MatchPattern::SafeRegex(_) | MatchPattern::Custom(_)) | None => {
                return Err(refused(
                    "node_id",
                    "use `exact`, `prefix`, `suffix` or `contains`",
                ));
            }
        };
        if text.is_empty() {
            return Err(refused("node_id", "the text is empty"));
        }
        let ignore_case = matcher.ignore_case;
        let text = match ignore_case {
            true => text.to_lowercase(),
            false => text,
        };
        Ok(Self {
            form,
            text,
            ignore_case,
        })
    }
}

fn refused(field: &str, why: &str) -> Status {
    Status::invalid_argument(format!("`node_matchers.{field}` cannot be used: {why}"))
}
