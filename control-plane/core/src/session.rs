//! One stream as a state machine: what to send next, and what an answer means.
//!
//! Both kinds of stream run on it. At most one response is outstanding; a client that does
//! not answer costs one pointer to the newest snapshot, however many were published.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use crate::{
    digest::{Digest, Version},
    policy::RevisionId,
    snapshot::{Delta, Snapshot},
};

mod claim;
#[cfg(test)]
mod tests;

use claim::Claim;

/// More rejections than this in one answer count as truncated.
pub const MAX_REJECTED: usize = 64;

/// The state of one stream.
#[derive(Debug)]
pub struct Session {
    kind: StreamKind,
    stream: u64,
    issued: u64,
    target: Option<Arc<Snapshot>>,
    /// What the client had before the newest response.
    before: Held,
    newest: Option<Issued>,
    protocol_errors: u64,
}

/// How responses are made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Differences.
    Delta,
    /// The full set each time.
    StateOfTheWorld,
}

/// What a client says of itself in its first message.
#[derive(Clone, Debug, Default)]
pub struct InitialRequest {
    /// The last version that it loaded whole, as it wrote it.
    pub version: String,
    /// Revisions that it holds.
    pub held: BTreeMap<String, Digest>,
}

/// What happens to a session.
#[derive(Clone, Debug)]
pub enum Input {
    /// There is a snapshot, the first or a newer one.
    Publish(Arc<Snapshot>),
    /// A message after the first.
    Answer(Answer),
}

/// A message after the first, as the client wrote it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The nonce that it answers.
    pub nonce: String,
    /// The last version that it loaded whole.
    pub version: String,
    /// Present = NACK.
    pub error: Option<Failure>,
    /// Revisions that it could not load.
    pub rejected: Vec<Rejection>,
    /// There are more than it lists.
    pub truncated: bool,
}

/// A status in the client's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A gRPC code.
    pub code: i32,
    /// What it said, cut to a bounded length by whoever read it.
    pub message: String,
}

/// One revision that a client could not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Which one.
    pub revision: RevisionId,
    /// Where it failed.
    pub stage: Stage,
    /// Why.
    pub failure: Failure,
    /// The client tries again by itself.
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
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this response.
    Send(Response),
    /// The replica's state changed.
    Report(Report),
    /// Count this.
    Count(Event),
}

/// One response; how it is encoded is not decided here.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its nonce, unique on the stream.
    pub nonce: Nonce,
    /// The set that the client has once it took this.
    pub to: Arc<Snapshot>,
    /// What has to travel for that.
    pub body: Body,
}

/// What travels.
#[derive(Clone, Debug)]
pub enum Body {
    /// The whole set.
    Full,
    /// Nothing: the client has it.
    NoChange,
    /// The difference to a set that the client took.
    Delta(Arc<Snapshot>),
    /// The difference to what the client said it holds, with all routes.
    Claim(Delta),
}

/// What a stream's replica has and said.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The set that it took, and what of it is not loaded; none before its first answer.
    pub applied: Option<AppliedSnapshot>,
    /// The last version sent.
    pub sent: Option<Version>,
    /// The last version loaded whole.
    pub acked: Option<Version>,
    /// The version that its last answer refused, whole or in part.
    pub refused: Option<RefusedSnapshot>,
    /// The nonce that waits for an answer.
    pub outstanding: Option<Nonce>,
    /// Messages that made no sense.
    pub protocol_errors: u64,
}

/// A set that a client took.
#[derive(Clone, Debug)]
pub struct AppliedSnapshot {
    /// All of it.
    pub snapshot: Arc<Snapshot>,
    /// What of it is not loaded.
    pub rejected: Vec<Rejection>,
}

/// A version that a client refused.
#[derive(Clone, Debug)]
pub struct RefusedSnapshot {
    /// Its content.
    pub snapshot: Arc<Snapshot>,
    /// True where nothing of it was applied.
    pub whole: bool,
    /// Why.
    pub failure: Failure,
}

/// What metrics count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A version was acknowledged.
    Ack,
    /// A version was refused, whole or in part; where the first rejection happened.
    Nack(Stage),
    /// An answer to a superseded nonce.
    StaleNonce,
    /// An answer to a nonce that was never issued here.
    UnknownNonce,
    /// An acknowledgement that names another version than its nonce's.
    WrongVersion,
}

/// Names one response of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce {
    stream: u64,
    number: u64,
}

#[derive(Debug, Default)]
struct Held {
    set: HeldSet,
    rejected: Vec<Rejection>,
    acked: Option<Version>,
}

#[derive(Debug)]
enum HeldSet {
    /// What the client said; `version` is none once that turned out to be wrong.
    Claim {
        version: Option<Version>,
        claim: Claim,
    },
    Applied(Arc<Snapshot>),
}

#[derive(Debug)]
struct Issued {
    number: u64,
    snapshot: Arc<Snapshot>,
    verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Applied,
    Partial(Vec<Rejection>, Failure),
    Refused(Failure),
}

