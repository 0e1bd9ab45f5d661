//! What shows that the set on disk is the one that was written.

use std::{fs, io, path::Path};

use assent_core::Digest;
use aws_lc_rs::hmac;

use super::{Error, io_error};

/// How the set on disk is sealed.
pub(crate) enum Seal {
    /// By its digest: damage is noticed, a forgery is not.
    Digest,
    /// By a key that is not in the directory: who can write there, but does not have the key, can't forge a set. An
    /// older set of the same PolicyServer can still be put back.
    Key {
        /// Boxed: it is a kilobyte of prepared state.
        key: Box<hmac::Key>,
        policy_server: String,
    },
}

/// First lines of the set's file; the number changes with its format.
pub(super) const BY_DIGEST: &[u8] = b"assent-set-1\n";
const BY_KEY: &[u8] = b"assent-set-2\n";

/// Shorter keys could be guessed.
const SHORTEST_KEY: usize = 32;

// === impl Seal ===

impl Seal {
    /// By the key in this file. Without a file there is no key: it may come from a Secret that is optional.
    pub(crate) fn read(path: &Path, policy_server: &str) -> Result<Self, Error> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::info!(path = %path.display(), "there is no key for the set on disk: it is not authenticated");
                return Ok(Self::Digest);
            }
            Err(error) => return Err(io_error("read", path)(error)),
        };
        let key = bytes.trim_ascii();
        if key.len() < SHORTEST_KEY {
            return Err(Error::Damaged {
                path: path.to_owned(),
                why: format!("a key has at least {SHORTEST_KEY} characters"),
            });
        }
        Ok(Self::Key {
            key: Box::new(hmac::Key::new(hmac::HMAC_SHA256, key)),
            policy_server: policy_server.to_owned(),
        })
    }

    /// The file of a set: a header that names the kind of seal, whether the set is whole, the seal, the set.
    pub(super) fn wrap(&self, whole: bool, body: &[u8]) -> Vec<u8> {
        let whole = u8::from(whole);
        match self {
            Self::Digest => {
                let digest = Digest::of(&[&[whole], body].concat());
                [BY_DIGEST, &[whole], digest.as_bytes(), body].concat()
            }
            Self::Key { key, policy_server } => {
                let tag = hmac::sign(key, &message(policy_server, whole, body));
                [BY_KEY, &[whole], tag.as_ref(), body].concat()
            }
        }
    }

    /// The content of a file, if its seal is right. With a key nothing else counts.
    pub(super) fn open<'a>(&self, file: &'a [u8]) -> Result<(bool, &'a [u8]), String> {
        let (header, other) = match self {
            Self::Digest => (BY_DIGEST, BY_KEY),
            Self::Key { .. } => (BY_KEY, BY_DIGEST),
        };
        let Some(rest) = file.strip_prefix(header) else {
            return Err(match (self, file.starts_with(other)) {
                (Self::Digest, true) => "it was written with a key: give --state-key".into(),
                (Self::Key { .. }, true) => "it was written without a key".into(),
                _ => "it does not begin with the expected header".into(),
            });
        };
        let (whole, rest) = rest.split_first().ok_or("it is cut off")?;
        let (seal, body) = rest.split_first_chunk::<32>().ok_or("it is cut off")?;
        let right = match self {
            Self::Digest => Digest::of(&[&[*whole], body].concat()) == Digest::from_raw(*seal),
            Self::Key { key, policy_server } => {
                hmac::verify(key, &message(policy_server, *whole, body), seal).is_ok()
            }
        };
        match right {
            true => Ok((*whole == 1, body)),
            false => Err("its content does not match its seal".into()),
        }
    }
}

/// A set of another PolicyServer is not one of this.
fn message(policy_server: &str, whole: u8, body: &[u8]) -> Vec<u8> {
    [policy_server.as_bytes(), &[0, whole], body].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_seal(key: &str, policy_server: &str) -> Seal {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), key).unwrap();
        Seal::read(file.path(), policy_server).unwrap()
    }

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_the_same_key_opens_a_set() {
        let seal = mk_seal(KEY, "default");
        let file = seal.wrap(true, b"set");
        assert_eq!(seal.open(&file).unwrap(), (true, &b"set"[..]));
        assert!(mk_seal(&format!("{KEY}\n"), "default").open(&file).is_ok());
        let strangers = [
            mk_seal(&KEY.replace('0', "1"), "default"),
            mk_seal(KEY, "other"),
            Seal::Digest,
        ];
        for stranger in strangers {
            assert!(stranger.open(&file).is_err());
            assert!(seal.open(&stranger.wrap(true, b"set")).is_err());
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(seal.open(&bad).is_err(), "{at}");
            assert!(seal.open(&file[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn a_key_is_long_and_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(matches!(Seal::read(&path, "a"), Ok(Seal::Digest)));
        fs::write(&path, "short").unwrap();
        assert!(matches!(Seal::read(&path, "a"), Err(Error::Damaged { .. })));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(Seal::read(&path, "a"), Err(Error::Io { .. })));
    }
}
