//! Keeps the authority current: watches its Secret and, while leading, rotates it.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Authority, Error, Lives, Mode,
    plan::{Step, plan},
    provided::Provided,
    publish::published_bundle,
    secret::{self, Stored},
};
use crate::{lease::Role, names};

/// Reads, makes and rotates the authority.
pub struct CaManager {
    api: Api<Secret>,
    mode: Mode,
    lives: Lives,
    /// The object as it is in the cluster; none if it was deleted.
    secret: Option<Secret>,
    /// The last one that was good, to put it back.
    good: Stored,
    /// The certificates that cert-manager provides and has provided.
    provided: Provided,
    authority: watch::Sender<Arc<Authority>>,
}

/// After an error of the API server.
const RETRY: Duration = Duration::from_secs(5);

/// Clocks are set: a long sleep is cut into these.
const LOOK: Duration = Duration::from_secs(60 * 60);

// === impl CaManager ===

impl CaManager {
    /// Reads the authority. If there is none, a new one is made: by a create, so that
    /// of two who try the second takes what the first one made.
    pub async fn open(
        client: Client,
        namespace: &str,
        mode: Mode,
        lives: Lives,
    ) -> Result<Self, Error> {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let found = match api.get_opt(mode.secret()).await? {
            Some(found) => found,
            None if mode == Mode::SelfManaged => create(&api, lives).await?,
            None => return Err(Error::Absent(mode.secret().to_owned())),
        };
        let mut provided = Provided::default();
        let (found, good, authority) = match mode {
            Mode::SelfManaged => read(&api, found, lives).await?,
            Mode::CertManager { .. } => {
                provided = match api.get_opt(names::CA_RECORD).await? {
                    Some(record) => Provided::read(&record),
                    None => Provided::begin(&published_bundle(&client, namespace).await?),
                };
                let authority = given(&found, &mut provided, SystemTime::now(), lives)?;
                (found, Stored::default(), authority)
            }
        };
        let (authority, _) = watch::channel(Arc::new(authority));
        Ok(Self {
            api,
            mode,
            lives,
            secret: Some(found),
            good,
            provided,
            authority,
        })
    }

    /// The authority, as it changes.
    pub fn authority(&self) -> watch::Receiver<Arc<Authority>> {
        self.authority.subscribe()
    }