// === impl Session ===

impl Session {
    /// A stream that just opened. `stream` must be unique in this process, so that a nonce
    /// of an earlier stream is never applied for one of this.
    pub fn new(kind: StreamKind, stream: u64, first: InitialRequest) -> Self {
        let set = HeldSet::Claim {
            version: first.version.parse().ok(),
            claim: Claim::Map(first.held),
        };
        Self {
            kind,
            stream,
            issued: 0,
            target: None,
            before: Held {
                set,
                ..Held::default()
            },
            newest: None,
            protocol_errors: 0,
        }
    }

    /// Takes in what happened and appends what is to be done.
    pub fn step(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Publish(snapshot) => self.target = Some(snapshot),
            Input::Answer(answer) => self.answer(answer, out),
        }
        self.send_next(out);
    }

    /// Whether a response waits for its answer.
    pub fn is_outstanding(&self) -> bool {
        self.newest.as_ref().is_some_and(|n| n.verdict.is_none())
    }

    /// What the replica has and said, as far as this stream knows.
    pub fn report(&self) -> Report {
        let outstanding = self.newest.as_ref().filter(|n| n.verdict.is_none());
        Report {
            applied: self.applied(),
            sent: self.newest.as_ref().map(|n| n.snapshot.version()),
            acked: self.acked(),
            refused: self.refused(),
            outstanding: outstanding.map(|n| self.nonce(n.number)),
            protocol_errors: self.protocol_errors,
        }
    }

    fn answer(&mut self, answer: Answer, out: &mut Vec<Output>) {
        // The nonce is judged first: only an answer to the newest one is an answer.
        if answer.nonce.is_empty() {
            return;
        }
        let number = match answer.nonce.parse::<Nonce>() {
            Ok(nonce) if nonce.stream == self.stream => nonce.number,
            _ => return self.protocol_error(Event::UnknownNonce, out),
        };
        let Some(newest) = self.newest.as_mut().filter(|n| number <= n.number) else {
            return self.protocol_error(Event::UnknownNonce, out);
        };
        if number < newest.number {
            return out.push(Output::Count(Event::StaleNonce));
        }
        let Some(verdict) = evaluate(answer, &newest.snapshot) else {
            return self.protocol_error(Event::WrongVersion, out);
        };
        if newest.verdict.as_ref() == Some(&verdict) {
            return;
        }
        out.push(Output::Count(verdict.event()));
        newest.verdict = Some(verdict);
        out.push(Output::Report(self.report()));
    }

    fn protocol_error(&mut self, event: Event, out: &mut Vec<Output>) {
        self.protocol_errors += 1;
        out.push(Output::Count(event));
        out.push(Output::Report(self.report()));
    }

    fn send_next(&mut self, out: &mut Vec<Output>) {
        let Some(target) = self.target.clone() else {
            return;
        };
        if self.is_outstanding() {
            return;
        }
        match &self.newest {
            // The newest response already offered this set: an answer to it, whatever it
            // was, is never followed by the same again.
            Some(newest) if newest.snapshot.version() == target.version() => return,
            Some(_) => {}
            None if self.confirms_silently(&target) => {
                if self.before.acked != Some(target.version()) {
                    self.before.acked = Some(target.version());
                    self.before.set = HeldSet::Applied(target);
                    out.push(Output::Report(self.report()));
                }
                return;
            }
            None => {}
        }
        self.settle();
        if let HeldSet::Claim { claim, .. } = &mut self.before.set {
            claim.compact(&target);
        }
        let body = self.body(&target);
        self.issued += 1;
        self.newest = Some(Issued {
            number: self.issued,
            snapshot: target.clone(),
            verdict: None,
        });
        out.push(Output::Send(Response {
            nonce: self.nonce(self.issued),
            to: target,
            body,
        }));
        out.push(Output::Report(self.report()));
    }

    /// On a state-of-the-world stream an empty list would mean "remove everything", so one
    /// who has the current version hears nothing.
    fn confirms_silently(&self, target: &Snapshot) -> bool {
        let holds = match &self.before.set {
            HeldSet::Claim { version, .. } => *version == Some(target.version()),
            HeldSet::Applied(snapshot) => snapshot.version() == target.version(),
        };
        self.kind == StreamKind::StateOfTheWorld && holds
    }

    /// Folds the answered response into what the client has.
    fn settle(&mut self) {
        let Some(newest) = self.newest.take() else {
            return;
        };
        match newest.verdict {
            Some(Verdict::Applied) => {
                self.before = Held {
                    acked: Some(newest.snapshot.version()),
                    set: HeldSet::Applied(newest.snapshot),
                    rejected: Vec::new(),
                }
            }
            Some(Verdict::Partial(rejected, _)) => {
                self.before.set = HeldSet::Applied(newest.snapshot);
                self.before.rejected = rejected;
            }
            Some(Verdict::Refused(_)) | None => {
                // Whoever refused a confirmation does not hold what its version says.
                if let HeldSet::Claim { version, .. } = &mut self.before.set {
                    *version = None;
                }
            }
        }
    }

    fn body(&self, target: &Arc<Snapshot>) -> Body {
        if self.kind == StreamKind::StateOfTheWorld {
            return Body::Full;
        }
        match &self.before.set {
            HeldSet::Applied(from) if from.version() == target.version() => Body::NoChange,
            HeldSet::Applied(from) => Body::Delta(from.clone()),
            // A version without a map is of a client that holds more than a map may list.
            HeldSet::Claim { version, claim }
                if *version == Some(target.version())
                    && (claim.is_empty() || claim.is_exactly(target)) =>
            {
                Body::NoChange
            }
            HeldSet::Claim { claim, .. } if claim.is_empty() => Body::Full,
            HeldSet::Claim { claim, .. } => Body::Claim(claim.delta_to(target)),
        }
    }

    fn applied(&self) -> Option<AppliedSnapshot> {
        let newest = self.newest.as_ref();
        match newest.and_then(|n| n.verdict.as_ref().map(|v| (n, v))) {
            Some((n, Verdict::Applied)) => Some(AppliedSnapshot {
                snapshot: n.snapshot.clone(),
                rejected: Vec::new(),
            }),
            Some((n, Verdict::Partial(rejected, _))) => Some(AppliedSnapshot {
                snapshot: n.snapshot.clone(),
                rejected: rejected.clone(),
            }),
            Some((_, Verdict::Refused(_))) | None => match &self.before.set {
                HeldSet::Applied(snapshot) => Some(AppliedSnapshot {
                    snapshot: snapshot.clone(),
                    rejected: self.before.rejected.clone(),
                }),
                HeldSet::Claim { .. } => None,
            },
        }
    }

    fn acked(&self) -> Option<Version> {
        match &self.newest {
            Some(Issued {
                verdict: Some(Verdict::Applied),
                snapshot,
                ..
            }) => Some(snapshot.version()),
            _ => self.before.acked,
        }
    }

    fn refused(&self) -> Option<RefusedSnapshot> {
        let newest = self.newest.as_ref()?;
        let (whole, failure) = match newest.verdict.as_ref()? {
            Verdict::Applied => return None,
            Verdict::Partial(_, failure) => (false, failure),
            Verdict::Refused(failure) => (true, failure),
        };
        Some(RefusedSnapshot {
            snapshot: newest.snapshot.clone(),
            whole,
            failure: failure.clone(),
        })
    }

    fn nonce(&self, number: u64) -> Nonce {
        Nonce {
            stream: self.stream,
            number,
        }
    }
}

