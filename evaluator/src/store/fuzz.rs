//! Bytes as a set on disk.

use assent_core::Digest;

use super::{MAGIC, decode};

/// The whole file as it lies there.
pub(crate) fn kept_set(bytes: &[u8]) -> bool {
    decode(bytes).is_ok()
}

/// The bytes under a digest that is right: without it chance would never get further.
pub(crate) fn set(bytes: &[u8]) -> bool {
    let digest = Digest::of(&[&[1], bytes].concat());
    kept_set(&[MAGIC, &[1], digest.as_bytes(), bytes].concat())
}
