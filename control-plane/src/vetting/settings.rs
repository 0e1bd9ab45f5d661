//! Settings that come from Secrets: read, merged, and encrypted for their revision.

use std::{fmt, sync::Arc};

use assent_api::settings::{SecretSettings, SettingsKey, SettingsSource, merge};
use assent_controller::{Failure, action::CheckSettings};
use assent_core::{RevisionId, rollout::PolicyId};
use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Job, Report, Vetting, failure};

/// Policies whose Secrets are read at the same time. A leader checks all of its policies at
/// once, and the API server has others to serve.
const CONCURRENT_READS: usize = 8;

static READING: Semaphore = Semaphore::const_new(CONCURRENT_READS);

/// How settings that come from Secrets are made.
#[derive(Clone)]
pub(crate) struct SettingsAccess {
    /// Reads Secrets.
    pub(crate) reader: Arc<dyn ReadSettings>,
    /// Encrypts what was read.
    pub(crate) key: SettingsKey,
}

/// Reads values of Secrets.
#[async_trait]
pub(crate) trait ReadSettings: Send + Sync {
    /// The value of each source of a policy, which is in this namespace or in none. The error
    /// contains no value.
    async fn read(
        &self,
        namespace: Option<&str>,
        sources: &[SettingsSource],
    ) -> Result<Vec<Vec<u8>>, String>;
}

/// The outcome of reading the Secrets of an accepted generation again.
#[derive(Clone, Debug)]
pub(crate) struct SettingsReport {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// The version of the settings, or why there is none.
    pub(crate) result: Result<String, String>,
}

/// The complete settings of a job; none if none come from Secrets.
pub(super) async fn resolve(job: &Job) -> Result<Option<SecretSettings>, Failure> {
    if job.secret_settings.is_some() || job.settings_from.is_empty() {
        return Ok(job.secret_settings.clone());
    }
    let check = CheckSettings {
        id: job.id.clone(),
        generation: job.generation,
        settings: job.settings.clone(),
        settings_from: job.settings_from.clone(),
    };
    let read = read(job.settings_access.as_ref(), &check).await;
    read.map(Some).map_err(failure::settings)
}

async fn read(
    access: Option<&SettingsAccess>,
    check: &CheckSettings,
) -> Result<SecretSettings, String> {
    let access = access.ok_or_else(|| {
        "spec.settingsFrom: the control plane has no key to encrypt settings with; its log of the \
         start has the reason"
            .to_owned()
    })?;
    let CheckSettings {
        id,
        generation,
        settings,
        settings_from,
    } = check;
    let values = {
        let _turn = READING.acquire().await.map_err(|e| e.to_string())?;
        access
            .reader
            .read(id.key.namespace(), settings_from)
            .await?
    };
    let merged = merge(settings, settings_from, &values).map_err(|e| e.to_string())?;
    let name = RevisionId::new(&id.key, *generation, &id.uid);
    Ok(access.key.protect(name.as_str(), merged))
}

// === impl Vetting ===

impl Vetting {
    /// Reads the Secrets of an accepted generation again.
    pub(crate) fn check_settings(
        &self,
        check: CheckSettings,
        access: Option<SettingsAccess>,
        stopped: CancellationToken,
    ) {
        let outcomes = self.outcomes.clone();
        tokio::spawn(async move {
            let reading = read(access.as_ref(), &check);
            let Some(result) = stopped.run_until_cancelled(reading).await else {
                return;
            };
            let report = SettingsReport {
                id: check.id,
                generation: check.generation,
                result: result.map(|settings| settings.version),
            };
            // The receiver is gone only when the process ends.
            let _ = outcomes.send(Report::Settings(report)).await;
        });
    }
}

// === impl SettingsAccess ===

impl fmt::Debug for SettingsAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsAccess(..)")
    }
}
