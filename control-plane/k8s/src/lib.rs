//! The control plane's hands in a cluster: the only crate with a Kubernetes client.
//!
//! What decides is a plain function over plain values with a synchronous test; what performs
//! reads and writes objects and decides nothing. This crate never names `assent-grpc`:
//! `assent-control-plane` joins the two.

pub mod admission;
pub mod certificates;
pub mod connect;
pub mod identity;
pub mod index;
pub mod lease;
pub mod names;
pub mod objects;
pub mod preflight;
pub mod revision;
pub mod status;
pub mod watch;
pub mod webhook;
pub mod workload;
