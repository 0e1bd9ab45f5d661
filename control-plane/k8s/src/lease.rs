//! Leader election with one `Lease`.
//!
//! A holder has expired when this process has seen its record unchanged for long enough, on its
//! own monotonic clock; times in the object are for readers. Every write is conditional on the
//! version that it follows from. A leader counts its time from when it *sent* the renewal that
//! succeeded, and steps down before any other process may take over.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use assent_core::Millis;
use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::names::{self, LEASE};

mod machine;
mod object;

use machine::{Draft, Input, Machine, Output, Record};

/// Durations of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Others may take over once they have seen no renewal for this long.
    pub lease: Duration,
    /// A leader that could not renew for this long steps down. It is shorter than `lease`: the
    /// difference is how far clocks may drift apart in that time.
    pub renew: Duration,
    /// Between two attempts, and between two reads of the record.
    pub retry: Duration,
}

/// The role of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is the leader.
    Leader {
        /// The term: higher than that of any earlier leader, including this identity.
        transitions: u64,
    },
    /// It is not the leader.
    Follower {
        /// The leader, as far as is known.
        leader: Option<Leader>,
    },
}

/// Another process that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its identity.
    pub identity: String,
    /// The address of its discovery endpoint; empty if it published none.
    pub address: String,
}

/// Takes part in the election.
pub struct Elector {
    api: Api<Lease>,
    machine: Machine,
    clock: Instant,
    timeout: Duration,
    role: watch::Sender<Role>,
    leader_check: LeaderCheck,
    /// The object as it was read or written last. Updates keep what others added to it.
    last: Option<Lease>,
    /// The highest term that evaluators have seen.
    outranked: watch::Receiver<u64>,
}

/// Whether this process leads *now*, by the clock. It is also right in a process that was paused
/// and whose tasks do not know yet that another one leads. Check it before each write.
#[derive(Clone, Debug)]
pub struct LeaderCheck {
    held: Arc<Mutex<Option<(u64, Millis)>>>,
    clock: Instant,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to reach the Lease {LEASE}: {0}")]
    Api(#[from] kube::Error),
    #[error("failed to reach the Lease {LEASE}: the request timed out")]
    Silent(#[from] tokio::time::error::Elapsed),
    #[error("failed to use the Lease {LEASE}: it has no resource version")]
    Versionless,
}

// === impl Timing ===

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

// === impl Role ===

impl Role {
    /// Whether it is the leader.
    pub fn leads(&self) -> bool {
        matches!(self, Role::Leader { .. })
    }
}

// === impl Elector ===

impl Elector {
    /// Takes part as `identity`, which no other process may have at the same time: the pod's
    /// name. After a restart it acquires its own Lease again at once, in a new term. `address`
    /// is where other processes reach the discovery endpoint of this one.
    ///
    /// Evaluators refuse a leader with a lower term than they have seen, and a Lease that was
    /// restored from a backup has one. `outranked` reports what they have seen: a leader whose term
    /// is lower begins one above it.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: &str,
        address: &str,
        timing: Timing,
        outranked: watch::Receiver<u64>,
    ) -> Self {
        let clock = Instant::now();
        let (role, _) = watch::channel(Role::Follower { leader: None });
        let held = Arc::default();
        Self {
            api: Api::namespaced(client, namespace),
            machine: Machine::new(identity, address, timing, first_term()),
            clock,
            // Two attempts fit into the renewal deadline.
            timeout: timing.renew / 2,
            role,
            leader_check: LeaderCheck { held, clock },
            last: None,
            outranked,
        }
    }

    /// The role of this process, as it changes.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Whether it leads at this moment.
    pub fn leader_check(&self) -> LeaderCheck {
        self.leader_check.clone()
    }

    /// Runs until `shutdown`, then releases the Lease, so that the next leader takes over at its
    /// next read. Stop everything that only a leader does before you cancel.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut leaving = false;
        let mut inputs = vec![Input::Tick];
        loop {
            let mut out = Vec::new();
            for input in inputs.drain(..) {
                self.machine.step(self.now(), input, &mut out);
            }
            self.leader_check.set(self.machine.held());
            for output in out {
                match output {
                    Output::Role(role) => self.set_role(role),
                    Output::Left => return,
                    Output::Read => inputs.push(Input::Read(self.read().await)),
                    Output::Write(draft) => inputs.push(Input::Written(self.write(draft).await)),
                }
            }
            if !inputs.is_empty() {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.wake()) => inputs.push(Input::Tick),
                Ok(()) = self.outranked.changed() => inputs.extend(self.outranked()),
                () = shutdown.cancelled(), if !leaving => {
                    leaving = true;
                    inputs.push(Input::Leave);
                }
            }
        }
    }

    fn now(&self) -> Millis {
        elapsed(self.clock)
    }

    fn wake(&self) -> Instant {
        let deadline = self.machine.deadline().unwrap_or_else(|| self.now());
        self.clock + Duration::from_millis(deadline.0)
    }

    /// What evaluators have seen, if it can be true.
    fn outranked(&mut self) -> Option<Input> {
        let seen = *self.outranked.borrow_and_update();
        if !is_plausible(seen, first_term()) {
            tracing::warn!(
                seen,
                "ignoring a leadership term that no Lease can have reached"
            );
            return None;
        }
        tracing::warn!(
            seen,
            "evaluators have seen a higher leadership term than that of the Lease: it was restored \
             from a backup, or made again. Raising it if this process leads"
        );
        Some(Input::Outranked(seen))
    }

    fn set_role(&self, role: Role) {
        match &role {
            Role::Leader { transitions } => tracing::info!(transitions, "leading"),
            Role::Follower { leader } => {
                let leader = leader.as_ref().map(|leader| &*leader.identity);
                tracing::info!(leader, "not leading");
            }
        }
        self.role.send_replace(role);
    }

    async fn read(&mut self) -> Option<Option<Record>> {
        let answer = self.bounded(self.api.get_opt(LEASE)).await;
        let answer = answer.and_then(|lease| {
            let record = lease.as_ref().map(object::record).transpose()?;
            Ok((lease, record))
        });
        match answer {
            Ok((lease, record)) => {
                self.last = lease;
                Some(record)
            }
            Err(error) => failed(&error),
        }
    }

    async fn write(&mut self, draft: Draft) -> Option<Record> {
        let lease = object::lease(self.last.as_ref(), &draft, jiff::Timestamp::now());
        let post = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let answer = match draft.version {
            Some(_) => {
                let write = self.api.replace(LEASE, &post, &lease);
                self.bounded(write).await
            }
            None => self.bounded(self.api.create(&post, &lease)).await,
        };
        match answer.and_then(|lease| Ok((object::record(&lease)?, lease))) {
            Ok((record, lease)) => {
                self.last = Some(lease);
                Some(record)
            }
            Err(error) => failed(&error),
        }
    }

    /// Cancels a request that hangs, and any request at the moment when leadership ends: it must
    /// end on time, whatever the API server does.
    async fn bounded<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let mut end = Instant::now() + self.timeout;
        if let Some((_, until)) = self.machine.held() {
            end = end.min(self.clock + Duration::from_millis(until.0));
        }
        Ok(tokio::time::timeout_at(end, request).await??)
    }
}

