//! Scripted tests of the controller on both backends: a cluster whose API server accepts
//! everything at once, and a directory with its state store. Tests under `common` run on both;
//! those under `cluster_only` need objects that only a cluster has.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod macros;
mod cluster;
mod cluster_only;
mod common;
mod describe;
mod harness;
mod standalone;
mod world;
