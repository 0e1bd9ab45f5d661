//! The opening of a stream: first message, identity, PolicyServer.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, LazyLock},
};

use assent_core::{
    fleet::{Name, Node},
    session::{InitialRequest, Session},
};
use assent_proto::v1;
use tokio::time::Instant;
use tonic::{Code, Status, codec::Streaming};
use tracing::Instrument as _;

use super::{Stream, timing::Timing};
use crate::{
    auth::{Caller, Gate},
    events::StreamEvent,
    from_proto::{self, Request},
    hub::{Hub, Server},
    metrics::BadFirst,
    pipe::Pipe,
    registry::Key,
};

static NODES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A stream of an authenticated caller before its first message was read.
pub(crate) struct Opening<R> {
    pub(crate) hub: Hub,
    pub(crate) gate: Gate,
    pub(crate) caller: Caller,
    pub(crate) requests: Streaming<R>,
    pub(crate) pipe: Arc<Pipe>,
}

// === impl Opening ===

impl<R: Request> Opening<R> {
    /// Opens the stream, which continues in a task of its own: this one is larger than a stream
    /// needs for the rest of its life.
    pub(crate) async fn run(mut self) {
        let pipe = self.pipe.clone();
        let opened = tokio::select! {
            opened = self.first() => opened,
            () = gone(&pipe) => return,
        };
        let stream = match opened {
            Ok((node, first, server)) => self.enter(node, first, &server).await,
            Err(status) => {
                self.hub.metrics().refused(status.code());
                return pipe.finish(status);
            }
        };
        tokio::spawn(stream.run().in_current_span());
    }

    async fn first(&mut self) -> Result<(Node, InitialRequest, Arc<Server>), Status> {
        let message = self.first_message().await;
        let (node, first) = match message.and_then(|message| self.read(message)) {
            Ok(read) => read,
            Err((bad, status)) => return Err(self.bad(bad, status)),
        };
        let until = Instant::now() + self.hub.inner().config.sync_deadline;
        let server = self.hub.resolve(&node.policy_server, until).await;
        let server = server.map_err(|status| match status.code() {
            Code::NotFound => self.bad(BadFirst::UnknownServer, status),
            _ => status,
        })?;
        Ok((node, first, server))
    }

    async fn first_message(&mut self) -> Result<R, (BadFirst, Status)> {
        let deadline = self.hub.inner().config.first_message_deadline;
        match tokio::time::timeout(deadline, self.requests.message()).await {
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err(invalid(from_proto::Error::NoNode)),
            Ok(Err(status)) => Err((BadFirst::Unreadable, unreadable(status))),
            Err(_) => {
                let status = Status::deadline_exceeded("no first message came");
                Err((BadFirst::Missing, status))
            }
        }
    }

    fn read(&self, mut message: R) -> Result<(Node, InitialRequest), (BadFirst, Status)> {
        let node = message.take_node().ok_or(from_proto::Error::NoNode);
        let node = node.map_err(invalid)?;
        let seen = node.lease_transitions;
        let node = from_proto::node(node).map_err(invalid)?;
        let principal = &self.caller.principal;
        principal
            .check(&node.id, &node.policy_server)
            .map_err(|status| (BadFirst::Identity, status))?;
        if principal.is_counted() {
            self.hub.see_transitions(seen);
        }
        let first = message.into_initial().map_err(invalid)?;
        Ok((node, first))
    }

    fn bad(&self, bad: BadFirst, status: Status) -> Status {
        self.hub.metrics().refused_first(bad);
        status
    }

    async fn enter(self, node: Node, first: InitialRequest, server: &Server) -> Box<Stream<R>> {
        let Opening {
            hub,
            gate,
            caller,
            requests,
            pipe,
        } = self;
        let key = Key {
            server: server.name.clone(),
            replica: Name::from(node.id.as_str()),
        };
        let mut published = server.published.subscribe();
        published.mark_changed();
        let registered = hub
            .inner()
            .streams
            .enter(key, &node.instance_uid, pipe.clone());
        // If the process became a standby a moment ago, this stream was not closed with the others.
        if let Err(status) = hub.check_serving() {
            pipe.close(status);
        }
        let stream = Box::new(Stream {
            metrics: server.metrics.clone(),
            node: hash(&node),
            session: Session::new(R::KIND, registered.stream, first),
            timing: Timing::new(&hub.inner().config, caller.principal.expires()),
            in_use: caller.peer.as_ref().map(|peer| peer.use_stream()),
            peer: caller.peer,
            settings: caller.principal.settings(),
            half_closed: false,
            gate,
            hub,
            registered,
            published,
            requests,
            pipe,
        });
        let opened = StreamEvent::Opened {
            identity: caller.principal.identity().to_owned(),
            stream: stream.registered.stream,
            node,
        };
        // If the controller has stopped, the first report ends the stream.
        let _ = stream.send_event(opened).await;
        stream
    }
}

/// The hash by which a repeated node is compared; `None` if the node is malformed.
pub(super) fn node_hash(node: v1::Node) -> Option<u64> {
    from_proto::node(node).ok().map(|node| hash(&node))
}

/// A message that is too long or malformed is the client's fault, for which tonic uses
/// OUT_OF_RANGE and INTERNAL.
pub(super) fn unreadable(status: Status) -> Status {
    match status.code() {
        Code::Internal | Code::OutOfRange => {
            Status::invalid_argument(format!("failed to read a message: {}", status.message()))
        }
        _ => status,
    }
}

fn hash(node: &Node) -> u64 {
    let Node {
        id,
        policy_server,
        instance_uid,
        evaluator_version,
        engine,
        abis,
        endpoint,
        features,
    } = node;
    let names = (id, policy_server, instance_uid, evaluator_version);
    NODES.hash_one((names, engine, abis, endpoint, features))
}

fn invalid(error: from_proto::Error) -> (BadFirst, Status) {
    let bad = match error {
        from_proto::Error::NoNode => BadFirst::NoNode,
        from_proto::Error::LargeNode(_) => BadFirst::LargeNode,
        from_proto::Error::BadId => BadFirst::BadId,
        from_proto::Error::TooManyHeld(_) => BadFirst::TooManyHeld,
    };
    (bad, Status::invalid_argument(error.to_string()))
}

async fn gone(pipe: &Pipe) {
    while !pipe.is_over() {
        pipe.changed().await;
    }
}
