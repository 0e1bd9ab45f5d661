//! The control plane's hands in a cluster: the only crate with a Kubernetes client.
//!
//! What decides is a plain function over plain values with a synchronous test; what performs
//! reads and writes objects and decides nothing. This crate never names `assent-grpc`:
//! `assent-control-plane` joins the two.

pub mod certificates;
pub mod identity;
pub mod lease;
pub mod names;
