//! Runs the real binary, as scripts do.

#![allow(clippy::unwrap_used)]

mod cases;
mod inspect;
mod run;
mod server;
mod support;
