//! Reads YAML into JSON values as `kubectl` does, so that a manifest means the same in a cluster
//! and in a directory.
//!
//! `kubectl` resolves scalars by the rules of YAML 1.1: `yes`, `no`, `on`, `off`, `y` and `n` are
//! booleans, `017` and `0b11` are numbers, `<<` merges mappings, and a key that is a boolean or a
//! number becomes text. The table in `tests/kubectl.tsv` holds what `kubectl` makes of each case.
//!
//! Two things differ on purpose. Duplicate keys are errors, because nothing that a user wrote is
//! dropped, and what aliases expand to is bounded. Errors have a line and a column, and a
//! malformed document does not hide the others of its file.

mod build;
mod emit;
mod scalar;

pub use self::emit::emit;
use granit_parser::{Event, Parser, ScanError};
use serde_json::Value;

/// The largest document: an API server accepts no larger object.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Values in one document, after aliases are expanded. A document of [`MAX_DOCUMENT_BYTES`]
/// without aliases can't hold more.
pub const MAX_NODES: usize = 500_000;

/// Nesting of one document: evaluators accept no more in a request.
pub const MAX_DEPTH: usize = 128;

/// One document of a text. Empty documents are left out, but counted.
#[derive(Debug)]
pub struct Document {
    /// Its number in the text, from 1.
    pub number: usize,
    /// The line where it starts, from 1.
    pub line: usize,
    /// Its content.
    pub value: Result<Value, Error>,
}

/// Where and why a document is not valid.
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

/// Why a document is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Not YAML.
    #[error("{0}")]
    Syntax(String),
    /// Two equal keys in one mapping.
    #[error("duplicate key {0:?}; remove one of the two")]
    DuplicateKey(String),
    /// A key that is null, a collection, or a number beyond 64 bits.
    #[error("a key must be text, a number or a boolean")]
    ComplexKey,
    /// A value of `<<` that can't be merged.
    #[error("<< requires a mapping or a list of mappings")]
    Merge,
    /// A tag that does not match its value.
    #[error("{value:?} does not match the tag {tag}")]
    Tag {
        /// The tag as it is written.
        tag: String,
        /// The value.
        value: String,
    },
    /// `.inf` or `.nan`.
    #[error("{0} can't be represented in JSON; quote it if it is text")]
    NotFinite(String),
    /// An alias inside of the node that it refers to.
    #[error("an alias must not be used inside of its own anchor")]
    Recursive,
    /// More than [`MAX_NODES`].
    #[error("aliases expand to more than {MAX_NODES} values")]
    TooManyNodes,
    /// Deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Larger than [`MAX_DOCUMENT_BYTES`].
    #[error("a document must not be larger than {MAX_DOCUMENT_BYTES} bytes")]
    TooLarge,
    /// A directive for another version.
    #[error("%YAML {0} is not supported; use 1.1 or 1.2, or remove the directive")]
    Version(String),
}

// === impl Reason ===

impl Reason {
    /// Whether a bound was exceeded: the document may be valid YAML.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Reason::TooManyNodes | Reason::TooDeep | Reason::TooLarge
        )
    }
}

/// Reads every document of `text`.
pub fn load(text: &str) -> Vec<Document> {
    let mut load = Load::new(text, Duplicates::Refused);
    load.run();
    load.documents
}

/// Reads the first document of `text` as Rego's `yaml.unmarshal` does, which uses the library of
/// `kubectl`: other documents are ignored, an empty text is null, and of equal keys the last one
/// counts.
pub fn load_first(text: &str) -> Result<Value, Error> {
    let mut load = Load::new(text, Duplicates::LastCounts);
    load.document().map(Option::unwrap_or_default)
}

struct Load<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    number: usize,
    line: usize,
    documents: Vec<Document>,
    duplicates: Duplicates,
}

/// What equal keys of one mapping mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Duplicates {
    #[default]
    Refused,
    LastCounts,
}

// === impl Load ===

impl<'a> Load<'a> {
    fn new(text: &'a str, duplicates: Duplicates) -> Self {
        let mut options = granit_parser::Options::default();
        options.set_emit_comments(false);
        Self {
            parser: Parser::new_from_str_with_options(text, options),
            number: 0,
            line: 1,
            documents: Vec::new(),
            duplicates,
        }
    }

    fn run(&mut self) {
        loop {
            match self.document() {
                Ok(Some(Value::Null)) => {}
                Ok(Some(value)) => self.push(Ok(value)),
                Ok(None) => return,
                Err(error) => {
                    self.push(Err(error));
                    // Reading resumes after the next `---`.
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
        let mut build = build::Build::new(self.duplicates);
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
                    if let Some(v) = version.filter(|v| !matches!((v.major, v.minor), (1, 1 | 2))) {
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
