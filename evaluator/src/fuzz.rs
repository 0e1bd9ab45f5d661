//! Entry points for fuzzing: whatever the bytes, these return. They say whether the bytes
//! were taken for what they should be.

/// The body of a review, on every endpoint.
pub fn review(bytes: &[u8]) -> bool {
    crate::serve::fuzz::review(bytes)
}

/// The file in which the last good set is kept.
pub fn kept_set(bytes: &[u8]) -> bool {
    crate::store::fuzz::kept_set(bytes)
}

/// A response of the control plane; also what is inside of the kept set's file.
pub fn set(bytes: &[u8]) -> bool {
    crate::store::fuzz::set(bytes)
}
