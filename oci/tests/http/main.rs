//! Pulling from servers on loopback that answer as a test wants.

#![allow(clippy::unwrap_used)]

mod connections;
mod file;
mod registry;
mod server;
mod signed;
mod web;

/// The smallest core module.
const MODULE: &[u8] = b"\0asm\x01\0\0\0";
