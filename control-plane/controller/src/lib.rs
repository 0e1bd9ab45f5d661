//! The life of policies and PolicyServers, decided once for clusters and for standalone mode.
//!
//! A [`Controller`] takes observations (objects that changed, answers of replicas, outcomes of
//! earlier actions) with the time, and returns [`Action`]s. It performs nothing itself: a
//! [`Backend`] describes what differs between a cluster and a directory, and whoever runs the
//! controller performs the actions and reports their outcomes.
//!
//! A controller starts from a complete list of all objects. Everything that an earlier process
//! was in the middle of is found again in the objects, so any process makes the same decisions.

pub mod action;
mod backend;
mod context;
pub mod contexts;
mod controller;
pub mod jobs;
pub mod objects;
pub mod revision;
mod server;
pub mod view;

pub use action::{Action, Failure, Outcome, VetJob};
pub use backend::{Backend, RouteSpec};
pub use context::context_unavailable;
pub use controller::{Config, Controller};
pub use objects::{Change, Kind, Meta, Object, Objects};
pub use view::Now;
