//! The real binary, as scripts use it.

#![allow(clippy::unwrap_used)]

mod cases;
mod inspect;
mod run;
mod server;
mod support;
