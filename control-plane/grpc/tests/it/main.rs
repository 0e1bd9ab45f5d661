//! The services over real sockets, spoken to by the generated clients.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod connections;
mod context;
mod discovery;
mod limits;
mod modules;
mod state;
mod support;
mod trust;
