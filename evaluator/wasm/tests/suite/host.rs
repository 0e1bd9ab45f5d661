//! Host calls that need services of the embedding process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use assent_wasm::{Abi, EvalError, HostServices, Limits, Policy, PolicySpec, Review};

use crate::guests::{host_caller, pod, policy, spec, vet, wapc};

/// Answers with a text, or takes all the time it has.
struct Services {
    answer: Option<&'static str>,
    asked: Mutex<Vec<(String, String, Duration)>>,
}

// === impl Services ===

impl Services {
    fn answering(answer: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            answer,
            asked: Mutex::default(),
        })
    }
}

impl HostServices for Services {
    fn oci(&self, operation: &str, payload: &[u8], within: Duration) -> Result<Vec<u8>, String> {
        let payload = String::from_utf8(payload.to_vec()).unwrap();
        let asked = (operation.to_owned(), payload, within);
        self.asked.lock().unwrap().push(asked);
        match self.answer {
            Some(answer) => Ok(answer.as_bytes().to_vec()),
            None => {
                std::thread::sleep(within);
                Err("too slow".to_owned())
            }
        }
    }
}

fn allowed(capability: &str) -> PolicySpec {
    PolicySpec {
        host_capabilities: vec![capability.to_owned()],
        limits: Limits {
            timeout: Duration::from_millis(200),
            ..Limits::default()
        },
        ..spec(Abi::Wapc)
    }
}

fn caller() -> Vec<u8> {
    host_caller("kubewarden", "oci", "v1/manifest_digest", "\"image\"")
}

/// Crashes where its call gets an error.
fn unforgiving() -> Vec<u8> {
    let text = r#"kubewardenociv1/manifest_digest"image""#;
    let body = "(if (i32.eqz (call $host_call
          (i32.const 0) (i32.const 10) (i32.const 10) (i32.const 3)
          (i32.const 13) (i32.const 18) (i32.const 31) (i32.const 7)))
          (then unreachable))
        (i32.const 1)";
    wapc(text, body)
}

fn said(policy: &Policy) -> EvalError {
    let request = pod();
    let review = Review::admission(&request).unwrap();
    policy.evaluate(&review).unwrap_err()
}

#[test]
fn services_answer_for_registries() {
    let policy = policy(&caller(), allowed("oci/v1/manifest_digest"));
    let services = Services::answering(Some(r#"{"digest":"d"}"#));
    policy.connect(services.clone());
    assert_eq!(
        said(&policy),
        EvalError::Guest(r#"{"digest":"d"}"#.to_owned())
    );
    let asked = services.asked.lock().unwrap();
    let [(operation, payload, within)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert_eq!(operation, "v1/manifest_digest");
    assert_eq!(payload, "\"image\"");
    assert!(*within <= Duration::from_millis(200));
}

#[test]
fn nobody_is_asked_without_the_capability() {
    let policy = policy(&caller(), allowed("oci/v1/verify"));
    let services = Services::answering(Some("{}"));
    policy.connect(services.clone());
    let refusal = said(&policy).to_string();
    assert!(refusal.contains("not among"), "{refusal}");
    assert!(services.asked.lock().unwrap().is_empty());
}

#[test]
fn a_slow_service_ends_with_the_evaluation() {
    let policy = policy(&caller(), allowed("oci/*"));
    policy.connect(Services::answering(None));
    assert!(matches!(said(&policy), EvalError::Timeout(_)));
}

#[test]
fn a_policy_is_tried_out_without_services() {
    let error = said(&vet(&caller(), allowed("*")).unwrap()).to_string();
    assert!(error.contains("no access to registries"), "{error}");
    // One that crashes over it may be good: it is told apart from a crash of its own.
    let policy = vet(&unforgiving(), allowed("*")).unwrap();
    let error = said(&policy);
    assert!(matches!(error, EvalError::Guest(_)), "{error}");
    let words = error.to_string();
    assert!(
        words.contains("after the host call oci/v1/manifest_digest failed"),
        "{words}"
    );
    // Without the capability it can never be good.
    assert!(vet(&unforgiving(), spec(Abi::Wapc)).is_err());
}
