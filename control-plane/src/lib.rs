//! The control plane: wiring, the one event loop, administration endpoints.
//!
//! Everything that decides is in `assent-core`; here decisions are performed.

mod clock;
pub mod cluster;
mod control;
mod drive;
mod jobs;
mod metrics;
mod program;
mod servers;
mod services;
pub mod standalone;
mod vetting;
mod view;

pub use program::Program;
