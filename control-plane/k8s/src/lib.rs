//! The control plane's side of a cluster: the only crate with a Kubernetes client.
//!
//! Decisions are plain functions over plain values with synchronous tests; what reads and
//! writes objects decides nothing. This crate never names `assent-grpc` or `assent-modules`:
//! `assent-control-plane` joins them.

pub mod admission;
mod backend;
pub mod certificates;
#[cfg(feature = "remote")]
pub mod check;
pub mod config_maps;
pub mod connect;
pub mod context;
pub mod convert;
pub mod crds;
pub mod events;
pub mod executor;
mod failpoint;
pub mod identity;
pub mod lease;
pub mod names;
pub mod objects;
pub mod own_objects;
pub mod preflight;
#[cfg(feature = "remote")]
pub mod remote;
pub mod revision;
pub mod settings;
pub mod sources;
pub mod standby;
pub mod status;
#[cfg(test)]
mod testing;
pub mod texts;
pub mod uninstall;
pub mod watch;
pub mod webhook;
pub mod workload;

pub use backend::Cluster;
/// The client, for those who only pass it on: requests are made in this crate alone.
pub use kube::Client;
