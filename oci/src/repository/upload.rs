//! Uploads to a repository.

use assent_core::digest::Digest;
use bytes::Bytes;
use http::{Method, header};

use super::Session;
use crate::Error;

const OCTETS: &str = "application/octet-stream";

// === impl Session ===

impl Session {
    /// Stores a blob, unless the registry has it. It is sent in one piece: modules have some megabytes.
    pub(super) async fn put_blob(&mut self, bytes: Bytes) -> Result<Digest, Error> {
        let digest = Digest::of(&bytes);
        if self.exists(&format!("blobs/{digest}")).await? {
            return Ok(digest);
        }
        let empty = Bytes::new();
        let begun = self
            .send(Method::POST, "blobs/uploads/", OCTETS, empty)
            .await?;
        let location = begun.headers.get(header::LOCATION).cloned();
        let begun_at = begun.url.clone();
        begun.drain().await;
        let location = location.as_ref().and_then(|value| value.to_str().ok());
        let location = location.and_then(|text| begun_at.join(text).ok());
        let mut location = location
            .ok_or_else(|| self.manifest_error("the registry named no place for uploads"))?;
        location
            .query_pairs_mut()
            .append_pair("digest", &digest.to_string());
        let stored = self.send(Method::PUT, location.as_str(), OCTETS, bytes);
        stored.await?.drain().await;
        Ok(digest)
    }

    /// Stores a manifest under a tag or its digest.
    pub(super) async fn put_manifest(
        &mut self,
        name: &str,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Digest, Error> {
        let digest = Digest::of(&bytes);
        let path = format!("manifests/{name}");
        let stored = self.send(Method::PUT, &path, media_type, bytes).await?;
        stored.drain().await;
        Ok(digest)
    }
}
