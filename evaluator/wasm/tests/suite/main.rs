//! Real guests in real sandboxes: what policies may do, and what they may not.
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
