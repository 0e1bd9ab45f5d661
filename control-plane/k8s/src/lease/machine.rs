//! Decides when to read and write the Lease, and which process leads.

use std::time::Duration;

use assent_core::Millis;

use super::{Leader, Role, Timing};

#[cfg(test)]
mod tests;

/// The election as one process sees it.
pub(super) struct Machine {
    identity: String,
    address: String,
    timing: Timing,
    /// The first term of a Lease that this process creates.
    first_term: u64,
    seen: Option<Seen>,
    /// Whether a Lease was ever seen.
    met: bool,
    /// The highest term that was ever seen or tried.
    highest: u64,
    /// The highest term that this process tried to write.
    tried: Option<u64>,
    held: Option<Held>,
    /// The highest term that evaluators have seen.
    outranked: u64,
    /// When this process last began a term because of that.
    raised: Option<Millis>,
    flight: Option<Flight>,
    /// The last response was to a write of this process, so its version is the newest.
    sure: bool,
    /// When to send the next request.
    next: Millis,
    leaving: bool,
    reported: Role,
}

/// The content of the Lease, as the API server returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) version: String,
    pub(super) holder: Option<String>,
    pub(super) address: String,
    pub(super) transitions: u64,
    pub(super) lease: Duration,
}

/// A write to the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    /// The version that it follows from; `None` if there is no Lease yet.
    pub(super) version: Option<String>,
    pub(super) holder: Option<String>,
    pub(super) address: String,
    pub(super) transitions: u64,
    pub(super) lease: Duration,
    /// Whether a term begins with it.
    pub(super) acquires: bool,
}

#[derive(Debug)]
pub(super) enum Input {
    /// Time passed.
    Tick,
    /// A read ended: a record, no Lease, or no response.
    Read(Option<Option<Record>>),
    /// A write ended; `None` if it failed or its outcome is unknown.
    Written(Option<Record>),
    /// Evaluators have seen this term. They refuse a lower one.
    Outranked(u64),
    /// The process ends.
    Leave,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Read,
    Write(Draft),
    /// The role changed.
    Role(Role),
    /// The process has left the election.
    Left,
}

struct Seen {
    record: Option<Record>,
    /// When it was seen first, by this process's clock.
    since: Millis,
}

struct Held {
    term: u64,
    until: Millis,
}

enum Flight {
    Read,
    Write {
        sent: Millis,
        term: u64,
        acquires: bool,
        releases: bool,
    },
}

/// The longest lease duration in a record that is respected: a holder must not lock the others
/// out for ever.
const LONGEST: Duration = Duration::from_secs(120);

/// Evaluators that have seen different terms cause several new ones. One that lies about it must
/// not cause one after the other: each closes all streams.
const RAISE_INTERVAL: Duration = Duration::from_secs(60);

// === impl Machine ===

impl Machine {
    pub(super) fn new(identity: &str, address: &str, timing: Timing, first_term: u64) -> Self {
        Self {
            identity: identity.to_owned(),
            address: address.to_owned(),
            timing,
            first_term,
            seen: None,
            met: false,
            highest: 0,
            tried: None,
            held: None,
            outranked: 0,
            raised: None,
            flight: None,
            sure: false,
            next: Millis::default(),
            leaving: false,
            reported: Role::Follower { leader: None },
        }
    }

    /// The term in which this process leads, and when that ends unless it is renewed.
    pub(super) fn held(&self) -> Option<(u64, Millis)> {
        self.held.as_ref().map(|held| (held.term, held.until))
    }

    /// When to step at the latest; `None` while only a response can change something.
    pub(super) fn deadline(&self) -> Option<Millis> {
        let ends = self.held.as_ref().map(|held| held.until);
        let asks = self.flight.is_none().then_some(self.next);
        ends.into_iter().chain(asks).min()
    }

    pub(super) fn step(&mut self, now: Millis, input: Input, out: &mut Vec<Output>) {
        if self.held.as_ref().is_some_and(|held| held.until <= now) {
            self.held = None;
        }
        let mut writes = None;
        let mut left = false;
        match input {
            Input::Tick => {}
            Input::Leave => self.leaving = true,
            Input::Outranked(term) => self.outranked = self.outranked.max(term),
            Input::Read(answer) => {
                self.flight = None;
                match answer {
                    Some(record) => writes = self.read(now, record),
                    None => left = self.failed(now),
                }
            }
            Input::Written(answer) => match (self.flight.take(), answer) {
                (Some(Flight::Write { releases: true, .. }), _) => left = true,
                (Some(flight), Some(record)) => self.written(now, flight, record),
                _ => left = self.failed(now),
            },
        }
        let asks = if writes.is_none() && !left {
            self.ask(now, &mut left)
        } else {
            writes.map(Output::Write)
        };
        if let Some(Output::Write(draft)) = &asks {
            self.send(now, draft);
        }
        // The loss of leadership is reported before anything else is done.
        self.report_role(now, out);
        out.extend(asks);
        if left {
            out.push(Output::Left);
        }
    }

    /// The next request, if it is time for one.
    fn ask(&mut self, now: Millis, left: &mut bool) -> Option<Output> {
        let writing = matches!(self.flight, Some(Flight::Write { .. }));
        if self.leaving && !writing && self.held.is_none() {
            *left = true;
            return None;
        }
        if self.flight.is_some() || (!self.leaving && now < self.next) {
            return None;
        }
        if self.sure {
            let write = self.follow_up(now);
            if write.is_some() {
                return write.map(Output::Write);
            }
        }
        self.flight = Some(Flight::Read);
        Some(Output::Read)
    }

