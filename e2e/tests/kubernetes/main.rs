//! A real Kubernetes API server, and what Assent does there.

#![allow(clippy::unwrap_used)]

mod api;
mod balancer;
mod closed;
mod command_line;
mod context;
mod crds;
mod definitions;
mod discovery;
mod environment;
mod expired;
mod hot;
mod life;
mod manifests;
mod many;
mod many_objects;
mod reading;
mod replicas;
mod restarts;
mod revisions;
mod settings;
mod sources;
mod tenancy;
mod texts;
mod trust;
mod writers;
mod yaml;
