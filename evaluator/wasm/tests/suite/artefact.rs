//! Ahead-of-time artefacts: made once, loaded where they fit, refused elsewhere.

use std::time::Duration;

use assent_wasm::{
    Abi, Engine, EngineConfig, Error, EvalError, Limits, Policy, PolicySpec, Review,
};
use sha2::{Digest, Sha256};

use crate::guests::{ENGINE, answering, pod, spec, wapc};

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[test]
fn an_artefact_does_what_the_module_does() {
    let wasm = answering(r#"{"accepted":false,"message":"from an artefact"}"#);
    let artefact = ENGINE.precompile(&wasm).unwrap();
    let module = ENGINE.load(&artefact, &hash(&artefact)).unwrap();
    assert_eq!(module.inspection(), &assent_wasm::inspect(&wasm).unwrap());
    let policy = Policy::prepare(&ENGINE, &module, spec(Abi::Wapc)).unwrap();
    let request = pod();
    let verdict = policy
        .evaluate(&Review::admission(&request).unwrap())
        .unwrap();
    assert_eq!(verdict.message.as_deref(), Some("from an artefact"));
}

#[test]
fn the_small_engine_makes_the_same_artefacts() {
    let small = Engine::new(EngineConfig::small()).unwrap();
    assert_eq!(small.fingerprint(), ENGINE.fingerprint());
    let artefact = small.precompile(&answering("{}")).unwrap();
    ENGINE.load(&artefact, &hash(&artefact)).unwrap();
}

#[test]
fn the_small_engine_evaluates() {
    let small = Engine::new(EngineConfig::small()).unwrap();
    let module = small.compile(&answering(r#"{"accepted":true}"#)).unwrap();
    let policy = Policy::prepare(&small, &module, spec(Abi::Wapc)).unwrap();
    let request = pod();
    assert!(
        policy
            .evaluate(&Review::admission(&request).unwrap())
            .unwrap()
            .allowed
    );
}

#[test]
fn a_poisoned_artefact_is_refused_by_its_hash() {
    let mut artefact = ENGINE.precompile(&answering("{}")).unwrap();
    let expected = hash(&artefact);
    let middle = artefact.len() / 2;
    artefact[middle] ^= 1;
    assert!(matches!(
        ENGINE.load(&artefact, &expected),
        Err(Error::Hash { .. })
    ));
}

#[test]
fn bytes_that_are_no_artefact_are_refused() {
    let artefact = ENGINE.precompile(&answering("{}")).unwrap();
    let cuts = [0, 1, 8, 11, 12, 40, 300].map(|length| artefact[..length].to_vec());
    let odd = [
        b"assent\0\x01\xff\xff\xff\xff{}".to_vec(),
        answering("{}"),
        b"\x7fELF".to_vec(),
    ];
    for bytes in cuts.iter().chain(&odd) {
        assert!(matches!(
            ENGINE.load(bytes, &hash(bytes)),
            Err(Error::Artefact(_))
        ));
    }
}

#[test]
fn an_artefact_for_another_engine_is_refused() {
    let artefact = ENGINE.precompile(&answering("{}")).unwrap();
    let name = ENGINE.fingerprint().as_bytes();
    let at = artefact
        .windows(name.len())
        .position(|window| window == name)
        .unwrap();
    let mut foreign = artefact;
    foreign[at + name.len() - 1] ^= 1;
    let error = ENGINE.load(&foreign, &hash(&foreign)).err().unwrap();
    assert!(error.to_string().contains("made for the engine"), "{error}");
}

#[test]
fn policies_are_used_from_many_threads_at_once() {
    let module = ENGINE.compile(&answering(r#"{"accepted":true}"#)).unwrap();
    let policy = Policy::prepare(&ENGINE, &module, spec(Abi::Wapc)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let request = pod();
                for _ in 0..50 {
                    assert!(
                        policy
                            .evaluate(&Review::admission(&request).unwrap())
                            .unwrap()
                            .allowed
                    );
                }
            });
        }
    });
}

#[test]
fn when_all_sandboxes_are_taken_the_next_evaluation_says_so() {
    let engine = Engine::new(EngineConfig {
        max_concurrent_instances: 1,
        ..EngineConfig::default()
    })
    .unwrap();
    let policy = |wasm: &[u8], timeout: u64| {
        let limits = Limits {
            timeout: Duration::from_millis(timeout),
            ..Limits::default()
        };
        let module = engine.compile(wasm).unwrap();
        Policy::prepare(
            &engine,
            &module,
            PolicySpec {
                limits,
                ..spec(Abi::Wapc)
            },
        )
        .unwrap()
    };
    let endless = policy(&wapc("", "(loop $l (br $l)) (i32.const 1)"), 1_000);
    let quick = policy(&answering(r#"{"accepted":true}"#), 1_000);
    let request = pod();
    let review = Review::admission(&request).unwrap();
    let overloaded = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let request = pod();
            // The quick policy may be first: then there is nothing to be seen yet.
            while endless.evaluate(&Review::admission(&request).unwrap())
                == Err(EvalError::Overloaded)
            {}
        });
        let mut seen = false;
        while !busy.is_finished() {
            seen |= quick.evaluate(&review) == Err(EvalError::Overloaded);
        }
        seen
    });
    assert!(overloaded);
    assert!(
        quick.evaluate(&review).unwrap().allowed,
        "the sandbox is free again"
    );
}