    /// Renews or releases the held Lease, with the version that the last write made.
    fn follow_up(&mut self, now: Millis) -> Option<Draft> {
        let held = self.held.as_ref()?.term;
        let version = self.seen.as_ref()?.record.as_ref()?.version.clone();
        Some(self.renewal(now, Some(version), held))
    }

    /// Renews a term or, if evaluators have seen a higher one, begins another above that. Both
    /// follow from the version of a Lease that this process holds: a process that has lost it without
    /// noticing writes neither.
    fn renewal(&mut self, now: Millis, version: Option<String>, held: u64) -> Draft {
        let rested = self.raised.is_none_or(|at| now.since(at) >= RAISE_INTERVAL);
        if self.outranked <= held || !rested || self.leaving {
            return self.draft(version, held, false);
        }
        self.raised = Some(now);
        self.draft(version, self.outranked.max(self.highest) + 1, true)
    }

    /// Takes in a record, and returns what to write at once, if anything.
    fn read(&mut self, now: Millis, record: Option<Record>) -> Option<Draft> {
        let first = self.seen.is_none();
        self.observe(now, record);
        self.next = now + self.timing.retry;
        let record = self.seen.as_ref().and_then(|seen| seen.record.clone());
        let version = record.as_ref().map(|record| record.version.clone());
        if let Some(held) = self.held.as_ref().map(|held| held.term) {
            // In another term another process holds it, even under the same name.
            let same = |record: &Record| {
                record.transitions == held && record.holder.as_ref() == Some(&self.identity)
            };
            if record.as_ref().is_none_or(same) {
                return Some(self.renewal(now, version, held));
            }
            self.held = None;
            return None;
        }
        if self.leaving || !self.may_take(now, record.as_ref(), first) {
            return None;
        }
        let term = match record {
            Some(_) => self.highest + 1,
            None => self.first_term.max(self.highest + 1),
        };
        Some(self.draft(version, term, true))
    }

    fn may_take(&self, now: Millis, record: Option<&Record>, first: bool) -> bool {
        let unchanged = self.seen.as_ref().map(|seen| now.since(seen.since));
        let unchanged = unchanged.unwrap_or_default();
        match record {
            // A deleted Lease may still have a leader, which will create it again.
            None => !self.met || unchanged >= self.timing.lease,
            Some(record) => match &record.holder {
                None => true,
                Some(holder) if *holder == self.identity => {
                    // Held since before a restart, or by a write whose response was lost. A
                    // higher term than this process ever tried is another process of its name.
                    let ours = first || self.tried >= Some(record.transitions);
                    ours || unchanged >= self.patience(record)
                }
                Some(_) => unchanged >= self.patience(record),
            },
        }
    }

    /// How long a record must be unchanged: the longer of the record's duration and this
    /// process's own.
    fn patience(&self, record: &Record) -> Duration {
        record.lease.min(LONGEST).max(self.timing.lease)
    }

    fn written(&mut self, now: Millis, flight: Flight, record: Record) {
        let Flight::Write {
            sent,
            term,
            acquires,
            ..
        } = flight
        else {
            return;
        };
        self.observe(now, Some(record));
        // Counted from the sending: other processes saw the write later than that.
        let until = sent + self.timing.renew;
        // A renewal does not restore a term that ended meanwhile: the next one is a new term.
        if until <= now || (!acquires && self.held.is_none()) {
            self.sure = false;
            self.next = now;
            return;
        }
        self.held = Some(Held { term, until });
        self.sure = true;
        self.next = (sent + self.timing.retry).max(now);
    }

    /// A request failed, and nothing new is known. True if the process is leaving.
    fn failed(&mut self, now: Millis) -> bool {
        self.sure = false;
        self.next = now + self.timing.retry;
        self.leaving
    }

    fn observe(&mut self, now: Millis, record: Option<Record>) {
        if let Some(record) = &record {
            self.met = true;
            self.highest = self.highest.max(record.transitions);
        }
        let version = |record: &Option<Record>| record.as_ref().map(|of| of.version.clone());
        let same = |seen: &Seen| version(&seen.record) == version(&record);
        if !self.seen.as_ref().is_some_and(same) {
            self.seen = Some(Seen { record, since: now });
        }
    }

    fn draft(&self, version: Option<String>, term: u64, acquires: bool) -> Draft {
        Draft {
            version,
            holder: (!self.leaving).then(|| self.identity.clone()),
            address: self.address.clone(),
            transitions: term,
            lease: self.timing.lease,
            acquires,
        }
    }

    fn send(&mut self, now: Millis, draft: &Draft) {
        self.highest = self.highest.max(draft.transitions);
        self.tried = self.tried.max(Some(draft.transitions));
        let releases = draft.holder.is_none();
        if releases {
            self.held = None;
        }
        self.flight = Some(Flight::Write {
            sent: now,
            term: draft.transitions,
            acquires: draft.acquires,
            releases,
        });
    }

    fn report_role(&mut self, now: Millis, out: &mut Vec<Output>) {
        let role = match &self.held {
            Some(held) => Role::Leader {
                transitions: held.term,
            },
            None => Role::Follower {
                leader: self.leader(now),
            },
        };
        if role != self.reported {
            self.reported = role.clone();
            out.push(Output::Role(role));
        }
    }

    /// The other process that leads; none if its record has not changed for too long.
    fn leader(&self, now: Millis) -> Option<Leader> {
        let seen = self.seen.as_ref()?;
        let record = seen.record.as_ref()?;
        let alive = now.since(seen.since) < self.patience(record);
        let holder = record.holder.as_ref();
        let other = holder.filter(|holder| alive && **holder != self.identity)?;
        Some(Leader {
            identity: other.clone(),
            address: record.address.clone(),
        })
    }
}