// === impl Report ===

impl Report {
    /// The snapshot that the last answer refused as a whole.
    pub fn refused_whole(&self) -> Option<&RefusedSnapshot> {
        self.refused.as_ref().filter(|r| r.whole)
    }

    /// Whether the last answer refused a snapshot as a whole.
    pub fn refuses_whole(&self) -> bool {
        self.refused_whole().is_some()
    }
}

// === impl HeldSet ===

impl Default for HeldSet {
    fn default() -> Self {
        HeldSet::Claim {
            version: None,
            claim: Claim::default(),
        }
    }
}

// === impl Verdict ===

impl Verdict {
    fn event(&self) -> Event {
        match self {
            Verdict::Applied => Event::Ack,
            Verdict::Partial(rejected, _) => {
                Event::Nack(rejected.first().map(|r| r.stage).unwrap_or_default())
            }
            Verdict::Refused(_) => Event::Nack(Stage::Unspecified),
        }
    }
}

// === impl Stage ===

impl Stage {
    /// Every stage, in the order of the wire's numbers.
    pub const ALL: [Stage; 10] = [
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
        // Only what we would have written: no leading zeros, no signs.
        (nonce.number > 0 && nonce.to_string() == s)
            .then_some(nonce)
            .ok_or(())
    }
}

/// What an answer to `snapshot` means; none where it contradicts itself.
fn evaluate(answer: Answer, snapshot: &Snapshot) -> Option<Verdict> {
    let Answer {
        version,
        error,
        mut rejected,
        truncated,
        ..
    } = answer;
    if error.is_none() && rejected.is_empty() && !truncated {
        let named = version.parse().ok();
        let fits = version.is_empty() || named == Some(snapshot.version());
        return fits.then_some(Verdict::Applied);
    }
    let too_many = rejected.len() > MAX_REJECTED;
    rejected.retain(|r| snapshot.contains(r.revision.as_str()));
    rejected.sort_by(|a, b| a.revision.cmp(&b.revision));
    rejected.dedup_by(|a, b| a.revision == b.revision);
    let failure = error
        .or_else(|| rejected.first().map(|r| r.failure.clone()))
        .unwrap_or_default();
    if truncated || too_many || rejected.is_empty() {
        return Some(Verdict::Refused(failure));
    }
    Some(Verdict::Partial(rejected, failure))
}
