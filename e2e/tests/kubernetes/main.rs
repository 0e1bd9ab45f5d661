//! A real Kubernetes API server, and what Assent does there.

#![allow(clippy::unwrap_used)]

mod balancer;
mod definitions;
mod harness;
mod life;
mod trust;
