//! `assent up` with real evaluators: the life of a policy, seen from outside.

#![allow(clippy::unwrap_used)]

mod cli;
mod directory;
mod envoy;
mod images;
mod life;
mod objects;
mod removal;
mod rollback;
mod secure;
mod state;
mod tools;