// === impl LeaderCheck ===

impl LeaderCheck {
    /// The term in which this process leads at this moment, if it does.
    pub fn leads(&self) -> Option<u64> {
        let held = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (term, until) = held?;
        (elapsed(self.clock) < until).then_some(term)
    }

    fn set(&self, held: Option<(u64, Millis)>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

/// Takes the Lease from its holder. No other process acquires it for the time `hold`. If there
/// was a holder, the result is how long that process may still act. With an `owner` the Lease is
/// garbage-collected with that object.
pub async fn seize(
    client: &Client,
    namespace: &str,
    identity: &str,
    hold: Duration,
    owner: Option<&OwnerReference>,
) -> Result<Option<Duration>, kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    loop {
        let Some(last) = api.get_opt(names::LEASE).await? else {
            return Ok(None);
        };
        let Ok(record) = object::record(&last) else {
            return Ok(None);
        };
        let led = record.holder.is_some_and(|holder| holder != identity);
        let draft = Draft {
            version: Some(record.version),
            holder: Some(identity.to_owned()),
            address: String::new(),
            transitions: record.transitions + 1,
            lease: hold,
            acquires: true,
        };
        let mut lease = object::lease(Some(&last), &draft, jiff::Timestamp::now());
        if let Some(owner) = owner {
            lease.metadata.owner_references = Some(vec![owner.clone()]);
        }
        match api
            .replace(names::LEASE, &PostParams::default(), &lease)
            .await
        {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            other => return other.map(|_| led.then_some(record.lease)),
        }
    }
}

fn elapsed(clock: Instant) -> Millis {
    Millis::default() + clock.elapsed()
}

/// The first term of a new Lease: minutes since 1970. Evaluators reject a lower term than they
/// have seen, and people delete Leases; counting from zero again would lock this process out.
fn first_term() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second() / 60).unwrap_or_default()
}

/// Whether a Lease can have reached this term: terms begin at the minutes since 1970 and rise by
/// one with each leader. The allowance is for very many of them. Without a limit, one replica that
/// lies could use up all terms that the object can hold.
fn is_plausible(term: u64, minutes: u64) -> bool {
    const ALLOWANCE: u64 = 10_000_000;
    term <= minutes.saturating_add(ALLOWANCE) && term < i32::MAX as u64
}

fn failed<T>(error: &Error) -> Option<T> {
    // A conflict means that another process won the election.
    match error {
        Error::Api(kube::Error::Api(status)) if status.code == 409 => {
            tracing::debug!("another process wrote the Lease");
        }
        error => tracing::warn!(%error, "retrying"),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terms_that_a_lease_can_have_are_believed() {
        let minutes = first_term();
        for plausible in [0, 1, minutes, minutes + 100_000] {
            assert!(is_plausible(plausible, minutes), "{plausible}");
        }
        for lie in [minutes * 2, i32::MAX as u64, u64::MAX] {
            assert!(!is_plausible(lie, minutes), "{lie}");
        }
    }
}
