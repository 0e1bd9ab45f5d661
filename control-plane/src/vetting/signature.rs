//! Checks the signatures of modules that are distributed already.

use std::{path::PathBuf, time::Duration};

use assent_controller::Failure;
use assent_core::{
    RevisionId,
    rollout::{PolicyId, RefusalReason},
};
use assent_oci::{AddressPolicy, ModuleUrl, verify::Keys};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{DeclaredSources, Report, Vetting, failure, fetch::Access};

/// The delay before the first retry, doubled each time up to the longest: nothing waits for the result.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// A module whose signature is to be checked.
#[derive(Clone, Debug)]
pub(crate) struct SignatureJob {
    /// The policy.
    pub(crate) id: PolicyId,
    /// The revision whose module it is.
    pub(crate) revision: RevisionId,
    /// Where the module is, pinned.
    pub(crate) url: String,
    /// Fingerprint of the key that is known to have signed it.
    pub(crate) signer: Option<String>,
    /// Public keys (PEM), one of which must have signed.
    pub(crate) keys: Vec<String>,
    /// The base of relative `file://` URLs; none refuses files.
    pub(crate) files: Option<PathBuf>,
    /// Addresses that may be connected to, besides declared ones.
    pub(crate) addresses: AddressPolicy,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub(crate) struct SignatureReport {
    /// The policy.
    pub(crate) id: PolicyId,
    /// The revision whose module it is.
    pub(crate) revision: RevisionId,
    /// The keys that it was checked with.
    pub(crate) keys: Vec<String>,
    /// Why none of them counts.
    pub(crate) result: Result<(), String>,
}

// === impl Vetting ===

impl Vetting {
    /// Checks a signature, however often that takes, and reports the result.
    pub(crate) fn check_signature(
        &self,
        job: SignatureJob,
        sources: DeclaredSources,
        stopped: CancellationToken,
    ) {
        let vetting = self.clone();
        tokio::spawn(async move {
            let checking = vetting.check_until_known(&job, &sources);
            let Some(result) = stopped.run_until_cancelled(checking).await else {
                return;
            };
            let report = SignatureReport {
                id: job.id,
                revision: job.revision,
                keys: job.keys,
                result,
            };
            // The receiver is gone only when the process ends.
            let _ = vetting.outcomes.send(Report::Signature(report)).await;
        });
    }

    async fn check_until_known(
        &self,
        job: &SignatureJob,
        sources: &DeclaredSources,
    ) -> Result<(), String> {
        let mut wait = FIRST_RETRY;
        loop {
            let Err(failed) = self.check_once(job, sources).await else {
                return Ok(());
            };
            let message = failed.refusal.message;
            if failed.refusal.reason != RefusalReason::PullError {
                return Err(message);
            }
            warn!(revision = %job.revision, "failed to check a signature; retrying: {message}");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    }

    async fn check_once(
        &self,
        job: &SignatureJob,
        sources: &DeclaredSources,
    ) -> Result<(), Failure> {
        if job.is_signed_by_a_key() {
            return Ok(());
        }
        let url: ModuleUrl = job
            .url
            .parse()
            .map_err(|e| failure::invalid(format!("{e}")))?;
        let sources = sources.read().await?;
        let access = Access {
            addresses: job.addresses,
            files: job.files.as_ref(),
            verification: &job.keys,
        };
        let puller = self.fetcher.puller(access, &sources)?;
        let _turn = self
            .fetcher
            .turn(job.id.key.namespace().unwrap_or_default())
            .await;
        let located = puller.locate(&url).await;
        located.map(drop).map_err(failure::pulling)
    }
}

// === impl SignatureJob ===

impl SignatureJob {
    /// Whether the recorded signer is among the keys: then no registry has to be asked.
    fn is_signed_by_a_key(&self) -> bool {
        let Some(signer) = &self.signer else {
            return false;
        };
        let keys = Keys::any_of(&self.keys);
        keys.is_ok_and(|keys| keys.fingerprints().any(|key| key.to_string() == *signer))
    }
}
