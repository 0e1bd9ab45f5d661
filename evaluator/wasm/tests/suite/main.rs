//! Real guests in real sandboxes: what policies can and can't do.
#![allow(clippy::unwrap_used)]

mod artefact;
mod builtins;
mod corpus;
mod fuzz;
mod guests;
mod host;
mod limits;
mod policies;
mod rego;
mod wapc;
mod wasi;
