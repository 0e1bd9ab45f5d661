//! The control plane: wiring, the one event loop, administration endpoints.
//!
//! Everything that decides is in `assent-core`; here decisions are performed.

mod clock;
mod drive;
mod metrics;
mod program;
pub mod standalone;
mod vetting;

pub use program::Program;
