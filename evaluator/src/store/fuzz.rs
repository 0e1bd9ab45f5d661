//! Bytes as a set on disk.

use super::{Seal, decode};

/// The whole file as it lies there.
pub(crate) fn kept_set(bytes: &[u8]) -> bool {
    decode(bytes, &Seal::Digest).is_ok()
}

/// The bytes under a seal that is right: without it chance would never get further.
pub(crate) fn set(bytes: &[u8]) -> bool {
    let file = Seal::Digest.wrap(true, bytes);
    file.is_ok_and(|file| kept_set(&file))
}
