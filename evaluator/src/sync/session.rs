//! One stream, from its first message to its end.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use assent_core::{Policy, RevisionId};
use assent_proto::v1::{
    DeltaPolicyDiscoveryRequest, DeltaPolicyDiscoveryResponse,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{
    DiscoveryClient, End, backoff,
    backoff::Ended,
    health, leader_of,
    machine::{Input, Output, Timing},
    pop,
};
use crate::{
    client::{Connection, chain},
    evaluation::HealthEvent,
    prepare::{Modules, Outcome},
    wire,
};

/// State that ends with the stream.
struct Session {
    sender: mpsc::Sender<DeltaPolicyDiscoveryRequest>,
    modules: Modules,
    job: Option<Job>,
    retry_at: Option<Instant>,
    resync_at: Option<Instant>,
    swap_us: u64,
}

/// A preparation in progress; dropping it cancels it.
type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

struct Done {
    policies: Vec<Arc<Policy>>,
    outcomes: BTreeMap<RevisionId, Outcome>,
    timing: Timing,
}

/// Answers that may wait to be sent. One response is outstanding at a time; a few more
/// answers come from retries and late failures.
const ANSWERS: usize = 16;

/// A healthy control plane ends a half-closed stream at once.
const LEAVE: Duration = Duration::from_secs(1);

/// Why a session ends.
enum Stop {
    /// The server ended the stream, or it broke.
    Status(Status),
    /// The server ended it without an error.
    Closed,
    /// This side wants another stream.
    Reconnect,
    /// The announced and the loaded revisions have to be compared again.
    Resync,
}

// === impl DiscoveryClient ===

impl DiscoveryClient {
    /// Runs one stream to its end.
    pub(crate) async fn session(&mut self, connection: Connection) -> End {
        self.modules = Some(Modules::new(connection.clone()));
        self.live.store(Some(Arc::new(connection.clone())));
        let stop = self.follow(connection).await;
        self.live.store(None);
        let worked = self.machine.has_applied();
        self.modules = None;
        let mut nothing = Vec::new();
        self.machine.step(Input::Disconnected, &mut nothing);
        end(stop, worked)
    }

    async fn follow(&mut self, connection: Connection) -> Stop {
        let (sender, receiver) = mpsc::channel(ANSWERS);
        let mut session = Session {
            sender,
            modules: Modules::new(connection.clone()),
            job: None,
            retry_at: None,
            resync_at: None,
            swap_us: 0,
        };
        if let Err(stop) = self.act(Input::Connected, &mut session) {
            return stop;
        }
        let mut client = PolicyDiscoveryServiceClient::new(connection.clone());
        let opened = client.delta_policies(ReceiverStream::new(receiver)).await;
        let mut inbound = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return Stop::Status(status),
        };
        self.metrics.connected.set(1);
        let (active, connector, node) = (
            self.active.clone(),
            self.connector.clone(),
            self.node.clone(),
        );
        let replication = self.context.clone();
        let objects = replication.run(connection.clone(), node.clone());
        let mut context_changes = replication.data().changes();
        let health = health::run(connection, connector, node, active);
        tokio::pin!(health, objects);
        loop {
            let (retry_at, resync_at) = (session.retry_at, session.resync_at);
            let input = tokio::select! {
                message = inbound.message(), if self.machine.reads() => match message {
                    Ok(Some(message)) => self.received(message, &mut session),
                    Ok(None) => return Stop::Closed,
                    Err(status) => return Stop::Status(status),
                },
                done = async { session.job.as_mut().expect("checked below").await }, if session.job.is_some() => {
                    session.job = None;
                    let results = self.adopt(&done.policies, done.outcomes);
                    Input::Prepared { results, timing: done.timing }
                }
                event = self.health.recv() => match event {
                    Some(HealthEvent::Failed { revision, why }) => Input::RuntimeFailed { revision, why },
                    Some(HealthEvent::Recovered { revision }) => Input::RuntimeRecovered { revision },
                    None => return Stop::Closed,
                },
                () = until(retry_at), if retry_at.is_some() => {
                    session.retry_at = None;
                    Input::RetryDue
                }
                () = until(resync_at), if resync_at.is_some() => {
                    session.resync_at = None;
                    if self.machine.has_rejected() {
                        return Stop::Resync;
                    }
                    continue;
                }
                Ok(()) = context_changes.changed() => Input::ContextChanged,
                () = &mut objects => continue,
                () = &mut health => return Stop::Reconnect,
            };
            if let Err(stop) = self.act(input, &mut session) {
                if matches!(stop, Stop::Reconnect) {
                    session.leave(inbound).await;
                }
                return stop;
            }
        }
    }

    /// A new response cancels a retry: the next plan includes its revisions.
    fn received(&mut self, message: DeltaPolicyDiscoveryResponse, session: &mut Session) -> Input {
        session.job = None;
        session.retry_at = None;
        let nonce = message.nonce.clone();
        match wire::read(message) {
            Ok(part) => Input::Received(part),
            Err(error) => Input::Unreadable {
                nonce,
                why: error.to_string(),
            },
        }
    }

    /// Steps the state machine and performs its outputs.
    fn act(&mut self, input: Input, session: &mut Session) -> Result<(), Stop> {
        let mut out = Vec::new();
        self.machine.step(input, &mut out);
        while let Some(output) = pop(&mut out) {
            match output {
                Output::Open(hello) => {
                    let client = self.node.endpoint.clone();
                    session.send(wire::hello(self.node.clone(), client, &hello))?;
                }
                Output::Prepare(policies) => session.prepare(self, policies),
                Output::Swap(swap) => {
                    let took = self.swap(*swap);
                    session.swap_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                }
                Output::Answer(mut answer) => {
                    answer.timing.swap_us = session.swap_us;
                    self.note(&answer);
                    session.send(wire::answer(answer))?;
                }
                Output::RetryLater { attempt } => {
                    let wait = backoff::retry(attempt, rand::random());
                    session.retry_at = Some(Instant::now() + wait);
                }
                Output::ResyncLater => session.resync_at = Some(Instant::now() + self.resync),
                Output::Reconnect => return Err(Stop::Reconnect),
            }
        }
        Ok(())
    }

    fn note(&self, answer: &super::machine::Answer) {
        let rejected = i64::try_from(answer.rejected.len()).unwrap_or(i64::MAX);
        self.metrics.rejected_policies.set(rejected);
        match &answer.error {
            None => tracing::debug!(nonce = answer.nonce, "acknowledged"),
            Some(error) => tracing::warn!(nonce = answer.nonce, error, "refused"),
        }
    }
}

