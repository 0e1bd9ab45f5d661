//! What goes into a session and what comes out of it.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use crate::{
    digest::{Digest, Version},
    policy::RevisionId,
    snapshot::{Delta, Snapshot},
};

/// What responses of a stream contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// The difference to what the client has.
    Delta,
    /// The whole set each time.
    StateOfTheWorld,
}

/// What a client claims to hold in its first message.
#[derive(Clone, Debug, Default)]
pub struct InitialRequest {
    /// The last version that it loaded completely, as the client wrote it.
    pub version: String,
    /// The revisions that it holds, with their content digests.
    pub held: BTreeMap<String, Digest>,
}

/// An input of a session.
#[derive(Clone, Debug)]
pub enum Input {
    /// A snapshot was published.
    Publish(Arc<Snapshot>),
    /// The client sent a message after its first.
    Answer(Answer),
}

/// A message after the first, as the client wrote it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The nonce that it answers.
    pub nonce: String,
    /// The last version that the client loaded completely.
    pub version: String,
    /// Its presence makes the answer a NACK (R7).
    pub error: Option<Failure>,
    /// Revisions that the client could not load.
    pub rejected: Vec<Rejection>,
    /// There are more rejections than the answer lists.
    pub truncated: bool,
}

/// An error as the client reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A gRPC code.
    pub code: i32,
    /// The client's message, which the reader of the wire has truncated.
    pub message: String,
}

/// One revision that a client could not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The revision.
    pub revision: RevisionId,
    /// The step that failed.
    pub stage: Stage,
    /// The error.
    pub failure: Failure,
    /// Whether the client retries on its own.
    pub retryable: bool,
}

/// The steps from an announced revision to its first decisions, in their order: where loading
/// it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The client named none, or one that a later version added.
    #[default]
    Unspecified,
    /// The module could not be fetched.
    Fetch,
    /// The revision does not match its digest, or is not understood.
    Verify,
    /// The module did not compile.
    Compile,
    /// The module imports what its ABI does not provide.
    Link,
    /// The module could not be instantiated.
    Instantiate,
    /// The module rejected its settings.
    Settings,
    /// The first, empty review failed.
    SelfTest,
    /// The set could not be put in place.
    Swap,
    /// The first real reviews failed.
    Runtime,
    /// A collection of objects that the revision reads is not synced.
    Context,
}

/// What a session asks for.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this response.
    Send(Response),
    /// The replica's state changed.
    Report(Report),
    /// Count this in metrics.
    Count(Event),
}

/// One response, before it is encoded.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its nonce, unique on the stream.
    pub nonce: Nonce,
    /// The set that the client has once it has applied the response.
    pub to: Arc<Snapshot>,
    /// What the response contains.
    pub body: Body,
}

/// The content of a response.
#[derive(Clone, Debug)]
pub enum Body {
    /// The whole set.
    Full,
    /// Nothing: the client has the set.
    NoChange,
    /// The difference to a set that the client has applied. Streams with the same pair of sets
    /// share one encoding.
    Delta(Arc<Snapshot>),
    /// The difference to what the client claims to hold, with all routes.
    Claim(Delta),
}

/// The state of a stream and of its replica.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The set that the replica has applied; `None` before its first answer.
    pub applied: Option<AppliedSnapshot>,
    /// The last version that was sent.
    pub sent: Option<Version>,
    /// The last version that the replica loaded completely.
    pub acked: Option<Version>,
    /// The version that its last answer refused, completely or in part.
    pub refused: Option<RefusedSnapshot>,
    /// The nonce that waits for an answer.
    pub outstanding: Option<Nonce>,
    /// Messages that violated the protocol (R10).
    pub protocol_errors: u64,
}

/// A set that a client has applied.
#[derive(Clone, Debug)]
pub struct AppliedSnapshot {
    /// The set.
    pub snapshot: Arc<Snapshot>,
    /// The revisions of the set that are not loaded.
    pub rejected: Vec<Rejection>,
}

/// A version that a client refused.
#[derive(Clone, Debug)]
pub struct RefusedSnapshot {
    /// The content of the version.
    pub snapshot: Arc<Snapshot>,
    /// Whether nothing of it was applied.
    pub whole: bool,
    /// The error.
    pub failure: Failure,
}

/// What metrics count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A version was acknowledged.
    Ack,
    /// A version was refused, completely or in part, with the stage of the first rejection.
    Nack(Stage),
    /// An answer to a superseded nonce.
    StaleNonce,
    /// An answer to a nonce that was never issued on the stream.
    UnknownNonce,
    /// An acknowledgement that names another version than that of its nonce.
    WrongVersion,
}

/// Identifies one response of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce {
    pub(super) stream: u64,
    pub(super) number: u64,
}

// === impl Report ===

impl Report {
    /// The snapshot that the last answer refused completely.
    pub fn refused_whole(&self) -> Option<&RefusedSnapshot> {
        self.refused.as_ref().filter(|r| r.whole)
    }

    /// Whether the last answer refused a snapshot completely.
    pub fn refuses_whole(&self) -> bool {
        self.refused_whole().is_some()
    }
}

// === impl Stage ===

impl Stage {
    /// Every stage, in the order of the wire's numbers.
    pub const ALL: [Stage; 11] = [
        Stage::Unspecified,
        Stage::Fetch,
        Stage::Verify,
        Stage::Compile,
        Stage::Link,
        Stage::Instantiate,
        Stage::Settings,
        Stage::SelfTest,
        Stage::Swap,
        Stage::Runtime,
        Stage::Context,
    ];

    /// For labels and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Unspecified => "unspecified",
            Stage::Fetch => "fetch",
            Stage::Verify => "verify",
            Stage::Compile => "compile",
            Stage::Link => "link",
            Stage::Instantiate => "instantiate",
            Stage::Settings => "settings",
            Stage::SelfTest => "selftest",
            Stage::Swap => "swap",
            Stage::Runtime => "runtime",
            Stage::Context => "context",
        }
    }
}

// === impl Nonce ===

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.stream, self.number)
    }
}

impl FromStr for Nonce {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        let (stream, number) = s.split_once('-').ok_or(())?;
        let nonce = Self {
            stream: u64::from_str_radix(stream, 16).map_err(|_| ())?,
            number: u64::from_str_radix(number, 16).map_err(|_| ())?,
        };
        // Only the form that is written: two texts of one nonce would not be compared as equal.
        (nonce.number > 0 && nonce.to_string() == s)
            .then_some(nonce)
            .ok_or(())
    }
}