    /// Follows the Secret until `shutdown`, and writes it while `role` is to lead.
    pub async fn run(mut self, mut role: watch::Receiver<Role>, shutdown: CancellationToken) {
        let watch = watcher::watch_object(self.api.clone(), self.mode.secret());
        let mut watch = pin!(watch.default_backoff());
        loop {
            let leads = role.borrow_and_update().leads();
            let wait = self.rotate(leads).await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                Ok(()) = role.changed() => {}
                Some(seen) = watch.next() => match seen {
                    Ok(secret) => self.see(secret),
                    Err(error) => tracing::warn!(%error, "failed to watch the certificate authority"),
                },
            }
        }
    }

    /// Takes the steps that are due; how long to wait for the next one.
    pub(super) async fn rotate(&mut self, leads: bool) -> Duration {
        if self.mode != Mode::SelfManaged {
            return self.record(leads).await;
        }
        if !leads {
            return LOOK;
        }
        loop {
            let now = SystemTime::now();
            match self.advance(now).await {
                Ok(Step::Wait(until)) => {
                    let wait = until.duration_since(now).unwrap_or_default();
                    // A floor, so that no mistake in the plan makes this a hot loop.
                    return wait.clamp(Duration::from_millis(10), LOOK);
                }
                Ok(step) => tracing::info!(?step, "rotated the certificate authority"),
                Err(error) => {
                    tracing::warn!(%error, "failed to rotate the certificate authority; retrying");
                    return RETRY;
                }
            }
        }
    }

    /// Records what cert-manager has provided, and drops what has ended.
    async fn record(&mut self, leads: bool) -> Duration {
        let recorded = match leads {
            true => self.write_record().await,
            false => Ok(()),
        };
        let taken = recorded.and_then(|()| match self.secret.clone() {
            Some(secret) => self.take(&secret),
            None => Ok(()),
        });
        match taken {
            Ok(()) => LOOK,
            Err(error) => {
                tracing::warn!(%error, "failed to record the certificate authority; retrying");
                RETRY
            }
        }
    }

    async fn write_record(&mut self) -> Result<(), Error> {
        let found = self.api.get_opt(names::CA_RECORD).await?;
        let stored = found.as_ref().map(Provided::read).unwrap_or_default();
        let (now, leaf) = (SystemTime::now(), self.lives.leaf);
        self.provided.merge(&stored, now, leaf);
        if stored == self.provided {
            return Ok(());
        }
        let post = PostParams::default();
        let next = self.provided.write(found.clone().unwrap_or_default());
        // The version that was read goes along: a conflict means to look again.
        match found {
            Some(_) => self.api.replace(names::CA_RECORD, &post, &next).await?,
            None => self.api.create(&post, &next).await?,
        };
        tracing::info!("recorded the certificate authority that cert-manager provides");
        Ok(())
    }

    /// One step.
    async fn advance(&mut self, now: SystemTime) -> Result<Step, Error> {
        let Some(secret) = self.secret.clone() else {
            // Gone: what everybody trusts is put back. Who wants a new one asks for it.
            let post = PostParams::default();
            let back = self.good.write(Secret::default());
            let made = self.api.create(&post, &back).await?;
            tracing::warn!("restored the certificate authority: its Secret was deleted");
            self.see(Some(made));
            return Ok(Step::Create);
        };
        let stored = Stored::read(&secret)?;
        let step = plan(now, &stored.dates()?, &self.lives);
        if !matches!(step, Step::Wait(_)) {
            let next = stored.after(step, now, &self.lives)?.write(secret);
            let post = PostParams::default();
            // The version that was read goes along: a conflict means to look again.
            let written = self.api.replace(names::CA, &post, &next).await?;
            self.see(Some(written));
        }
        Ok(step)
    }

    /// Takes what is in the cluster; what can't be used changes nothing.
    fn see(&mut self, seen: Option<Secret>) {
        if let Some(secret) = &seen
            && let Err(error) = self.take(secret)
        {
            tracing::error!(%error, "failed to read the certificate authority; keeping the current one");
        }
        self.secret = seen;
    }

    fn take(&mut self, secret: &Secret) -> Result<(), Error> {
        let authority = match self.mode {
            Mode::SelfManaged => {
                let stored = Stored::read(secret)?;
                let authority = stored.authority(self.lives)?;
                self.good = stored;
                authority
            }
            Mode::CertManager { .. } => {
                let now = SystemTime::now();
                Some(given(secret, &mut self.provided, now, self.lives)?)
            }
        };
        let Some(authority) = authority else {
            return Ok(());
        };
        self.authority.send_if_modified(|held| {
            let same = held.signs_like(&authority) && held.bundle_pem() == authority.bundle_pem();
            if !same {
                *held = Arc::new(authority);
            }
            !same
        });
        Ok(())
    }
}

/// The authority that cert-manager provides. Those that it provided before are trusted until their
/// leaves have ended.
fn given(
    secret: &Secret,
    provided: &mut Provided,
    now: SystemTime,
    lives: Lives,
) -> Result<Authority, Error> {
    let current = secret::given(secret, &[], lives)?;
    let current = assent_pki::split(current.bundle_pem()).unwrap_or_default();
    provided.replace(current, now, lives.leaf);
    secret::given(secret, &provided.retired(), lives)
}

/// Makes the first one, or takes what another made meanwhile.
async fn create(api: &Api<Secret>, lives: Lives) -> Result<Secret, Error> {
    let first = Stored::default().after(Step::Create, SystemTime::now(), &lives)?;
    let first = first.write(Secret::default());
    match api.create(&PostParams::default(), &first).await {
        Ok(made) => Ok(made),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            Ok(api.get(names::CA).await?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a self-managed authority; an empty Secret is filled.
async fn read(
    api: &Api<Secret>,
    mut found: Secret,
    lives: Lives,
) -> Result<(Secret, Stored, Authority), Error> {
    loop {
        let stored = Stored::read(&found)?;
        if let Some(authority) = stored.authority(lives)? {
            return Ok((found, stored, authority));
        }
        let filled = stored.after(Step::Create, SystemTime::now(), &lives)?;
        let filled = filled.write(found);
        found = match api
            .replace(names::CA, &PostParams::default(), &filled)
            .await
        {
            Ok(filled) => filled,
            Err(kube::Error::Api(status)) if status.is_conflict() => api.get(names::CA).await?,
            Err(error) => return Err(error.into()),
        };
    }
}
