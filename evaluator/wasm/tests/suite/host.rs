//! Host calls that need services of the embedding process.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use assent_wasm::{
    Abi, CallError, EvalError, HostNamespace, HostServices, Limits, Policy, PolicySpec, Review,
    Stage,
};

use crate::guests::{FREE, host_caller, pod, policy, spec, vet, wapc, wapc_with};

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

impl HostNamespace for Services {
    fn name(&self) -> &'static str {
        "oci"
    }

    fn operations(&self) -> &'static [&'static str] {
        &["v1/verify", "v1/manifest_digest"]
    }

    fn is_external(&self) -> bool {
        true
    }

    fn waits(&self, _: &str, _: &[u8]) -> bool {
        true
    }

    fn call(
        &self,
        operation: &str,
        payload: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let payload = String::from_utf8(payload.to_vec()).unwrap();
        let asked = (operation.to_owned(), payload, within);
        self.asked.lock().unwrap().push(asked);
        match self.answer {
            Some(answer) => Ok(answer.as_bytes().to_vec()),
            None => {
                std::thread::sleep(within);
                Err("too slow".into())
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

fn connect(policy: &Policy, services: Arc<Services>) {
    policy.connect(Arc::new(HostServices::offline().with(services)));
}

fn caller() -> Vec<u8> {
    host_caller("kubewarden", "oci", "v1/manifest_digest", "\"image\"")
}

/// Crashes if its call fails.
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
fn a_connected_namespace_answers_calls() {
    let policy = policy(&caller(), allowed("oci/v1/manifest_digest"));
    let services = Services::answering(Some(r#"{"digest":"d"}"#));
    connect(&policy, services.clone());
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
fn a_service_is_not_called_without_the_capability() {
    let policy = policy(&caller(), allowed("oci/v1/verify"));
    let services = Services::answering(Some("{}"));
    connect(&policy, services.clone());
    let refusal = said(&policy).to_string();
    assert!(refusal.contains("not among"), "{refusal}");
    assert!(services.asked.lock().unwrap().is_empty());
}

#[test]
fn a_slow_service_ends_with_the_evaluation() {
    let policy = policy(&caller(), allowed("oci/*"));
    connect(&policy, Services::answering(None));
    assert!(matches!(said(&policy), EvalError::Timeout(_)));
}

#[test]
fn a_policy_is_tested_without_services() {
    let error = said(&vet(&caller(), allowed("*")).unwrap()).to_string();
    assert!(error.contains("no access to registries"), "{error}");
    // A crash that follows is not blamed on the policy.
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

#[test]
fn call_that_waits_gives_up_the_thread_and_is_remembered() {
    static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);
    let on_slow = || {
        GIVEN_UP.fetch_add(1, Ordering::SeqCst);
    };
    let request = pod();
    let review = Review::admission(&request).unwrap();
    let check = |capability: &str, given_up: usize, waits: bool| {
        let policy = policy(&caller(), allowed(capability));
        connect(&policy, Services::answering(Some("{}")));
        assert!(!policy.waits(), "{capability} before a call");
        let before = GIVEN_UP.load(Ordering::SeqCst);
        policy.evaluate_in_place(&review, on_slow).unwrap_err();
        let after = GIVEN_UP.load(Ordering::SeqCst);
        assert_eq!(
            (after - before, policy.waits()),
            (given_up, waits),
            "{capability}"
        );
    };
    // A capability alone says nothing: a call that is refused does not wait.
    check("oci/v1/verify", 0, false);
    check("oci/*", 1, true);
}

/// Keeps what is logged on the thread of a test.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields<'a>(&'a mut Vec<String>);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push(format!("{value:?}"));
    }

    fn record_str(&mut self, _: &tracing::field::Field, value: &str) {
        self.0.push(value.to_owned());
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn log_lines_of_guests_are_cut_and_escaped() {
    let forged = "{\"level\":\"info\",\"message\":\"x\"}\nforged";
    let allow = r#"{"accepted":true}"#;
    let forged_at = allow.len();
    let body = format!(
        "(call $log (i32.const 0) (i32.const 131072))
         (drop (call $host_call (i32.const {k}) (i32.const 10) (i32.const {n}) (i32.const 7) (i32.const {o}) (i32.const 3) (i32.const {forged_at}) (i32.const {len})))
         (drop (call $host_call (i32.const {k}) (i32.const 10) (i32.const {n}) (i32.const 7) (i32.const {o}) (i32.const 3) (i32.const 0) (i32.const 131072)))
         (call $response (i32.const 0) (i32.const {forged_at})) (i32.const 1)",
        len = forged.len(),
        k = forged_at + forged.len(),
        n = forged_at + forged.len() + 10,
        o = forged_at + forged.len() + 17,
    );
    let text = format!("{allow}{forged}kubewardentracinglog");
    let policy = policy(&wapc(&text, &body), allowed("*"));
    let request = pod();
    let review = Review::admission(&request).unwrap();
    let lines = Lines::default();
    let verdict = tracing::subscriber::with_default(lines.clone(), || policy.evaluate(&review));
    assert!(verdict.unwrap().allowed);
    let lines = lines.0.lock().unwrap();
    assert!(
        lines.iter().any(|line| line.contains("\\nforged")),
        "{lines:?}"
    );
    for line in &*lines {
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.len() < 5_000, "{}", line.len());
    }
}

/// A guest that logs what it gets, and fails with it.
fn quoting() -> Vec<u8> {
    let at = FREE + 100;
    let quote = format!(
        "(call $request (i32.const {FREE}) (i32.const {at}))
         (call $log (i32.const {at}) (local.get $len))
         (call $error (i32.const {at}) (local.get $len)) (i32.const 0)"
    );
    wapc("", &quote)
}

#[test]
fn guest_with_confidential_settings_is_not_quoted() {
    for confidential in [false, true] {
        let spec = PolicySpec {
            settings_json: bytes::Bytes::from_static(br#"{"token":"hunter2"}"#),
            confidential,
            ..allowed("*")
        };
        assert!(!format!("{spec:?}").contains("hunter2"));
        let policy = policy(&quoting(), spec);
        let request = pod();
        let review = Review::admission(&request).unwrap();
        let lines = Lines::default();
        let error = tracing::subscriber::with_default(lines.clone(), || policy.evaluate(&review));
        let error = error.unwrap_err();
        assert_eq!(error.reason(), "guest");
        let said = format!("{error} {:?}", lines.0.lock().unwrap());
        assert_eq!(said.contains("hunter2"), !confidential, "{said}");
    }
}

#[test]
fn guest_that_rejects_confidential_settings_is_not_quoted() {
    let invalid = r#"{"valid":false,"message":"hunter2 is too short"}"#;
    let wasm = wapc_with("", invalid, "(i32.const 1)", "");
    for confidential in [false, true] {
        let spec = PolicySpec {
            confidential,
            ..allowed("*")
        };
        let error = policy(&wasm, spec).validate_settings().unwrap_err();
        assert_eq!(error.stage(), Stage::Settings);
        let said = error.to_string();
        assert_eq!(said.contains("hunter2"), !confidential, "{said}");
        assert!(!confidential || said.contains("withheld"), "{said}");
    }
}
