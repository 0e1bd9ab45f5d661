//! A real Kubernetes API server, and what Assent does there.

#![allow(clippy::unwrap_used)]

mod api;
mod balancer;
mod closed;
mod crds;
mod definitions;
mod discovery;
mod environment;
mod expired;
mod hot;
mod life;
mod manifests;
mod many;
mod replicas;
mod restarts;
mod revisions;
mod sources;
mod tenancy;
mod trust;
mod writers;
mod yaml;
