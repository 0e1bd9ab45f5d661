//! The control plane as a controller of a Kubernetes cluster.

mod args;
mod context;
mod followers;
mod http;
mod leader;
mod leadership;
mod prefetch;
mod queries;
mod run;
mod settings;
mod sources;
mod tls;
mod trust;

pub use args::{CleanupArgs, ClusterArgs};
pub(crate) use run::start;
pub(crate) use settings::client;
