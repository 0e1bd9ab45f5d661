//! As a controller of a Kubernetes cluster.

mod announce;
mod args;
mod chores;
mod collect;
mod crds;
mod deed;
mod deeds;
mod failpoint;
mod http;
mod known;
mod machine;
mod queries;
mod run;
mod site;
mod sources;
mod term;
mod terms;
mod tls;
mod trust;
mod uninstall;
mod warm;

pub use args::{CleanupArgs, ClusterArgs};
pub(crate) use crds::apply as apply_crds;
pub(crate) use run::start;
pub(crate) use site::client;
pub(crate) use uninstall::cleanup;
