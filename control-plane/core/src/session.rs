//! One stream as a state machine: what to send next, and what an answer means.
//!
//! Both kinds of stream use it. At most one response is outstanding. A client that does not
//! answer costs one pointer to the newest snapshot, however many were published meanwhile.

use std::sync::Arc;

use crate::{digest::Version, snapshot::Snapshot};

mod claim;
mod message;
#[cfg(test)]
mod tests;

use claim::Claim;
pub use message::{
    Answer, AppliedSnapshot, Body, Event, Failure, InitialRequest, Input, Nonce, Output,
    RefusedSnapshot, Rejection, Report, Response, Stage, StreamKind,
};

/// More rejections than this in one answer count as truncated (R9, R36): the memory that one
/// client can take is bounded.
pub const MAX_REJECTED: usize = 64;

/// The state of one stream.
#[derive(Debug)]
pub struct Session {
    kind: StreamKind,
    stream: u64,
    /// The number of the last response. Numbers are never reused (R6).
    issued: u64,
    /// The newest snapshot, whether or not it was sent.
    target: Option<Arc<Snapshot>>,
    /// What the client had before the newest response. A late NACK returns to it (R17).
    before: Held,
    /// The newest response; only an answer to it is an ACK or a NACK.
    newest: Option<Issued>,
    protocol_errors: u64,
}

/// What a client has.
#[derive(Debug, Default)]
struct Held {
    set: HeldSet,
    rejected: Vec<Rejection>,
    acked: Option<Version>,
}

#[derive(Debug)]
enum HeldSet {
    /// What the first message claims. `version` is `None` once it turned out to be wrong.
    Claim {
        version: Option<Version>,
        claim: Claim,
    },
    /// A snapshot that the client acknowledged, at least in part.
    Applied(Arc<Snapshot>),
}

/// A response that was sent.
#[derive(Debug)]
struct Issued {
    number: u64,
    snapshot: Arc<Snapshot>,
    /// `None` while it is outstanding.
    verdict: Option<Verdict>,
}

/// What the last answer to a response means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Everything is served.
    Applied,
    /// Everything besides these revisions is served.
    Partial(Vec<Rejection>, Failure),
    /// Nothing of it was applied.
    Refused(Failure),
}

// === impl Session ===

impl Session {
    /// A stream that has just opened. `stream` must be unique in this process, so that a nonce
    /// of an earlier stream is never mistaken for one of this stream (R5).
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

    /// Applies an input and appends what has to be done.
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

    /// The state of the replica, as far as this stream knows it.
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
        // The nonce is checked first: only an answer to the newest one is an ACK or a NACK.
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
            // The newest response already offered this set. Whatever the answer was, the same
            // set is not sent again on this stream (R12).
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

    /// On a state-of-the-world stream an empty list would mean "remove everything", so that a
    /// client with the current version gets no response.
    fn confirms_silently(&self, target: &Snapshot) -> bool {
        let holds = match &self.before.set {
            HeldSet::Claim { version, .. } => *version == Some(target.version()),
            HeldSet::Applied(snapshot) => snapshot.version() == target.version(),
        };
        self.kind == StreamKind::StateOfTheWorld && holds
    }

    /// Merges the answered response into what the client has.
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
                // A client that refused a confirmation does not hold what its version claims.
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
            // A client that holds more revisions than a map may list sends a version alone.
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

/// What an answer to `snapshot` means; `None` if it contradicts itself.
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
