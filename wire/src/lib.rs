//! Revisions, routes, stages and collections on the wire, for both of its ends.
//!
//! The control plane writes what an evaluator reads, and an evaluator keeps its last good set
//! in the same form. One conversion of each kind means that a new field cannot be written by
//! one end and be forgotten by the other.

pub mod context;
pub mod from_proto;
mod requests;
pub mod to_proto;

#[cfg(test)]
mod tests;
