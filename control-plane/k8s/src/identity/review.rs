//! TokenReviews, as few as possible: answers are cached, calls with one token share one review,
//! and an address that keeps sending invalid tokens may only try a few per minute.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant, SystemTime},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::{Api, Client, api::PostParams};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Credential, Error, TIMEOUT, TokenDigest, User, bounded, cache::Cache, decide, jwt, lock, until,
};
use crate::names;

/// Reviews tokens. Clones are the same reviewer.
#[derive(Clone)]
pub(super) struct Reviewer(Arc<Inner>);

struct Inner {
    client: Client,
    /// By the digest of the token, like all caches here: no token is kept.
    accepted: Mutex<Cache<TokenDigest, User>>,
    refused: Mutex<Cache<TokenDigest, String>>,
    /// How many invalid tokens an address has sent.
    invalid: Mutex<Cache<IpAddr, u32>>,
    /// Reviews that are under way.
    flights: Mutex<HashMap<TokenDigest, WeakShared<Flight>>>,
    /// What addresses have under way: it must not exceed what they may get wrong.
    addresses: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    slots: Arc<Semaphore>,
    /// When the API server last answered a review.
    answered: Mutex<Option<Instant>>,
    clock: fn() -> Instant,
}

type Flight = BoxFuture<'static, Result<User, Error>>;

/// Held while a review is under way.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// A review is valid for this long: an evaluator that reconnects costs no second one.
const ACCEPTED: Duration = Duration::from_secs(60);

/// A refused token is not reviewed again for this long.
pub(super) const REFUSED: Duration = Duration::from_secs(5);

/// A user has about a kilobyte: some megabytes together.
const MAX_ACCEPTED: usize = 8_192;
const MAX_REFUSED: usize = 1_024;

/// Invalid tokens that one address may send within [`INVALID_WINDOW`]: enough for a pod whose
/// token was rotated or whose clock is off, and no load on an API server.
pub(super) const MAX_INVALID: u32 = 10;
pub(super) const INVALID_WINDOW: Duration = Duration::from_secs(60);
const MAX_ADDRESSES: usize = 4_096;

/// Reviews at a time. One takes milliseconds, so that a thousand evaluators that connect at once
/// wait for a second at most.
const MAX_REVIEWS: usize = 32;

/// An answer of the API server counts as a sign of life for this long.
const ALIVE: Duration = Duration::from_secs(10);

/// No valid token looks like this.
const PROBE: &str = "assent-probe";

// === impl Reviewer ===

impl Reviewer {
    pub(super) fn new(client: Client, clock: fn() -> Instant) -> Self {
        Self(Arc::new(Inner {
            client,
            accepted: Mutex::new(Cache::new(MAX_ACCEPTED)),
            refused: Mutex::new(Cache::new(MAX_REFUSED)),
            invalid: Mutex::new(Cache::new(MAX_ADDRESSES)),
            flights: Mutex::default(),
            addresses: Mutex::default(),
            slots: Arc::new(Semaphore::new(MAX_REVIEWS)),
            answered: Mutex::new(None),
            clock,
        }))
    }

    /// The owner of a well-formed token.
    pub(super) async fn user(&self, credential: Credential<'_>) -> Result<User, Error> {
        let key = credential.digest();
        if let Some(known) = self.0.known(&key) {
            return known;
        }
        if let Some(flight) = self.0.flight(&key) {
            return flight.await;
        }
        self.0.check_peer(credential.peer)?;
        let permits = tokio::time::timeout(TIMEOUT, self.0.permits(credential.peer)).await;
        let permits = permits.map_err(|_| {
            Error::Unavailable("too many tokens are being reviewed; retry".to_owned())
        })?;
        // Others may have asked meanwhile, or have used up what the address may get wrong.
        if let Some(known) = self.0.known(&key) {
            return known;
        }
        self.0.check_peer(credential.peer)?;
        self.join(key, credential, permits).await
    }

    /// Whether the API server answers reviews.
    pub(super) async fn is_answering(&self) -> bool {
        let alive = |at: Instant| self.0.now().saturating_duration_since(at) < ALIVE;
        if lock(&self.0.answered).is_some_and(alive) {
            return true;
        }
        let credential = Credential {
            token: PROBE,
            peer: None,
        };
        match self.user(credential).await {
            Err(Error::Unavailable(_)) => false,
            Ok(_) | Err(_) => true,
        }
    }

