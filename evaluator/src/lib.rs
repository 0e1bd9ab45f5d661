//! The evaluator: follows the discovery stream, hot-swaps policies, answers admission reviews.
//!
//! [`Evaluator::start`] runs one inside any tokio runtime: it installs no signal handlers and
//! sets nothing global, so that many may run in one process.

mod active;
mod admin;
mod admission;
mod announced;
pub mod args;
mod client;
mod config;
pub mod context;
mod decision_log;
mod envoy;
mod evaluation;
mod failure;
#[doc(hidden)]
pub mod fuzz;
mod memory;
mod metrics;
mod plan;
mod prepare;
mod readiness;
mod registries;
mod self_check;
mod start;
mod store;
mod sync;
mod tls;
mod wire;

pub use config::{
    Config, DecisionLogConfig, DecisionLogTarget, DefaultDecision, Listen, RegistryAccess,
    RequestsConfig, RequestsListen, Timings, TlsFiles,
};
pub use envoy::{check, table::Workloads};
pub use memory::memory_limit;
pub use metrics::render as render_metrics;
pub use registries::host_services;
pub use start::{Error, Evaluator, Handle, shared_engine};
