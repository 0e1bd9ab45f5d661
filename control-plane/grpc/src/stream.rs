//! One stream: runs its session, one task each.

use std::{pin::pin, sync::Arc};

use assent_core::session::{Input, Output, Report, Response, Session};
use futures::future::{BoxFuture, OptionFuture};
use tokio::{sync::watch, time::Instant};
use tonic::{Status, codec::Streaming};

use crate::{
    auth::Gate,
    conn::{Peer, Use},
    encode::Settings,
    events::StreamEvent,
    frames::{self, Published},
    from_proto::Request,
    hub::{Hub, not_found, not_synced},
    metrics::ServerMetrics,
    pipe::Pipe,
    registry::Registered,
};

mod open;
mod timing;

pub(crate) use open::Opening;
use open::node_hash;
use timing::Timing;

/// An open stream.
struct Stream<R> {
    hub: Hub,
    gate: Gate,
    registered: Registered,
    metrics: ServerMetrics,
    /// A hash of the node, which must not change during the stream (R1).
    node: u64,
    published: watch::Receiver<Option<Arc<Published>>>,
    requests: Streaming<R>,
    pipe: Arc<Pipe>,
    session: Session,
    timing: Timing,
    /// Whether the client gets settings that come from Secrets.
    settings: Settings,
    /// The client has closed its side.
    half_closed: bool,
    peer: Option<Peer>,
    in_use: Option<Use>,
}

/// The stream has ended.
struct Over;

// === impl Stream ===

impl<R: Request> Stream<R> {
    /// Boxed, so that the stream is in memory once and not once for each state of its task.
    async fn run(mut self: Box<Self>) {
        self.metrics.opened();
        let Over = self.drive().await;
        self.metrics.closed();
        self.retire().await;
    }

    async fn drive(&mut self) -> Over {
        // At the stream's age: whether its client could open another one.
        let mut renewable: OptionFuture<BoxFuture<'static, bool>> = None.into();
        let mut timer = pin!(tokio::time::sleep_until(self.timing.next(&self.pipe)));
        loop {
            if self.pipe.is_ended() || self.is_due() {
                return Over;
            }
            if self.timing.reach_age(Instant::now()) {
                renewable = Some(self.gate.is_available()).into();
            }
            let next = self.timing.next(&self.pipe);
            // A timer that fires early costs one check. Moving it for every message costs more.
            if next < timer.deadline() || timer.is_elapsed() {
                timer.as_mut().reset(next);
            }
            let sends = !self.session.is_outstanding() && self.pipe.has_room();
            let reads = !self.half_closed && self.timing.may_read();
            let step = tokio::select! {
                biased;
                () = self.pipe.changed() => Ok(()),
                () = timer.as_mut() => Ok(()),
                Some(is_renewable) = &mut renewable => {
                    renewable = None.into();
                    self.aged(is_renewable)
                }
                changed = self.published.changed(), if sends => self.publish(changed.is_ok()).await,
                message = self.requests.message(), if reads => self.message(message).await,
            };
            if step.is_err() {
                return Over;
            }
        }
    }

    /// Ends the stream if one of its deadlines has passed.
    fn is_due(&self) -> bool {
        match self.timing.due(&self.pipe, Instant::now()) {
            Some(status) => self.pipe.close(status),
            None => return false,
        }
        true
    }

    /// Ends a stream that has reached its age, unless its client could not come back.
    fn aged(&mut self, is_renewable: bool) -> Result<(), Over> {
        if !is_renewable && self.timing.extend_age() {
            return Ok(());
        }
        let text = "the stream has reached its age: connect again";
        Err(self.end(Status::ok(text)))
    }

    async fn publish(&mut self, alive: bool) -> Result<(), Over> {
        if !alive {
            return Err(self.end(not_found(&self.registered.key.server)));
        }
        let published = self.published.borrow_and_update().clone();
        let Some(published) = published else {
            return Ok(());
        };
        self.timing.synced();
        let mut out = Vec::with_capacity(2);
        self.session
            .step(Input::Publish(published.snapshot.clone()), &mut out);
        self.perform(out).await?;
        self.end_if_half_closed()
    }

