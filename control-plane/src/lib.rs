//! The control plane: wiring, the one event loop, administration endpoints.
//!
//! Everything that decides is in `assent-core`; here decisions are performed.

// Some of what both modes share is used by the cluster mode only.
#![cfg_attr(not(feature = "cluster"), allow(dead_code))]

mod clock;
#[cfg(feature = "cluster")]
pub mod cluster;
mod context;
mod control;
mod listen;
mod metrics;
#[cfg(feature = "cluster")]
mod program;
mod responses;
mod runner;
mod servers;
mod services;
pub mod standalone;
mod vetting;
mod view;

#[cfg(feature = "cluster")]
pub use program::Program;
