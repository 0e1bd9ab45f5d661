//! One stream between a client and the control plane: ordered, slow, and cut at times.

use std::collections::BTreeSet;

use assent_core::{Millis, Version, session::Session};

use crate::wire::{Claim, Hello};

/// One stream with both of its ends.
pub(crate) struct Link {
    pub(crate) client: usize,
    /// The control plane's life that it belongs to.
    pub(crate) epoch: u64,
    /// Its number there.
    pub(crate) number: u64,
    /// The control plane's end; none once that noticed its end.
    pub(crate) session: Option<Session>,
    pub(crate) hello: Hello,
    /// Nothing arrives any more, and nobody knows yet.
    pub(crate) down_cut: bool,
    pub(crate) up_cut: bool,
    pub(crate) last_down: Millis,
    pub(crate) last_up: Millis,
    pub(crate) last_report: Millis,
    pub(crate) sent: Sent,
    /// What the control plane may conclude from what it was told.
    pub(crate) claim: Claim,
    /// The same when the newest response went out.
    pub(crate) settled: Claim,
    /// What was believed of the client when it opened the stream.
    pub(crate) believed: Claim,
}

/// What was sent to the client.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) nonces: BTreeSet<String>,
    pub(crate) newest: Option<String>,
    pub(crate) version: Option<Version>,
    pub(crate) answered: bool,
    /// Snapshots that its session was given.
    pub(crate) offered: usize,
}

// === impl Link ===

impl Link {
    pub(crate) fn new(client: usize, epoch: u64, number: u64, hello: Hello) -> Self {
        Self {
            client,
            epoch,
            number,
            session: None,
            hello,
            down_cut: false,
            up_cut: false,
            last_down: Millis(0),
            last_up: Millis(0),
            last_report: Millis(0),
            sent: Sent::default(),
            claim: Claim::Nothing,
            settled: Claim::Nothing,
            believed: Claim::Nothing,
        }
    }

    pub(crate) fn cut(&mut self) {
        self.down_cut = true;
        self.up_cut = true;
    }
}

// === impl Sent ===

impl Sent {
    /// R6, R12, R19: one at a time, each nonce once, and never twice the same in a row.
    pub(crate) fn note(&mut self, nonce: String, version: Version) -> Result<(), String> {
        if self.newest.is_some() && !self.answered {
            return Err(format!(
                "R19: {nonce} goes out while {:?} waits",
                self.newest
            ));
        }
        if self.version == Some(version) {
            return Err(format!("R12: {version} is sent again"));
        }
        if !self.nonces.insert(nonce.clone()) {
            return Err(format!("R6: nonce {nonce} is used again"));
        }
        if self.nonces.len() > self.offered {
            return Err(format!(
                "I10: {} responses for {} snapshots",
                self.nonces.len(),
                self.offered
            ));
        }
        self.newest = Some(nonce);
        self.version = Some(version);
        self.answered = false;
        Ok(())
    }

    /// Whether an answer to `nonce` is one to the newest.
    pub(crate) fn is_newest(&self, nonce: &str) -> bool {
        self.newest.as_deref() == Some(nonce)
    }
}
