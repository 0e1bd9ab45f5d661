//! Canonical JSON, as [`assent_context::canonical`] writes it.

pub use assent_context::canonical::{to_string, to_vec};

#[cfg(test)]
mod tests;