// === impl Session ===

impl Session {
    /// Never waits: a server that does not read answers is lost.
    fn send(&self, message: DeltaPolicyDiscoveryRequest) -> Result<(), Stop> {
        let lost = |_| Stop::Status(Status::unavailable("the control plane reads no answers"));
        self.sender.try_send(message).map_err(lost)
    }

    /// Closes the stream behind the last answer: dropped at once, it would be reset, and the
    /// answer that gives the reason would be lost.
    async fn leave(self, mut inbound: Streaming<DeltaPolicyDiscoveryResponse>) {
        drop(self.sender);
        let ended = async { while let Ok(Some(_)) = inbound.message().await {} };
        let _ = tokio::time::timeout(LEAVE, ended).await;
    }

    fn prepare(&mut self, client: &DiscoveryClient, policies: Vec<Arc<Policy>>) {
        let (preparer, modules) = (client.preparer.clone(), self.modules.clone());
        self.job = Some(Box::pin(async move {
            let (outcomes, timing) = preparer.prepare(policies.clone(), Some(modules)).await;
            Done {
                policies,
                outcomes,
                timing,
            }
        }));
    }
}

fn end(stop: Stop, worked: bool) -> End {
    let usual = if worked { Ended::Worked } else { Ended::Failed };
    match stop {
        Stop::Closed => {
            tracing::info!("discovery stream closed by the control plane");
            End {
                ended: usual,
                leader: None,
            }
        }
        Stop::Reconnect => End {
            ended: Ended::Aborted,
            leader: None,
        },
        Stop::Resync => {
            tracing::warn!(
                "a rejected response is still unresolved; requesting the whole set again"
            );
            End {
                ended: Ended::Failed,
                leader: None,
            }
        }
        Stop::Status(status) => {
            let leader = leader_of(&status);
            let ended = if status.code() == Code::Aborted {
                Ended::Aborted
            } else {
                usual
            };
            tracing::warn!(code = ?status.code(), why = chain(&status), ?leader, "discovery stream ended");
            End { ended, leader }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