    async fn message(&mut self, message: Result<Option<R>, Status>) -> Result<(), Over> {
        let mut message = match message {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.half_closed = true;
                return self.end_if_half_closed();
            }
            Err(status) => return Err(self.end(open::unreadable(status))),
        };
        if self.timing.read() {
            self.hub.metrics().throttled();
        }
        if message.is_oversized() {
            self.hub.metrics().cut();
        }
        if let Some(node) = message.take_node()
            && node_hash(node) != Some(self.node)
        {
            let text = "`node` differs from the one that opened the stream";
            return Err(self.end(Status::invalid_argument(text)));
        }
        let mut out = Vec::new();
        self.session
            .step(Input::Answer(message.into_answer()), &mut out);
        self.perform(out).await
    }

    /// A client that has closed its side gets what is due, then OK.
    fn end_if_half_closed(&mut self) -> Result<(), Over> {
        if self.half_closed && self.timing.is_synced() {
            self.pipe.finish(Status::ok(""));
            return Err(Over);
        }
        Ok(())
    }

    async fn perform(&mut self, out: Vec<Output>) -> Result<(), Over> {
        let mut last: Option<Report> = None;
        for output in out {
            match output {
                Output::Send(response) => self.send(&response),
                Output::Count(event) => {
                    let server = &self.registered.key.server;
                    self.hub.metrics().count(server, &self.metrics, event);
                }
                Output::Report(report) => last = Some(report),
            }
        }
        match last {
            Some(report) => self.report(report).await,
            None => Ok(()),
        }
    }

    fn send(&self, response: &Response) {
        // The newest snapshot has the encoded frames that streams share.
        let Some(published) = self.published.borrow().clone() else {
            return self.pipe.close(not_synced());
        };
        let encoded = published.encoded(R::KIND, response, self.settings);
        self.pipe.push(&encoded, response.nonce);
        self.hub
            .metrics()
            .pushed(frames::push(&response.body), encoded.len());
    }

    async fn report(&self, report: Report) -> Result<(), Over> {
        let Registered { key, stream, .. } = &self.registered;
        let event = StreamEvent::Reported {
            server: key.server.clone(),
            replica: key.replica.clone(),
            stream: *stream,
            report,
        };
        self.send_event(event).await
    }

    async fn send_event(&self, event: StreamEvent) -> Result<(), Over> {
        let sent = self.hub.inner().events.send(event).await;
        sent.map_err(|_| {
            self.end(Status::unavailable(
                "the control plane is ending: connect again",
            ))
        })
    }

    fn end(&self, status: Status) -> Over {
        self.pipe.close(status);
        Over
    }

    /// Ends the stream: the replica is disconnected from here on. If the client does not read
    /// the end either, its connection is closed.
    async fn retire(self: Box<Self>) {
        let Stream {
            hub,
            registered,
            pipe,
            peer,
            in_use,
            timing,
            requests,
            ..
        } = *self;
        let code = pipe.end_code();
        if let Some(code) = code.filter(|code| *code != tonic::Code::Ok) {
            hub.metrics().refused(code);
        }
        tracing::debug!(
            server = %registered.key.server, replica = %registered.key.replica,
            stream = registered.stream, ?code, "stream ended"
        );
        let event = StreamEvent::Closed {
            server: registered.key.server.clone(),
            replica: registered.key.replica.clone(),
            stream: registered.stream,
        };
        drop((registered, in_use));
        // A controller that has stopped does not need the event.
        let _ = hub.inner().events.send(event).await;
        let until = Instant::now() + timing.leave();
        while !pipe.is_over() {
            if tokio::time::timeout_at(until, pipe.changed())
                .await
                .is_err()
            {
                break;
            }
        }
        if let (false, Some(peer)) = (pipe.is_over(), peer) {
            peer.kill_if_unused();
        }
        drop(requests);
    }
}
