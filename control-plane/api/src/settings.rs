//! Settings of which some values come from Secrets.

mod key;
mod merge;

use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    key::{KEY_BYTES, SettingsKey, Unreadable},
    merge::{MergeError, merge},
};

/// Entries of `settingsFrom`: each is a read whenever the policy is vetted or checked.
pub const MAX_SOURCES: usize = 16;

/// Bytes of all values of one policy. The settings are copied into a revision, and held by the
/// control plane and by every evaluator.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// Segments of a path.
pub(crate) const MAX_PATH_SEGMENTS: usize = 16;

/// Settings that come from a key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingsSource {
    /// The Secret: of the policy's namespace, or of the control plane's for a ClusterAdmissionPolicy.
    pub secret_key_ref: SecretKeyRef,
    /// Where the value goes, as a string: `auth.token`. If absent, the value is a YAML or JSON
    /// object whose fields are settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub path: Option<String>,
}

/// A key of a Secret.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Complete settings, values of Secrets included. Never formatted.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretSettings {
    /// Canonical JSON.
    pub json: Arc<[u8]>,
    /// An input of the content digest.
    pub salt: Arc<[u8]>,
    /// A keyed hash that changes with the settings, and from which they cannot be guessed.
    pub version: String,
    /// Encrypted for one revision.
    pub sealed: String,
}

// === impl SecretSettings ===

impl fmt::Debug for SecretSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSettings")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
