//! Ahead-of-time artefacts: compiled code and the description of its module.
//!
//! `magic (8) || u32 length of the header, big endian || header (JSON) || code`. An artefact is trusted as
//! much as the program itself, so it is only opened once its hash is the expected one; the checks below
//! catch mistakes, not attacks.

use serde::{Deserialize, Serialize};

use crate::inspect::Inspection;

/// Changes with the layout of this file.
const MAGIC: &[u8; 8] = b"assent\x00\x01";

#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) fingerprint: String,
    pub(crate) inspection: Inspection,
}

/// Why bytes are no artefact for this engine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("it has no valid header")]
    Malformed,
    #[error("failed to read its header: {0}")]
    Header(#[from] serde_json::Error),
}

pub(crate) fn encode(header: &Header, code: &[u8]) -> Result<Vec<u8>, Error> {
    let header = serde_json::to_vec(header)?;
    let length = u32::try_from(header.len()).map_err(|_| Error::Malformed)?;
    let mut artefact = Vec::with_capacity(MAGIC.len() + 4 + header.len() + code.len());
    artefact.extend_from_slice(MAGIC);
    artefact.extend_from_slice(&length.to_be_bytes());
    artefact.extend_from_slice(&header);
    artefact.extend_from_slice(code);
    Ok(artefact)
}

pub(crate) fn decode(artefact: &[u8]) -> Result<(Header, &[u8]), Error> {
    let rest = artefact.strip_prefix(MAGIC).ok_or(Error::Malformed)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(Error::Malformed)?;
    let (header, code) = rest
        .split_at_checked(u32::from_be_bytes(*length) as usize)
        .ok_or(Error::Malformed)?;
    Ok((serde_json::from_slice(header)?, code))
}
