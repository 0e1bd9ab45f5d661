//! Standalone duties: what an API server does in a cluster, done by one process.
//!
//! A watched [`directory`] of manifests stands for the API; [`mod@decide`] says what a new look at
//! it changes; [`objects`] keeps identities and revisions on disk; [`dispatch`] calls the
//! policies that match a request and merges what they say.

pub mod decide;
pub mod directory;
pub mod dispatch;
pub mod objects;

pub use decide::{Decision, decide};
pub use directory::{Document, Scan};
pub use objects::Book;
