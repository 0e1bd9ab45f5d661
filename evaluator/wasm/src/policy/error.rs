//! Why a policy can't be prepared, or returned no verdict.

use std::{fmt, time::Duration};

use crate::sandbox::{Guest, Stop};

/// Why a policy can't be used.
#[derive(Debug)]
pub struct PrepareError {
    stage: Stage,
    message: String,
    transient: bool,
}

/// In place of what a guest said whose settings are confidential.
const WITHHELD: &str =
    "the message is withheld, because some settings come from Secrets and it may quote them";

/// How far preparing a policy got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Imports and exports did not fit.
    Link,
    /// No instance could be made.
    Instantiate,
    /// The module refused its settings, or failed on them.
    Settings,
    /// The first evaluation failed.
    SelfTest,
}

/// Why there is no verdict.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvalError {
    /// The deadline passed.
    #[error("the policy did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// It wanted more memory than its limit.
    #[error("the policy needs more than the {0} bytes of memory it is allowed")]
    MemoryExceeded(u64),
    /// It wanted a larger table than any policy needs.
    #[error(
        "the policy needs more than the {} table elements it is allowed",
        crate::limits::TABLE_ELEMENTS
    )]
    TableExceeded,
    /// It recursed too deeply.
    #[error("the policy used up its stack of {} bytes", crate::limits::STACK_BYTES)]
    StackExceeded,
    /// It crashed.
    #[error("the policy crashed: {0}")]
    Trap(String),
    /// It reported a failure.
    #[error("the policy failed: {0}")]
    Guest(String),
    /// It ended with an exit code other than 0.
    #[error("the policy ended with exit code {code}{}", said(.words))]
    Exit {
        /// The exit code.
        code: i32,
        /// The end of what it logged.
        words: String,
    },
    /// It called its host too often or with too much.
    #[error(
        "the policy used up its budget of {} host calls and {} bytes",
        crate::limits::HOST_CALLS,
        crate::limits::HOST_CALL_BYTES
    )]
    HostCallBudget,
    /// Its answer is larger than any review.
    #[error(
        "the policy's answer is larger than {} bytes",
        crate::limits::OUTPUT_BYTES
    )]
    OutputTooLarge,
    /// It gave a host function an address that is not its own.
    #[error("the policy gave {0} an address outside of its memory")]
    BadAddress(&'static str),
    /// Its answer is invalid.
    #[error("the policy's answer is not valid: {0}")]
    BadAnswer(String),
    /// Its Rego failed, or needs a builtin that does not exist here.
    #[error("the policy failed: {0}")]
    Rego(String),
    /// All sandboxes are in use, or all memory that evaluations share.
    #[error("the evaluator has no sandbox or no memory left for another evaluation")]
    Overloaded,
    /// Objects of the cluster that it reads can't be had.
    #[error("the policy can't read objects of the cluster: {0}")]
    Context(String),
    /// A fault of the host.
    #[error("failed to run the policy: {0}")]
    Internal(String),
}

// === impl PrepareError ===

impl PrepareError {
    pub(crate) fn link(message: impl Into<String>) -> Self {
        Self {
            stage: Stage::Link,
            message: message.into(),
            transient: false,
        }
    }

    pub(crate) fn settings(message: impl Into<String>) -> Self {
        Self {
            stage: Stage::Settings,
            message: message.into(),
            transient: false,
        }
    }

    /// The module failed before it answered about its settings.
    pub(crate) fn settings_failed(error: &EvalError) -> Self {
        Self::of(Stage::Settings, error)
    }

    pub(crate) fn instantiate(error: &EvalError) -> Self {
        Self::of(Stage::Instantiate, error)
    }

    pub(crate) fn self_test(error: &EvalError) -> Self {
        Self::of(Stage::SelfTest, error)
    }

    fn of(stage: Stage, error: &EvalError) -> Self {
        Self {
            stage,
            message: error.to_string(),
            transient: *error == EvalError::Overloaded,
        }
    }

    /// The same without what the guest said, which may quote its settings.
    pub(crate) fn without_guest_text(self) -> Self {
        match self.stage {
            // No guest code has run.
            Stage::Link => self,
            _ => Self {
                message: WITHHELD.to_owned(),
                ..self
            },
        }
    }

