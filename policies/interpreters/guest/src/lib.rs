//! What the interpreters of policy texts have in common: waPC, and the life of a policy.
//!
//! The host calls `build` with the text once, and takes a snapshot of the instance. The snapshot is a
//! policy module: each of its instances starts with the text parsed, and answers `validate`.
//!
//! The few lines of waPC are written here because the usual crate keeps its operations in a hash map
//! that every instance would have to fill.

mod answer;
mod wapc;

use std::{
    cell::{Cell, RefCell},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use answer::{Answer, annotated};
#[doc(hidden)]
pub use wapc::respond;

/// The text of a policy, as the host passes it to `build`.
#[derive(Debug, Deserialize)]
pub struct Source {
    /// Named in messages.
    pub file: String,
    /// The text.
    pub text: String,
    /// Other files that the first one uses.
    #[serde(default)]
    pub more: Vec<(String, String)>,
    /// The rule that decides; empty if the text has only one that can.
    #[serde(default)]
    pub entrypoint: String,
    /// An admission review that is evaluated before the snapshot, so that what is compiled at the first use is kept.
    #[serde(default)]
    pub sample: Option<Box<RawValue>>,
}

/// One call of `validate`.
#[derive(Debug, Deserialize)]
pub struct Payload<'a> {
    /// The request as the API server sent it.
    #[serde(borrow)]
    pub request: &'a RawValue,
    /// The settings of the policy.
    #[serde(borrow, default)]
    pub settings: Option<&'a RawValue>,
}

/// The answer to `build`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Built {
    /// The rule that decides.
    Entrypoint(String),
    /// What is wrong with the text.
    Problem(Problem),
}

/// What is wrong with a text.
#[derive(Debug, Serialize)]
pub enum Problem {
    /// With its position, the line and the reason, as the language's own tools report it.
    #[serde(rename = "message")]
    Message(String),
    /// In one field of a document.
    #[serde(rename = "field")]
    Field {
        /// Such as `validations[0].expression`.
        path: String,
        /// Its text.
        text: String,
        /// From 1, within the text.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// The reason.
        message: String,
    },
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

/// A language.
pub trait Language: Sized + 'static {
    /// Parses and checks a text. The error is for its author.
    fn build(source: &Source) -> Result<Self, Problem>;

    /// The rule that decides, for people; empty if the language has none.
    fn entrypoint(&self) -> String;

    /// Evaluates a request.
    fn validate(&mut self, payload: &Payload<'_>) -> Result<Answer, String>;

    /// Evaluates a raw input; for tests of the language itself.
    fn evaluate(&mut self, input: &str) -> Result<String, String>;
}

/// The policy of this module.
pub type Slot<L> = RefCell<Option<L>>;

/// Exports a language as a waPC module.
#[macro_export]
macro_rules! export {
    ($language:ty) => {
        thread_local! {
            static POLICY: $crate::Slot<$language> = const { ::std::cell::RefCell::new(None) };
        }

        #[unsafe(no_mangle)]
        extern "C" fn __guest_call(operation_length: usize, payload_length: usize) -> i32 {
            POLICY.with(|policy| $crate::respond(policy, operation_length, payload_length))
        }
    };
}

/// Answers one operation.
pub fn operate<L: Language>(
    slot: &Slot<L>,
    operation: &str,
    payload: &[u8],
) -> Result<Vec<u8>, String> {
    let mut slot = slot.borrow_mut();
    match (operation, slot.as_mut()) {
        ("build", None) => {
            let source: Source = read(payload)?;
            let built = match L::build(&source) {
                Ok(mut policy) => {
                    if let Some(sample) = &source.sample {
                        warm_up(&mut policy, sample);
                    }
                    let entrypoint = policy.entrypoint();
                    *slot = Some(policy);
                    Built::Entrypoint(entrypoint)
                }
                Err(problem) => Built::Problem(problem),
            };
            serde_json::to_vec(&built).map_err(|error| error.to_string())
        }
        ("build", Some(_)) => Err("this module has its policy already".to_owned()),
        ("protocol_version", _) => Ok(b"\"v1\"".to_vec()),
        (_, None) => Err("this is an interpreter without a policy: run `assent build`".to_owned()),
        ("validate", Some(policy)) => {
            let answer = policy.validate(&read(payload)?)?;
            serde_json::to_vec(&answer).map_err(|error| error.to_string())
        }
        ("validate_settings", Some(_)) => Ok(settings(payload)),
        ("evaluate", Some(policy)) => {
            let input = std::str::from_utf8(payload).map_err(|error| error.to_string())?;
            policy.evaluate(input).map(String::into_bytes)
        }
        (other, _) => Err(format!("unknown operation {other:?}")),
    }
}

/// Whether the sample is allowed does not matter, nor whether it fails: it is not a request of anybody.
fn warm_up<L: Language>(policy: &mut L, sample: &RawValue) {
    BUILDING.set(true);
    if let Ok(payload) = read(sample.get().as_bytes()) {
        let _ = policy.validate(&payload);
    }
    BUILDING.set(false);
}

thread_local! {
    static BUILDING: Cell<bool> = const { Cell::new(false) };
}

/// Nanoseconds since 1970. There is no clock while a policy is built.
pub fn now_ns() -> i64 {
    if BUILDING.get() {
        return 0;
    }
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn read<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("failed to read the request: {error}"))
}

/// Settings are a map of the author's making: a text has no way to check them before a request.
fn settings(payload: &[u8]) -> Vec<u8> {
    let first = payload.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'{' | b'n') => br#"{"valid":true}"#.to_vec(),
        _ => {
            br#"{"valid":false,"message":"the settings of a policy written as text must be a map"}"#
                .to_vec()
        }
    }
}
