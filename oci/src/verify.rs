//! Signatures of artifacts in registries, as `cosign sign --key` creates them.
//!
//! This module does no IO: [`Keys`] are the trusted keys, and a `Check` takes one signature
//! after the other and returns the signers. `repository` fetches the signatures.

use std::collections::{BTreeMap, BTreeSet};

use assent_core::digest::Digest;
use base64::{Engine as _, engine::general_purpose::STANDARD};

mod bundle;
mod key;
mod simple;

use self::key::Key;
pub use self::key::{Error, Fingerprint};
pub(crate) use self::{bundle::SIGN_PREDICATE, simple::Signed};

/// Public keys, and how many of them must have signed.
#[derive(Clone, Debug)]
pub struct Keys {
    keys: Vec<Key>,
    all: bool,
    annotations: BTreeMap<String, String>,
}

/// Why an artifact does not count as signed. Contains nothing of a registry's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// There is no signature.
    #[error("it has no signature")]
    Unsigned,
    /// There are signatures, but not in a format of cosign.
    #[error("its signatures are not in a format of cosign")]
    Unreadable,
    /// None of the signatures is by a trusted key.
    #[error("it has {0} signature(s), none of them by a trusted key")]
    OtherKey(usize),
    /// A trusted key signed other content.
    #[error("a trusted key signed other content: the signature was copied or is outdated")]
    OtherContent,
    /// A trusted key signed without the required annotations.
    #[error("a trusted key signed it, but without the required annotations")]
    Annotations,
    /// Not all of the keys signed.
    #[error("only {signed} of the {wanted} keys signed it")]
    TooFew {
        /// Keys that signed.
        signed: usize,
        /// Keys that must sign.
        wanted: usize,
    },
    /// The module is not in a registry.
    #[error("only modules in a registry can be signed: push it to a registry and sign it there")]
    NoRegistry,
}

/// The content whose signatures are checked.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) manifest: &'a [u8],
    pub(crate) digest: Digest,
}

/// The signatures checked so far, and the result.
pub(crate) struct Check<'a> {
    keys: &'a Keys,
    subject: Subject<'a>,
    signers: BTreeSet<Fingerprint>,
    readable: usize,
    /// The most specific reason so far.
    mismatch: Mismatch,
}

/// Why one signature does not count; later variants are more specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mismatch {
    None,
    Unreadable,
    OtherKey,
    OtherContent,
    Annotations,
}

// === impl Keys ===

impl Keys {
    /// Any one of the keys must sign. Each text contains one or several keys as PEM.
    pub fn any_of<S: AsRef<str>>(pems: &[S]) -> Result<Self, Error> {
        let mut keys = Vec::new();
        for pem in pems {
            keys.extend(Key::all_from_pem(pem.as_ref())?);
        }
        match keys.is_empty() {
            true => Err(Error::None),
            false => Ok(Self {
                keys,
                all: false,
                annotations: BTreeMap::new(),
            }),
        }
    }

    /// Each of the keys must sign, with these annotations.
    pub fn all_of<S: AsRef<str>>(
        pems: &[S],
        annotations: BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let any = Self::any_of(pems)?;
        Ok(Self {
            all: true,
            annotations,
            ..any
        })
    }

    /// The fingerprints of the keys, for messages.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.keys.iter().map(Key::fingerprint)
    }

    /// The first key that made the signature.
    fn signer(&self, message: &[u8], signature: &[u8]) -> Option<Fingerprint> {
        let found = self.keys.iter().find(|key| key.signed(message, signature));
        found.map(Key::fingerprint)
    }

    fn annotated(&self, found: &serde_json::Map<String, serde_json::Value>) -> bool {
        self.annotations
            .iter()
            .all(|(name, value)| found.get(name).and_then(|v| v.as_str()) == Some(value.as_str()))
    }
}

// === impl Check ===

impl<'a> Check<'a> {
    pub(crate) fn new(keys: &'a Keys, subject: Subject<'a>) -> Self {
        Self {
            keys,
            subject,
            signers: BTreeSet::new(),
            readable: 0,
            mismatch: Mismatch::None,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'a> {
        self.subject
    }

    /// Checks a signature in the simple format: a payload that contains the digest.
    pub(crate) fn simple(&mut self, payload: &[u8], signature: &str) {
        self.note(simple::check(self.keys, self.subject, payload, signature));
    }

    /// Checks a bundle.
    pub(crate) fn bundle(&mut self, json: &[u8]) {
        self.note(bundle::check(self.keys, self.subject, json));
    }

    /// Counts something that is not a signature.
    pub(crate) fn unreadable(&mut self) {
        self.note(Err(Mismatch::Unreadable));
    }

    /// Whether no further signature is needed.
    pub(crate) fn is_done(&self) -> bool {
        self.signers.len() >= self.wanted()
    }

    /// The signers.
    pub(crate) fn finish(self) -> Result<BTreeSet<Fingerprint>, Rejected> {
        if self.is_done() {
            return Ok(self.signers);
        }
        if !self.signers.is_empty() {
            return Err(Rejected::TooFew {
                signed: self.signers.len(),
                wanted: self.wanted(),
            });
        }
        Err(match self.mismatch {
            Mismatch::None => Rejected::Unsigned,
            Mismatch::Unreadable => Rejected::Unreadable,
            Mismatch::OtherKey => Rejected::OtherKey(self.readable),
            Mismatch::OtherContent => Rejected::OtherContent,
            Mismatch::Annotations => Rejected::Annotations,
        })
    }

    fn wanted(&self) -> usize {
        match self.keys.all {
            true => self.keys.fingerprints().collect::<BTreeSet<_>>().len(),
            false => 1,
        }
    }

    fn note(&mut self, outcome: Result<Fingerprint, Mismatch>) {
        if outcome != Err(Mismatch::Unreadable) {
            self.readable += 1;
        }
        match outcome {
            Ok(signer) => {
                self.signers.insert(signer);
            }
            Err(mismatch) => self.mismatch = self.mismatch.max(mismatch),
        }
    }
}

/// Some tools insert line breaks, which cosign accepts.
fn decode(base64: &str) -> Result<Vec<u8>, Mismatch> {
    let text: String = base64.split(['\n', '\r']).collect();
    STANDARD
        .decode(text.trim())
        .map_err(|_| Mismatch::Unreadable)
}

#[cfg(test)]
mod tests;
