//! Keeps the authority current: watches its Secret and, while leading, rotates it.

use std::{
    collections::BTreeMap,
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
    /// The certificates that cert-manager provides.
    given: Vec<String>,
    /// The certificates that it provided before, and until when they are trusted.
    retired: BTreeMap<String, SystemTime>,
    authority: watch::Sender<Arc<Authority>>,
}

/// After an error of the API server.
const RETRY: Duration = Duration::from_secs(5);

/// Clocks are set: a long sleep is cut into these.
const LOOK: Duration = Duration::from_secs(60 * 60);

// === impl CaManager ===

impl CaManager {
    /// Reads the authority. One of our own is made where there is none: by a create, so that
    /// of two who try the second takes what the first one made.
    pub async fn open(
        client: Client,
        namespace: &str,
        mode: Mode,
        lives: Lives,
    ) -> Result<Self, Error> {
        let api: Api<Secret> = Api::namespaced(client, namespace);
        let found = match api.get_opt(mode.secret()).await? {
            Some(found) => found,
            None if mode == Mode::SelfManaged => create(&api, lives).await?,
            None => return Err(Error::Absent(mode.secret().to_owned())),
        };
        let (found, good, authority) = match mode {
            Mode::SelfManaged => read(&api, found, lives).await?,
            Mode::CertManager { .. } => {
                let authority = secret::given(&found, &[], lives)?;
                (found, Stored::default(), authority)
            }
        };
        let given = assent_pki::split(authority.bundle_pem()).unwrap_or_default();
        let (authority, _) = watch::channel(Arc::new(authority));
        Ok(Self {
            api,
            mode,
            lives,
            secret: Some(found),
            good,
            given,
            retired: BTreeMap::new(),
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
    async fn rotate(&mut self, leads: bool) -> Duration {
        if self.mode != Mode::SelfManaged || !leads {
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
            Mode::CertManager { .. } => Some(self.given(secret, SystemTime::now())?),
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

    /// One that somebody else replaced is trusted until its leaves have ended: they replace
    /// it without an overlap.
    fn given(&mut self, secret: &Secret, now: SystemTime) -> Result<Authority, Error> {
        let fresh = secret::given(secret, &[], self.lives)?;
        let fresh = assent_pki::split(fresh.bundle_pem()).unwrap_or_default();
        for old in std::mem::replace(&mut self.given, fresh) {
            self.retired.insert(old, now + self.lives.leaf);
        }
        let given = &self.given;
        self.retired
            .retain(|old, until| *until > now && !given.contains(old));
        let retired: Vec<String> = self.retired.keys().cloned().collect();
        secret::given(secret, &retired, self.lives)
    }
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
