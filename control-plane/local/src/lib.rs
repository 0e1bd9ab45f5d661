//! Standalone mode: what an API server does in a cluster, done by one process.
//!
//! A watched [`directory`] of manifests stands for the API, another one of [`objects`] for the content of a cluster; [`mod@decide`] compares a new scan
//! with the last one; [`state`] stores identities and revisions on disk; [`api`] offers all
//! of it to the controller and performs its actions; [`dispatch`] calls the policies that
//! match a request and merges their responses.

pub mod api;
mod backend;
pub mod decide;
pub mod directory;
pub mod dispatch;
pub mod objects;
pub mod state;

pub use api::LocalApi;
pub use backend::{KINDS, LocalBackend};
pub use decide::{Decision, decide};
pub use directory::{Document, Scan};
pub use state::StateStore;
