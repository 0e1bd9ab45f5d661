//! Signatures of what lies in registries, as `cosign sign --key` makes them.
//!
//! Pure: [`Keys`] say who is trusted, a `Check` is shown one signature after the other
//! and says at the end who signed. Fetching signatures is the business of `pull`.

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

/// Why something is not taken as signed. Repeats nothing of what a registry answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Nobody signed it.
    #[error("it has no signature")]
    Unsigned,
    /// There is something where signatures are, but none of cosign's.
    #[error("its signatures can not be read as those of cosign")]
    Unreadable,
    /// Somebody else signed it.
    #[error("it has {0} signature(s), none of them by a trusted key")]
    OtherKey(usize),
    /// A trusted key signed something else.
    #[error("a trusted key signed, but for other content: the signature was copied or is old")]
    OtherContent,
    /// A trusted key signed without the annotations that are asked for.
    #[error("a trusted key signed, but without the annotations that are asked for")]
    Annotations,
    /// Not all of the keys signed.
    #[error("only {signed} of the {wanted} keys signed it")]
    TooFew {
        /// Keys that did.
        signed: usize,
        /// Keys that must.
        wanted: usize,
    },
    /// Not from a registry.
    #[error("only what is in a registry can carry a signature: push it to one, and sign it there")]
    NoRegistry,
}

/// What is to be signed.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) manifest: &'a [u8],
    pub(crate) digest: Digest,
}

/// Signatures that were looked at, and what they came to.
pub(crate) struct Check<'a> {
    keys: &'a Keys,
    subject: Subject<'a>,
    signers: BTreeSet<Fingerprint>,
    readable: usize,
    /// The most telling reason so far.
    doubt: Doubt,
}

/// Why one signature did not count; later ones tell more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    None,
    Unreadable,
    OtherKey,
    OtherContent,
    Annotations,
}

// === impl Keys ===

impl Keys {
    /// Trusts what any one of the keys signed. Each text holds one key or several, PEM.
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

    /// Trusts only what each of the keys signed, with these annotations.
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

    /// The keys by name, for messages.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.keys.iter().map(Key::fingerprint)
    }

    /// The first key whose signature it is.
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
            doubt: Doubt::None,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'a> {
        self.subject
    }

    /// Looks at a signature of the simple form: a payload that names the digest.
    pub(crate) fn simple(&mut self, payload: &[u8], signature: &str) {
        self.note(simple::check(self.keys, self.subject, payload, signature));
    }

    /// Looks at a bundle.
    pub(crate) fn bundle(&mut self, json: &[u8]) {
        self.note(bundle::check(self.keys, self.subject, json));
    }

    /// Something is there that is no signature.
    pub(crate) fn unreadable(&mut self) {
        self.note(Err(Doubt::Unreadable));
    }

    /// Whether further signatures would change nothing.
    pub(crate) fn is_done(&self) -> bool {
        self.signers.len() >= self.wanted()
    }

    /// Who signed.
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
        Err(match self.doubt {
            Doubt::None => Rejected::Unsigned,
            Doubt::Unreadable => Rejected::Unreadable,
            Doubt::OtherKey => Rejected::OtherKey(self.readable),
            Doubt::OtherContent => Rejected::OtherContent,
            Doubt::Annotations => Rejected::Annotations,
        })
    }

    fn wanted(&self) -> usize {
        match self.keys.all {
            true => self.keys.fingerprints().collect::<BTreeSet<_>>().len(),
            false => 1,
        }
    }

    fn note(&mut self, outcome: Result<Fingerprint, Doubt>) {
        if outcome != Err(Doubt::Unreadable) {
            self.readable += 1;
        }
        match outcome {
            Ok(signer) => {
                self.signers.insert(signer);
            }
            Err(doubt) => self.doubt = self.doubt.max(doubt),
        }
    }
}

/// Some tools break lines, and cosign reads what they write.
fn decode(base64: &str) -> Result<Vec<u8>, Doubt> {
    let text: String = base64.split(['\n', '\r']).collect();
    STANDARD.decode(text.trim()).map_err(|_| Doubt::Unreadable)
}

#[cfg(test)]
mod tests;
