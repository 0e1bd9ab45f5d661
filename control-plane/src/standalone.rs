//! Standalone mode: everything in one process, for evaluation, for pipelines and for development.

pub(crate) mod args;
mod certificates;
mod discovery;
mod endpoints;
mod event_loop;
mod fleet;
mod http;
mod objects;
mod run;
mod services;
pub mod token;
mod view;

pub use args::UpArgs;
pub use run::{Running, start};

pub use crate::{
    control::{Control, Ended},
    view::{ManifestProblem, PolicyObject},
};
