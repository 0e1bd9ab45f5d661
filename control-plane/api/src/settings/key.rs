//! The key of the control plane that keeps settings confidential where others can read them.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::SecretSettings;

/// Length of the key.
pub const KEY_BYTES: usize = 32;

/// The first characters of sealed settings; the number changes with the format.
const FORMAT: &str = "v1:";

/// Characters of a version: as unlikely to repeat by accident as a UUID.
const VERSION_BYTES: usize = 16;

/// Seals settings, and makes hashes of them that nobody else can make.
#[derive(Clone)]
pub struct SettingsKey(Arc<Keys>);

/// One key for each purpose, so that a hash that is shown says nothing about one that is not.
struct Keys {
    seal: LessSafeKey,
    nonce: hmac::Key,
    salt: hmac::Key,
    version: hmac::Key,
}

/// Sealed settings that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its settings cannot be decrypted: they were changed, or encrypted with another key than that \
     of the Secret assent-settings-key"
)]
pub struct Unreadable;

// === impl SettingsKey ===

impl SettingsKey {
    /// The keys that follow from this one.
    pub fn new(master: &[u8; KEY_BYTES]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derive = |purpose: &str| hmac::sign(&master, purpose.as_bytes());
        let mac = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, derive(purpose).as_ref());
        let seal = UnboundKey::new(&AES_256_GCM_SIV, derive("assent.settings.seal").as_ref());
        Self(Arc::new(Keys {
            seal: LessSafeKey::new(seal.expect("a hash of 32 bytes must be a key")),
            nonce: mac("assent.settings.nonce"),
            salt: mac("assent.settings.salt"),
            version: mac("assent.settings.version"),
        }))
    }

    /// The complete settings of the revision `name`.
    pub fn protect(&self, name: &str, json: impl Into<Arc<[u8]>>) -> SecretSettings {
        let json = json.into();
        let sealed = self.seal(name, &json);
        self.settings(json, sealed)
    }

    fn settings(&self, json: Arc<[u8]>, sealed: String) -> SecretSettings {
        let version = hmac::sign(&self.0.version, &json);
        SecretSettings {
            salt: hmac::sign(&self.0.salt, &json).as_ref().into(),
            version: hex(&version.as_ref()[..VERSION_BYTES]),
            json,
            sealed,
        }
    }

    /// Encrypts settings for the revision `name`, and no other. Equal input gives equal output,
    /// so that a revision can be made again: the nonce is a keyed hash of what is sealed.
    fn seal(&self, name: &str, json: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0.nonce);
        context.update(name.as_bytes());
        context.update(&[0]);
        context.update(json);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&context.sign().as_ref()[..NONCE_LEN]);
        let mut text = json.to_vec();
        let sealed = self.0.seal.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut text,
        );
        sealed.expect("settings must be shorter than the cipher allows");
        let sealed = BASE64_STANDARD.encode([&nonce[..], &text].concat());
        format!("{FORMAT}{sealed}")
    }

    /// What was sealed for the revision `name`.
    pub fn open(&self, name: &str, sealed: &str) -> Result<SecretSettings, Unreadable> {
        let encoded = sealed.strip_prefix(FORMAT).ok_or(Unreadable)?;
        let mut bytes = BASE64_STANDARD.decode(encoded).map_err(|_| Unreadable)?;
        let (nonce, text) = bytes
            .split_first_chunk_mut::<NONCE_LEN>()
            .ok_or(Unreadable)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self
            .0
            .seal
            .open_in_place(nonce, Aad::from(name.as_bytes()), text);
        let json = opened.map_err(|_| Unreadable)?;
        Ok(self.settings((&*json).into(), sealed.to_owned()))
    }
}

impl fmt::Debug for SettingsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsKey(..)")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
