//! Helpers for tests of real processes over real sockets.
//!
//! Clients and servers here are made of the generated protocol code alone: they know the
//! contract and nothing of the implementation.

pub mod client;
pub mod envoy;
pub mod evaluator;
pub mod hash;
pub mod http;
pub mod kube;
pub mod manifest;
pub mod module;
pub mod peer;
pub mod process;
pub mod registry;
pub mod set;
pub mod tls;
pub mod tools;
pub mod up;
pub mod walkthrough;
pub mod workspace;

pub use client::{Delta, Sotw};
pub use evaluator::Evaluator;
pub use up::{Options, Up};
pub use workspace::Workspace;

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. It bounds a hang; nothing is measured
/// by it, so it is generous.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How long nothing must happen for a test to believe that nothing will: longer than the
/// longest coalescing window, which is a second.
pub const QUIET: Duration = Duration::from_millis(1_500);

/// Waits until `check` holds.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
