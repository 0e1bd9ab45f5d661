#![allow(clippy::unwrap_used)]

mod flips;
mod policies;
mod servers;
mod stage;
mod statuses;
mod takeover;