    /// How far it got.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether a retry may succeed: all sandboxes or all memory were in use.
    pub fn is_transient(&self) -> bool {
        self.transient
    }
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            Stage::Link => write!(f, "failed to link the module: {}", self.message),
            Stage::Instantiate => write!(f, "failed to instantiate the module: {}", self.message),
            Stage::Settings => write!(f, "the settings are not valid: {}", self.message),
            Stage::SelfTest => write!(f, "failed the self-test: {}", self.message),
        }
    }
}

impl std::error::Error for PrepareError {}

// === impl Stage ===

impl Stage {
    /// A low-cardinality name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Instantiate => "instantiate",
            Self::Settings => "settings",
            Self::SelfTest => "self_test",
        }
    }
}

// === impl EvalError ===

impl EvalError {
    /// A low-cardinality name for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::MemoryExceeded(_) => "memory",
            Self::TableExceeded => "table",
            Self::StackExceeded => "stack",
            Self::Trap(_) => "trap",
            Self::Guest(_) => "guest",
            Self::Exit { .. } => "exit",
            Self::HostCallBudget => "host_call_budget",
            Self::OutputTooLarge => "output_too_large",
            Self::BadAddress(_) => "bad_address",
            Self::BadAnswer(_) => "bad_answer",
            Self::Rego(_) => "rego",
            Self::Overloaded => "overloaded",
            Self::Context(_) => "context",
            Self::Internal(_) => "internal",
        }
    }

    /// The same without what the guest said, which may quote its settings.
    pub(crate) fn without_guest_text(self) -> Self {
        let withheld = || WITHHELD.to_owned();
        match self {
            Self::Trap(_) => Self::Trap(withheld()),
            Self::Guest(_) => Self::Guest(withheld()),
            Self::Exit { code, .. } => Self::Exit {
                code,
                words: withheld(),
            },
            Self::BadAnswer(_) => Self::BadAnswer(withheld()),
            Self::Rego(_) => Self::Rego(withheld()),
            Self::Internal(_) => Self::Internal(withheld()),
            other => other,
        }
    }

    /// Whether such a policy could never evaluate a request. A guest that reports that it can't read a request is not
    /// broken, and an overloaded host says nothing about the policy.
    pub(crate) fn is_fatal(&self) -> bool {
        !matches!(
            self,
            Self::Guest(_)
                | Self::Exit { .. }
                | Self::Rego(_)
                | Self::BadAnswer(_)
                | Self::Overloaded
                | Self::Context(_)
        )
    }

    /// Classifies an error of wasmtime.
    pub(crate) fn from_wasmtime(error: &wasmtime::Error, guest: &Guest) -> Self {
        let meter = &guest.meter;
        let words = || meter.last_output.clone();
        let stopped = error.downcast_ref::<Stop>();
        match stopped {
            Some(Stop::Overloaded) => return Self::Overloaded,
            Some(Stop::Context(why)) => return Self::Context(why.clone()),
            Some(Stop::Timeout) => return Self::Timeout(meter.limits.timeout),
            Some(Stop::HostCallBudget) => return Self::HostCallBudget,
            Some(Stop::OutputTooLarge) => return Self::OutputTooLarge,
            Some(Stop::BadAddress(function)) => return Self::BadAddress(function),
            _ => {}
        }
        if meter.memory_refused {
            return Self::MemoryExceeded(meter.limits.memory_bytes);
        }
        if meter.table_refused {
            return Self::TableExceeded;
        }
        match stopped {
            Some(Stop::Exit(code)) => {
                return Self::Exit {
                    code: *code,
                    words: words(),
                };
            }
            Some(Stop::Abort(message)) => return Self::Rego(message.clone()),
            _ => {}
        }
        if error.is::<wasmtime::PoolConcurrencyLimitError>() {
            return Self::Overloaded;
        }
        match error.downcast_ref::<wasmtime::Trap>() {
            Some(wasmtime::Trap::StackOverflow) => Self::StackExceeded,
            // Guests panic if a host call fails: that is not a fault of the policy.
            Some(trap) if meter.unanswered.is_some() => Self::Guest(format!(
                "{trap} after {}{}",
                meter.unanswered.as_deref().unwrap_or_default(),
                said(&meter.last_output)
            )),
            Some(trap) => Self::Trap(format!("{trap}{}", said(&meter.last_output))),
            None => Self::Internal(format!("{error:#}")),
        }
    }
}

fn said(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!("; it said: {words}")
    }
}
