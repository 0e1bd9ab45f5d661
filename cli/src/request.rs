//! Admission requests: read from reviews, or made of plain objects.

mod args;
mod incoming;
pub(crate) mod kinds;
mod make;

pub(crate) use args::RequestArgs;
pub(crate) use incoming::Incoming;
pub(crate) use make::{Operation, RequestOptions, identity, make};
