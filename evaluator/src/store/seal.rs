//! What shows that files of the state directory are as they were written, and keeps the set confidential.

use std::{fs, io, path::Path};

use assent_core::Digest;
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    hmac,
};

use super::{Error, io_error};

/// How the set on disk is sealed.
pub(crate) enum Seal {
    /// By its digest: damage is noticed, a forgery is not, and everybody who can read the file reads the set.
    Digest,
    /// By a key that is not in the directory: who can access the directory, but does not have the key, can't read or
    /// forge a set. An older set of the same PolicyServer can still be put back.
    Key(Box<SealingKey>),
}

/// A key, prepared for its uses.
pub(crate) struct SealingKey {
    cipher: RandomizedNonceKey,
    /// Sets of earlier versions were authenticated and not encrypted.
    mac: hmac::Key,
    /// Authenticates small files beside the set.
    notes: hmac::Key,
    policy_server: String,
}

/// First lines of the set's file; the number changes with its format.
pub(super) const BY_DIGEST: &[u8] = b"assent-set-1\n";
const AUTHENTICATED: &[u8] = b"assent-set-2\n";
const ENCRYPTED: &[u8] = b"assent-set-3\n";

/// Shorter keys could be guessed.
const SHORTEST_KEY: usize = 32;

const CUT_OFF: &str = "it is cut off";

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
        Ok(Self::Key(Box::new(SealingKey::new(key, policy_server))))
    }

    /// Whether only those who have the key can read what is sealed.
    pub(super) fn is_confidential(&self) -> bool {
        matches!(self, Self::Key(_))
    }

    /// The file of a set: a header that names the kind of seal, whether the set is whole, the sealed set.
    pub(super) fn wrap(&self, whole: bool, body: &[u8]) -> Result<Vec<u8>, String> {
        let whole = u8::from(whole);
        match self {
            Self::Digest => {
                let digest = Digest::of(&[&[whole], body].concat());
                Ok([BY_DIGEST, &[whole], digest.as_bytes(), body].concat())
            }
            Self::Key(key) => {
                let sealed = key.encrypt(whole, body)?;
                Ok([ENCRYPTED, &[whole], &sealed].concat())
            }
        }
    }

    /// A line that is kept in a small file, `name`, beside the set; authenticated if there is a key. An older line of
    /// the same file can be put back.
    pub(super) fn sign(&self, name: &str, line: &str) -> String {
        match self {
            Self::Digest => format!("{line}\n"),
            Self::Key(key) => format!("{line}\t{}\n", hex::encode(key.tag(name, line))),
        }
    }

    /// The line of a file that [`Seal::sign`] wrote; none if it is not authentic.
    pub(super) fn check<'a>(&self, name: &str, file: &'a str) -> Option<&'a str> {
        let file = file.trim_end_matches('\n');
        match (self, file.rsplit_once('\t')) {
            // A key was there before, and is gone.
            (Self::Digest, Some((line, _))) => Some(line),
            (Self::Digest, None) => Some(file),
            (Self::Key(key), Some((line, tag))) => {
                let tag = hex::decode(tag).ok()?;
                hmac::verify(&key.notes, &key.note(name, line), &tag).ok()?;
                Some(line)
            }
            (Self::Key(_), None) => None,
        }
    }

    /// The content of a file, if its seal is right. With a key nothing else counts.
    pub(super) fn open(&self, file: &[u8]) -> Result<(bool, Vec<u8>), String> {
        let (header, rest) = split_header(file)?;
        let (whole, rest) = rest.split_first().ok_or(CUT_OFF)?;
        let body = match (self, header) {
            (Self::Digest, BY_DIGEST) => {
                let (seal, body) = rest.split_first_chunk::<32>().ok_or(CUT_OFF)?;
                let digest = Digest::of(&[&[*whole], body].concat());
                (digest == Digest::from_raw(*seal)).then(|| body.to_vec())
            }
            (Self::Key(key), ENCRYPTED) => key.decrypt(*whole, rest)?,
            (Self::Key(key), AUTHENTICATED) => key.verify(*whole, rest)?,
            (Self::Digest, _) => return Err("it was written with a key: give --state-key".into()),
            (Self::Key(_), _) => return Err("it was written without a key".into()),
        };
        let body = body.ok_or("its content does not match its seal")?;
        Ok((*whole == 1, body))
    }
}

// === impl SealingKey ===

