//! The pure domain of the control plane.
//!
//! Nothing here does IO, reads a clock or draws a random number. State machines get the time and
//! an input, and return what has to be done. Everything is deterministic, so that every rule has
//! a synchronous test.

pub mod coalesce;
pub mod condition;
pub mod digest;
#[cfg(test)]
mod fixtures;
pub mod fleet;
pub mod plane;
pub mod policy;
pub mod quantity;
pub mod rollout;
pub mod session;
pub mod snapshot;
pub mod status;
pub mod time;

pub use digest::{Digest, Version};
pub use policy::{Mode, Policy, PolicyKey, RevisionId};
pub use snapshot::{Route, RouteState, Snapshot};
pub use time::Millis;
