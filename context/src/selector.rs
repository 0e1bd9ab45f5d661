//! Selectors of labels and fields, with the grammar of Kubernetes.

mod field;
mod label;
mod lexer;
mod object;

pub use self::{field::FieldSelector, label::LabelSelector};
use crate::path;

/// Why a selector cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else was expected.
    #[error("the selector {selector:?} has {found} but needs {expected}")]
    Unexpected {
        /// The whole selector.
        selector: String,
        /// What is there.
        found: String,
        /// What may be there.
        expected: &'static str,
    },
    /// Not a label's key.
    #[error("{0:?} is not the key of a label")]
    Key(String),
    /// Not a label's value.
    #[error("{0:?} is not the value of a label")]
    Value(String),
    /// A number was needed.
    #[error("{0:?} is compared with < or > and is not an integer")]
    Integer(String),
    /// `in` and `notin` without values.
    #[error("{0}: in and notin need at least one value")]
    NoValues(String),
    /// `Exists` and `DoesNotExist` with values.
    #[error("{0}: Exists and DoesNotExist take no values")]
    Values(String),
    /// An operator that does not exist.
    #[error("{0:?} is not an operator; use In, NotIn, Exists or DoesNotExist")]
    Operator(String),
    /// Not the object form of a selector.
    #[error("the selector {0}")]
    Form(&'static str),
    /// A field's path cannot be read.
    #[error(transparent)]
    Path(#[from] path::Error),
    /// Longer than any selector should be.
    #[error("a selector is longer than {MAX_BYTES} bytes")]
    TooLong,
}

/// The longest selector: guests choose them.
const MAX_BYTES: usize = 16 << 10;
