//! Runs the real binary, as scripts do.

#![allow(clippy::unwrap_used)]

mod cases;
mod inspect;
mod modules;
mod new;
mod run;
mod run_files;
mod server;
mod support;
mod test;
mod up;
