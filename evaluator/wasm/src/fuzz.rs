//! Entry points for fuzzing: they return for any bytes, and report whether the bytes were valid.

use std::{sync::OnceLock, time::Duration};

use serde_json::value::RawValue;

use crate::{
    Engine, EngineConfig, Limits, Policy, PolicySpec, Review, answer, inspect, metadata::Metadata,
    opa,
};

mod guest;

/// Enough for every call that returns by itself; a guest that sleeps must not hold up the rest.
const TIMEOUT: Duration = Duration::from_millis(50);

/// The request that guests evaluate.
const REQUEST: &str = r#"{"uid":"u","operation":"CREATE","object":{"metadata":{}}}"#;

/// A module, or something that claims to be one.
pub fn module(bytes: &[u8]) -> bool {
    let inspected = inspect(bytes).is_ok();
    opa::own_memory(bytes).is_ok() && inspected
}

/// The metadata section of a module.
pub fn metadata(bytes: &[u8]) -> bool {
    Metadata::parse(bytes).is_ok()
}

/// A guest's answers, in all forms.
pub fn answers(bytes: &[u8]) -> bool {
    let review = Review::admission(fixed_request());
    let review = review.expect("the request must be an object");
    let validation = answer::validation(bytes, &review, true).is_ok();
    let settings = answer::settings(bytes).is_ok();
    opa::fuzz(bytes, &review) || validation || settings
}

/// An admission request, as the host looks at it.
pub fn request(bytes: &[u8]) -> bool {
    let Ok(request) = serde_json::from_slice::<&RawValue>(bytes) else {
        return false;
    };
    let review = Review {
        raw: false,
        ..Review::raw(request)
    };
    let _ = crate::json::payload(&review, b"{}");
    crate::json::within_depth(bytes, crate::json::MAX_DEPTH) && Review::admission(request).is_ok()
}

/// A guest of any ABI that calls the host as the bytes say.
pub fn guest(bytes: &[u8]) -> bool {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let start = || Engine::new(EngineConfig::small()).expect("the engine must start");
    let engine = ENGINE.get_or_init(start);
    let guest = guest::Guest::of(bytes);
    let module = engine.compile(&guest.wasm);
    let module = module.expect("the guest must be a sound module");
    let spec = PolicySpec {
        mutating: true,
        limits: Limits {
            timeout: TIMEOUT,
            ..Limits::default()
        },
        // All that answers without a network.
        host_capabilities: vec!["crypto/*".to_owned(), "kubernetes/*".to_owned()],
        ..PolicySpec::new(guest.abi)
    };
    let Ok(policy) = Policy::prepare(engine, &module, spec) else {
        return false;
    };
    let _ = policy.validate_settings();
    let review = Review::admission(fixed_request());
    let review = review.expect("the request must be an object");
    policy.evaluate(&review).is_ok()
}

fn fixed_request() -> &'static RawValue {
    serde_json::from_str(REQUEST).expect("the request must be JSON")
}
