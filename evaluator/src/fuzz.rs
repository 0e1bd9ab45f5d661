//! Entry points for fuzzing: they return for any bytes, and report whether the bytes were valid.

/// The body of a review, on every endpoint.
pub fn review(bytes: &[u8]) -> bool {
    crate::admission::fuzz::review(bytes)
}

/// A call of Envoy.
pub fn check(bytes: &[u8]) -> bool {
    crate::envoy::fuzz::check(bytes)
}

/// The file in which the last good set is kept.
pub fn kept_set(bytes: &[u8]) -> bool {
    crate::store::fuzz::kept_set(bytes)
}

/// A response of the control plane; the file of the kept set contains one too.
pub fn set(bytes: &[u8]) -> bool {
    crate::store::fuzz::set(bytes)
}
