//! Standalone mode: everything in one process, for trying, for pipelines, for development.

mod args;
mod control;
mod endpoints;
mod event_loop;
mod fleet;
mod http;
mod keeper;
mod machine;
mod revisions;
mod run;
mod servers;
mod services;
mod view;

pub use args::UpArgs;
pub use control::{Control, Ended};
pub use run::{Running, start};
pub use view::PolicyObject;
