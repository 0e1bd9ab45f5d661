//! Parses arbitrary bytes as reviews.

use assent_wasm::Verdict;

use super::{
    response,
    review::{Endpoint, Error, Incoming},
};

/// Parses the bytes as each endpoint does, and responds to what could be parsed.
pub(crate) fn review(bytes: &[u8]) -> bool {
    let read = |endpoint: Endpoint| match Incoming::parse(endpoint, bytes) {
        Ok(incoming) => {
            let _ = response::verdict(endpoint, &incoming.uid, &Verdict::default());
            true
        }
        Err(error) => {
            refuse(&error);
            false
        }
    };
    let path = String::from_utf8_lossy(bytes);
    let _ = Endpoint::split(&path);
    [Endpoint::Validate, Endpoint::Audit, Endpoint::Raw]
        .map(read)
        .contains(&true)
}

fn refuse(error: &Error) {
    let _ = response::error(error.status(), &error.to_string());
}