    /// Joins the review of this token, or begins it.
    fn join(
        &self,
        key: TokenDigest,
        credential: Credential<'_>,
        permits: Permits,
    ) -> Shared<Flight> {
        let mut flights = lock(&self.0.flights);
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (inner, token, peer) = (self.0.clone(), credential.token.to_owned(), credential.peer);
        // A task of its own: a caller that leaves must not hide that its token was invalid.
        let task = tokio::spawn(async move {
            let reviewed = inner.review(key, &token, peer).await;
            drop(permits);
            lock(&inner.flights).remove(&key);
            reviewed
        });
        let flight = async {
            let ended = task.await;
            ended.unwrap_or_else(|error| Err(Error::Unavailable(error.to_string())))
        };
        let flight = flight.boxed().shared();
        flights.extend(flight.downgrade().map(|weak| (key, weak)));
        flight
    }

    #[cfg(test)]
    pub(super) fn count_invalid(&self, peer: Option<IpAddr>) {
        self.0.count_invalid(peer);
    }
}

// === impl Inner ===

impl Inner {
    fn known(&self, key: &TokenDigest) -> Option<Result<User, Error>> {
        if let Some(user) = lock(&self.accepted).get(key, self.now()) {
            return Some(Ok(user));
        }
        let why = lock(&self.refused).get(key, self.now())?;
        Some(Err(Error::Invalid(why)))
    }

    fn flight(&self, key: &TokenDigest) -> Option<Shared<Flight>> {
        lock(&self.flights).get(key).and_then(WeakShared::upgrade)
    }

    async fn review(
        &self,
        key: TokenDigest,
        token: &str,
        peer: Option<IpAddr>,
    ) -> Result<User, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![names::TOKEN_AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = bounded(api.create(&PostParams::default(), &review)).await?;
        *lock(&self.answered) = Some(self.now());
        let reviewed = decide::user(answer.status, jwt::expires(token), SystemTime::now());
        match &reviewed {
            Ok(user) => {
                let keep = until(user.expires, ACCEPTED);
                lock(&self.accepted).put(key, user.clone(), self.now(), keep);
            }
            Err(Error::Invalid(why)) => {
                lock(&self.refused).put(key, why.clone(), self.now(), REFUSED);
                self.count_invalid(peer);
            }
            Err(_) => {}
        }
        reviewed
    }

    /// Refuses an address that has sent too many invalid tokens. Tokens that were accepted
    /// before are not affected, so that nobody is cut off by a neighbour behind one address.
    fn check_peer(&self, peer: Option<IpAddr>) -> Result<(), Error> {
        let Some(peer) = peer else { return Ok(()) };
        let invalid = lock(&self.invalid).get(&peer, self.now());
        match invalid {
            Some(count) if count >= MAX_INVALID => Err(Error::Unavailable(format!(
                "{peer} sent too many invalid tokens; retry in a minute"
            ))),
            _ => Ok(()),
        }
    }

    fn count_invalid(&self, peer: Option<IpAddr>) {
        let Some(peer) = peer else { return };
        let mut invalid = lock(&self.invalid);
        let now = self.now();
        let count = invalid.get(&peer, now).unwrap_or_default();
        invalid.put(peer, count.saturating_add(1), now, INVALID_WINDOW);
    }

    /// Waits until another review may begin. The address comes first: a flood of one address
    /// does not take the places of others while it waits.
    async fn permits(&self, peer: Option<IpAddr>) -> Permits {
        let own = match peer {
            Some(peer) => Some(acquire(self.address(peer)).await),
            None => None,
        };
        (acquire(self.slots.clone()).await, own)
    }

    fn address(&self, peer: IpAddr) -> Arc<Semaphore> {
        let mut addresses = lock(&self.addresses);
        if let Some(semaphore) = addresses.get(&peer).and_then(Weak::upgrade) {
            return semaphore;
        }
        // Swept when it is full, so that it is at most twice as large as needed.
        if addresses.len() == addresses.capacity() {
            addresses.retain(|_, semaphore| semaphore.strong_count() > 0);
        }
        let semaphore = Arc::new(Semaphore::new(MAX_INVALID as usize));
        addresses.insert(peer, Arc::downgrade(&semaphore));
        semaphore
    }

    fn now(&self) -> Instant {
        (self.clock)()
    }
}

async fn acquire(semaphore: Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = semaphore.acquire_owned().await;
    permit.expect("the semaphore must stay open")
}
