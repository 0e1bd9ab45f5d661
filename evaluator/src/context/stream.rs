//! The client's side of the context stream, beside the discovery stream.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use assent_proto::v1::{self, context_service_client::ContextServiceClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::{
    data::{ContextData, View},
    machine::{Machine, Output, Published},
};
use crate::{
    client::{Connection, chain},
    metrics::Metrics,
};

/// What is replicated, and how it got here. Outlives streams.
pub(crate) struct Replication {
    machine: Mutex<Machine>,
    data: Arc<ContextData>,
    metrics: Metrics,
}

/// At most four responses are unanswered; each is answered once.
const ANSWERS: usize = 16;

/// The largest message: the control plane sends 3 MiB, or one large object.
const MAX_MESSAGE: usize = 8 << 20;

/// Between two attempts while the discovery stream goes on.
const AGAIN: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(30);

// === impl Replication ===

impl Replication {
    pub(crate) fn new(machine: Machine, data: Arc<ContextData>, metrics: Metrics) -> Self {
        data.set_max_staleness(machine.limits().max_staleness);
        Self {
            machine: Mutex::new(machine),
            data,
            metrics,
        }
    }

    pub(crate) fn data(&self) -> &Arc<ContextData> {
        &self.data
    }

    /// The leadership that the discovery stream has seen counts here too (C10).
    pub(crate) fn saw(&self, lease_transitions: u64) {
        self.lock().saw(lease_transitions);
    }

    pub(crate) fn limits(&self) -> super::machine::Limits {
        self.lock().limits()
    }

    /// Follows the stream until the future is dropped. Never returns: a context stream that fails does not end the
    /// discovery stream.
    pub(crate) async fn run(&self, connection: Connection, node: v1::Node) {
        let mut wait = AGAIN;
        loop {
            let began = Instant::now();
            let status = self.follow(connection.clone(), node.clone()).await;
            if status.code() == Code::Unimplemented {
                // A control plane that replicates nothing: there is nothing to wait for.
                return std::future::pending().await;
            }
            tracing::warn!(code = ?status.code(), why = chain(&status), "context stream ended");
            if began.elapsed() > AT_MOST {
                wait = AGAIN;
            }
            tokio::time::sleep(wait.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            wait = (wait * 2).min(AT_MOST);
        }
    }

    async fn follow(&self, connection: Connection, mut node: v1::Node) -> Status {
        let (sender, receiver) = mpsc::channel(ANSWERS);
        let held = {
            let mut machine = self.lock();
            node.lease_transitions = machine.lease_transitions();
            machine.held()
        };
        let hello = v1::ContextRequest {
            node: Some(node),
            held,
            ..v1::ContextRequest::default()
        };
        if sender.try_send(hello).is_err() {
            return Status::internal("the first message must fit");
        }
        let mut client =
            ContextServiceClient::new(connection).max_decoding_message_size(MAX_MESSAGE);
        let opened = client.stream_context(ReceiverStream::new(receiver)).await;
        let mut inbound = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
        loop {
            match inbound.message().await {
                Ok(Some(message)) => {
                    if let Err(status) = self.receive(message, &sender) {
                        return status;
                    }
                }
                Ok(None) => return Status::unavailable("closed by the control plane"),
                Err(status) => return status,
            }
        }
    }

    fn receive(
        &self,
        message: v1::ContextResponse,
        sender: &mpsc::Sender<v1::ContextRequest>,
    ) -> Result<(), Status> {
        let mut out = Vec::new();
        self.lock().receive(message, &mut out);
        for output in out {
            match output {
                Output::Publish(published) => self.data.publish(view(published)),
                Output::Remove(id) => self.data.remove(id),
                Output::Limits(limits) => self.data.set_max_staleness(limits.max_staleness),
                Output::Mismatch(id) => {
                    self.metrics.context_mismatches.inc();
                    tracing::error!(collection = %id, "objects differ from the control plane's; repairing them");
                }
                Output::Answer(answer) => {
                    if let Some(error) = &answer.error_detail {
                        tracing::warn!(error = error.message, "objects refused");
                    }
                    // Never waits: a server that does not read answers is lost.
                    let lost = |_| Status::unavailable("the control plane reads no answers");
                    sender.try_send(answer).map_err(lost)?;
                }
                Output::Reconnect(why) => return Err(Status::aborted(why)),
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn view(published: Published) -> View {
    View {
        snapshot: published.snapshot,
        spec: published.spec,
        state: published.state,
        detail: published.detail,
        age: published.age,
        received: Instant::now(),
        observed_at: published.observed_at,
    }
}
