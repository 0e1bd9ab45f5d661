//! Certificates from files, which are renewed by other software.

use std::{fs, path::Path, time::Duration};

use assent_core::Digest;

use super::{Certificates, Error, ServingCertificate};
use crate::config::TlsFiles;

/// Reads both files.
pub(crate) fn load(files: &TlsFiles) -> Result<ServingCertificate, Error> {
    let (chain, key) = read(files)?;
    ServingCertificate::from_pem(&chain, &key)
}

/// Polls the files; a bad pair is logged and the last good one stays. Polling also detects changes of the symbolic links
/// by which mounted secrets are replaced.
pub(crate) async fn watch(files: TlsFiles, certificates: Certificates, every: Duration) {
    let mut seen = fingerprint(&files);
    loop {
        tokio::time::sleep(every).await;
        let now = fingerprint(&files);
        if now == seen {
            continue;
        }
        match load(&files) {
            Ok(certificate) => {
                certificates.install(certificate);
                tracing::info!(cert = %files.cert.display(), "certificate reloaded");
                seen = now;
            }
            // One file of the pair may not be written yet: try again at the next poll.
            Err(error) => {
                tracing::warn!(%error, "failed to reload the certificate; the last one stays")
            }
        }
    }
}

fn fingerprint(files: &TlsFiles) -> Option<(Digest, Digest)> {
    let (chain, key) = read(files).ok()?;
    Some((Digest::of(&chain), Digest::of(&key)))
}

fn read(files: &TlsFiles) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let text = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let chain = fs::read(&files.cert).map_err(|e| Error::Certificate(text(&files.cert, e)))?;
    let key = fs::read(&files.key).map_err(|e| Error::Key(text(&files.key, e)))?;
    Ok((chain, key))
}
