#![allow(clippy::unwrap_used)]

mod flips;
mod objects;
mod policies;
mod servers;
mod stage;
mod statuses;
mod takeover;
mod words;
