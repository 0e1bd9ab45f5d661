//! SHA-256 digests and snapshot versions, and how their input is framed.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, written `sha256:<64 lower-case hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The version of a snapshot, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version([u8; 32]);

/// Why a digest or version could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the form `sha256:<64 lower-case hex digits>`.
    #[error("not a digest of the form sha256:<64 lower-case hex digits>")]
    Digest,
    /// Not 64 lower-case hex digits.
    #[error("not a version of 64 lower-case hex digits")]
    Version,
}

/// Feeds a hash with fields whose lengths and counts are written, so that no two
/// different inputs share bytes.
#[derive(Clone, Debug)]
pub struct Framed(Sha256);

// === impl Digest ===

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A digest that was computed elsewhere.
    pub fn from_raw(raw: [u8; 32]) -> Self {
        Self(raw)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hex digits without the prefix: safe as a file name.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let hex = s.strip_prefix("sha256:").ok_or(Error::Digest)?;
        parse_hex(hex).map(Self).ok_or(Error::Digest)
    }
}

// === impl Version ===

impl Version {
    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 48 bits: exact in a floating-point gauge.
    pub fn gauge(&self) -> u64 {
        self.0[..6]
            .iter()
            .fold(0, |acc, byte| (acc << 8) | u64::from(*byte))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        parse_hex(s).map(Self).ok_or(Error::Version)
    }
}

// === impl Framed ===

impl Framed {
    /// Starts with the name of what is hashed, so that hashes of different things differ.
    pub fn new(domain: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(domain.as_bytes());
        Self(hash)
    }

    /// Bytes after their length.
    pub fn field(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    /// The number of things that follow.
    pub fn count(&mut self, count: usize) {
        let count = u32::try_from(count).expect("what is hashed must hold fewer than 2^32 bytes");
        self.u32(count);
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.update([value]);
    }

    /// Four bytes, big-endian.
    pub fn u32(&mut self, value: u32) {
        self.0.update(value.to_be_bytes());
    }

    /// A digest, which needs no length.
    pub fn raw(&mut self, digest: &Digest) {
        self.0.update(digest.0);
    }

    /// Eight bytes, big-endian.
    pub fn u64(&mut self, value: u64) {
        self.0.update(value.to_be_bytes());
    }

    /// Fields that were framed before.
    pub(crate) fn encoded(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything so far.
    pub fn digest(self) -> Digest {
        Digest(self.0.finalize().into())
    }

    pub(crate) fn version(self) -> Version {
        Version(self.0.finalize().into())
    }
}

fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    let lower = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let mut raw = [0; 32];
    (lower && hex::decode_to_slice(hex, &mut raw).is_ok()).then_some(raw)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn digests_are_read_strictly() {
        let text = Digest::of(b"").to_string();
        assert_eq!(
            text,
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(text.parse(), Ok(Digest::of(b"")));
        for bad in ["", "sha256:", "sha256:E3", &text[7..], &text.to_uppercase()] {
            assert_eq!(bad.parse::<Digest>(), Err(Error::Digest), "{bad}");
        }
        assert_eq!(
            format!("sha256:{}", "../".repeat(22)).parse::<Digest>(),
            Err(Error::Digest)
        );
    }

    #[test]
    fn a_gauge_is_the_first_48_bits() {
        let version: Version = format!("0102030405ff{}", "aa".repeat(26)).parse().unwrap();
        assert_eq!(version.gauge(), 0x0102_0304_05ff);
    }
}
