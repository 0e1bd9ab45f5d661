//! The evaluator as others see it: a real discovery stream on one side, real HTTP on the other.

#![allow(clippy::unwrap_used)]

mod attack;
mod context;
mod discovery;
mod guests;
mod http;
mod images;
mod memory;
mod peer;
mod registries;
// The registry and the signer of `oci`'s tests, which use more of them.
#[allow(dead_code)]
#[path = "../../../oci/tests/registry/registry.rs"]
mod registry;
mod restart;
mod reviews;
mod secure;
mod set;
#[allow(dead_code)]
#[path = "../../../oci/tests/registry/signer.rs"]
mod signer;
mod swap;

use std::time::Duration;

use assent_evaluator::{Config, Evaluator, Handle};

/// Ends a test that hangs; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An evaluator on loopback that follows `peer`.
pub(crate) async fn start(peer: &peer::Peer) -> Handle {
    start_with(peer, |_| {}).await
}

pub(crate) async fn start_with(peer: &peer::Peer, change: impl FnOnce(&mut Config)) -> Handle {
    let mut config = Config::loopback(peer.uri(), "evaluator-0");
    config.engine = Some(engine());
    config.timings.drain = Duration::ZERO;
    change(&mut config);
    Evaluator::start(config).await.unwrap()
}

/// One engine for all tests: its pool reserves addresses.
fn engine() -> assent_wasm::Engine {
    static ENGINE: std::sync::OnceLock<assent_wasm::Engine> = std::sync::OnceLock::new();
    let start = || assent_wasm::Engine::new(assent_wasm::EngineConfig::default()).unwrap();
    ENGINE.get_or_init(start).clone()
}

/// Waits until `check` holds.
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, wait).await.is_ok(),
        "never: {what}"
    );
}
