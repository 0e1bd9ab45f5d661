//! Pulling from a real registry: the `registry` program of the CNCF distribution
//! project, which Debian packages as docker-registry.

#![allow(clippy::unwrap_used)]

mod images;
mod pull;
mod registry;
mod signatures;
mod signer;

const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";
