//! A strict reader of YAML 1.2 (core schema) into JSON values.
//!
//! `yes`, `no`, `on` and `off` are strings, octal numbers are `0o17`, merge keys, duplicate keys
//! and unknown tags are refused, and what anchors expand to is bounded. One bad document does
//! not hide the others of its file.

mod build;
mod emit;
mod scalar;

pub use self::emit::emit;
use granit_parser::{Event, Parser, ScanError};
use serde_json::Value;

/// Size of one document: what an API server would take as one object.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Values in one document, after anchors are expanded. A megabyte of text holds no more than
/// half of that in single-character items; only a bomb needs more.
pub const MAX_NODES: usize = 500_000;

/// Nesting of one document, as for JSON.
pub const MAX_DEPTH: usize = crate::json::MAX_DEPTH;

/// One document of a text. Empty ones are left out, but counted.
#[derive(Debug)]
pub struct Document {
    /// Its number in the text, from 1.
    pub number: usize,
    /// The line where it starts, from 1.
    pub line: usize,
    /// What it says.
    pub value: Result<Value, Error>,
}

/// Where and why a document was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct Error {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
    /// What was wrong.
    pub reason: Reason,
}

/// What was wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Not YAML.
    #[error("{0}")]
    Syntax(String),
    /// Two equal keys in one mapping.
    #[error("duplicate key {0:?}; remove one of the two")]
    DuplicateKey(String),
    /// A key that is no string.
    #[error("a key must be a plain or quoted scalar")]
    ComplexKey,
    /// `<<`, which YAML 1.2 does not have.
    #[error("merge keys (<<) are not part of YAML 1.2; write the fields out")]
    MergeKey,
    /// A tag outside the core schema, or one that its value does not fit.
    #[error("{value:?} does not fit the tag {tag}")]
    Tag {
        /// The tag as it was written.
        tag: String,
        /// What it was put on.
        value: String,
    },
    /// `.inf`, `.nan` or a number beyond the floats.
    #[error("{0} is not a number that JSON can hold; quote it if it is text")]
    NotFinite(String),
    /// An alias inside of the node it stands for.
    #[error("an alias must not be used inside of its own anchor")]
    Recursive,
    /// More than [`MAX_NODES`].
    #[error("anchors expand to more than {MAX_NODES} values")]
    TooManyNodes,
    /// Deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Larger than [`MAX_DOCUMENT_BYTES`].
    #[error("a document must not be larger than {MAX_DOCUMENT_BYTES} bytes")]
    TooLarge,
    /// A directive that asks for another YAML.
    #[error("%YAML {0} is not supported; documents are read as YAML 1.2")]
    Version(String),
}

/// Reads every document of `text`.
pub fn load(text: &str) -> Vec<Document> {
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let mut load = Load {
        parser: Parser::new_from_str_with_options(text, options),
        number: 0,
        line: 1,
        documents: Vec::new(),
    };
    load.run();
    load.documents
}

struct Load<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    number: usize,
    line: usize,
    documents: Vec<Document>,
}

// === impl Load ===

impl Load<'_> {
    fn run(&mut self) {
        loop {
            match self.document() {
                Ok(Some(Value::Null)) => {}
                Ok(Some(value)) => self.push(Ok(value)),
                Ok(None) => return,
                Err(error) => {
                    self.push(Err(error));
                    // What follows the next `---` is read again as if nothing had been.
                    if !matches!(self.parser.proceed_next_document(), Ok(true)) {
                        return;
                    }
                }
            }
        }
    }

    fn push(&mut self, value: Result<Value, Error>) {
        self.documents.push(Document {
            number: self.number,
            line: self.line,
            value,
        });
    }

    /// Reads up to the end of the next document; `None` at the end of the text.
    fn document(&mut self) -> Result<Option<Value>, Error> {
        let mut build = build::Build::default();
        let mut start = None;
        while let Some(next) = self.parser.next_event() {
            if start.is_none() && next.is_err() {
                self.number += 1;
            }
            let (event, span) = next.map_err(syntax)?;
            let fail = |reason| Error::at(&span.start, reason);
            match event {
                Event::DocumentStart(_, version) => {
                    self.number += 1;
                    self.line = span.start.line();
                    start = span.start.byte_offset();
                    if let Some(v) = version.filter(|v| (v.major, v.minor) != (1, 2)) {
                        return Err(fail(Reason::Version(format!("{}.{}", v.major, v.minor))));
                    }
                }
                Event::DocumentEnd => return Ok(Some(build.finish())),
                Event::StreamEnd => return Ok(None),
                event => build.event(event).map_err(fail)?,
            }
            let size = span
                .end
                .byte_offset()
                .zip(start)
                .map(|(end, start)| end.saturating_sub(start));
            if size.is_some_and(|size| size > MAX_DOCUMENT_BYTES) {
                return Err(fail(Reason::TooLarge));
            }
        }
        Ok(None)
    }
}

// === impl Error ===

impl Error {
    fn at(marker: &granit_parser::Marker, reason: Reason) -> Self {
        Self {
            line: marker.line(),
            column: marker.col() + 1,
            reason,
        }
    }
}

fn syntax(error: ScanError) -> Error {
    Error::at(error.marker(), Reason::Syntax(error.info()))
}

#[cfg(test)]
mod tests;
