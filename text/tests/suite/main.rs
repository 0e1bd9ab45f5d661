//! Policies written as text. One program: the interpreters are compiled once for all tests.
#![allow(clippy::unwrap_used)]

mod build;
mod compliance;
mod malicious;
mod oracle;
mod support;
mod twins;