impl SealingKey {
    fn new(key: &[u8], policy_server: &str) -> Self {
        let mac = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derived = hmac::sign(&mac, b"assent.set.encryption");
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, derived.as_ref());
        Self {
            cipher: cipher.expect("a hash of 32 bytes must be a key"),
            notes: hmac::Key::new(
                hmac::HMAC_SHA256,
                hmac::sign(&mac, b"assent.notes").as_ref(),
            ),
            mac,
            policy_server: policy_server.to_owned(),
        }
    }

    fn encrypt(&self, whole: u8, body: &[u8]) -> Result<Vec<u8>, String> {
        let mut text = body.to_vec();
        let aad = Aad::from(self.context(whole));
        let nonce = self.cipher.seal_in_place_append_tag(aad, &mut text);
        let nonce = nonce.map_err(|_| "failed to encrypt it")?;
        Ok([&nonce.as_ref()[..], &text].concat())
    }

    fn decrypt(&self, whole: u8, sealed: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(CUT_OFF)?;
        let mut text = text.to_vec();
        let aad = Aad::from(self.context(whole));
        let opened =
            self.cipher
                .open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut text);
        Ok(opened.ok().map(|body| body.to_vec()))
    }

    fn verify(&self, whole: u8, sealed: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let (seal, body) = sealed.split_first_chunk::<32>().ok_or(CUT_OFF)?;
        let message = [&self.context(whole), body].concat();
        let is_right = hmac::verify(&self.mac, &message, seal).is_ok();
        Ok(is_right.then(|| body.to_vec()))
    }

    fn tag(&self, name: &str, line: &str) -> hmac::Tag {
        hmac::sign(&self.notes, &self.note(name, line))
    }

    fn note(&self, name: &str, line: &str) -> Vec<u8> {
        [&self.policy_server, name, line].join("\0").into_bytes()
    }

    /// A set of another PolicyServer is not one of this.
    fn context(&self, whole: u8) -> Vec<u8> {
        [self.policy_server.as_bytes(), &[0, whole]].concat()
    }
}

fn split_header(file: &[u8]) -> Result<(&'static [u8], &[u8]), String> {
    let headers = [BY_DIGEST, AUTHENTICATED, ENCRYPTED].into_iter();
    let mut found = headers.filter_map(|header| Some((header, file.strip_prefix(header)?)));
    let found = found.next();
    found.ok_or_else(|| "it does not begin with the expected header".into())
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
        let file = seal.wrap(true, b"set").unwrap();
        assert_eq!(seal.open(&file).unwrap(), (true, b"set".to_vec()));
        assert!(mk_seal(&format!("{KEY}\n"), "default").open(&file).is_ok());
        let strangers = [
            mk_seal(&KEY.replace('0', "1"), "default"),
            mk_seal(KEY, "other"),
            Seal::Digest,
        ];
        for stranger in strangers {
            assert!(stranger.open(&file).is_err());
            assert!(seal.open(&stranger.wrap(true, b"set").unwrap()).is_err());
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(seal.open(&bad).is_err(), "{at}");
            assert!(seal.open(&file[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn only_the_same_key_signs_a_line() {
        let seal = mk_seal(KEY, "default");
        let file = seal.sign("leadership", "7");
        assert_eq!(seal.check("leadership", &file), Some("7"));
        assert_eq!(seal.check("other", &file), None);
        assert_eq!(seal.check("leadership", &file.replace('7', "8")), None);
        assert_eq!(seal.check("leadership", "7\n"), None);
        assert_eq!(mk_seal(KEY, "other").check("leadership", &file), None);
        let stranger = mk_seal(&KEY.replace('0', "1"), "default");
        assert_eq!(stranger.check("leadership", &file), None);
        let plain = Seal::Digest.sign("leadership", "7");
        assert_eq!(plain, "7\n");
        for file in [&plain, &file] {
            assert_eq!(Seal::Digest.check("leadership", file), Some("7"));
        }
    }

    #[test]
    fn a_key_keeps_a_set_confidential() {
        let file = mk_seal(KEY, "default").wrap(true, b"hunter2").unwrap();
        assert!(!file.windows(7).any(|window| window == b"hunter2"));
    }

    #[test]
    fn a_set_of_an_earlier_version_is_opened() {
        let seal = mk_seal(KEY, "default");
        let mac = hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes());
        let tag = hmac::sign(&mac, b"default\0\x01set");
        let file = [AUTHENTICATED, &[1], tag.as_ref(), b"set"].concat();
        assert_eq!(seal.open(&file).unwrap(), (true, b"set".to_vec()));
        let forged = [AUTHENTICATED, &[1], tag.as_ref(), b"sat"].concat();
        assert!(seal.open(&forged).is_err());
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
