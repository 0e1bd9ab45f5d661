//! The rules of the discovery protocol, one test or more each, against real processes over
//! real sockets. Names begin with the rule's number.

#![allow(clippy::unwrap_used)]

mod answers;
mod bounds;
mod calls;
mod client_status;
mod connections;
mod context;
mod evaluator;
mod evaluator_restart;
mod folding;
mod large;
mod opening;
mod rejections;
mod resuming;
mod updates;
