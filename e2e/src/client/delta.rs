//! An incremental stream that checks every response against the protocol's arithmetic.

use assent_proto::v1::{
    self, DeltaPolicyDiscoveryRequest, DeltaPolicyDiscoveryResponse, Node,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::{failure, first, rejection, with_token};
use crate::{
    PATIENCE, QUIET,
    hash::{Held, content_digest},
};

/// An incremental stream.
pub struct Delta {
    requests: Option<mpsc::Sender<DeltaPolicyDiscoveryRequest>>,
    responses: Streaming<DeltaPolicyDiscoveryResponse>,
    /// What was announced before the newest response.
    base: Held,
    /// What the newest response makes of it.
    offer: Held,
    /// A response of this stream was taken.
    taken: bool,
    /// Its first message claimed something whose routes are not known here.
    blind: bool,
}

// === impl Delta ===

impl Delta {
    /// Opens a stream with this first message.
    pub async fn open(
        channel: Channel,
        first: DeltaPolicyDiscoveryRequest,
    ) -> Result<Self, Status> {
        Self::open_as(channel, first, None).await
    }

    /// The same with a token.
    pub async fn open_as(
        channel: Channel,
        first: DeltaPolicyDiscoveryRequest,
        token: Option<&str>,
    ) -> Result<Self, Status> {
        let claim = Held {
            revisions: first.initial_revisions.clone().into_iter().collect(),
            ..Held::default()
        };
        let blind = !claim.revisions.is_empty() || !first.version_info.is_empty();
        let (requests, outgoing) = mpsc::channel(256);
        requests.send(first).await.expect("channel must be open");
        let mut client = PolicyDiscoveryServiceClient::new(channel);
        let request = with_token(ReceiverStream::new(outgoing), token);
        Ok(Self {
            requests: Some(requests),
            responses: client.delta_policies(request).await?.into_inner(),
            offer: claim.clone(),
            base: claim,
            taken: false,
            blind,
        })
    }

    /// Opens a stream of a replica without state.
    pub async fn connect(channel: Channel, node: Node) -> Self {
        Self::open(channel, first(node))
            .await
            .expect("stream must open")
    }

    /// Opens a stream of a replica that holds a set, as an evaluator does after a restart.
    pub async fn resume(channel: Channel, node: Node, held: &Held) -> Self {
        let first = DeltaPolicyDiscoveryRequest {
            initial_revisions: held.revisions.clone().into_iter().collect(),
            version_info: held.version(),
            ..first(node)
        };
        let mut stream = Self::open(channel, first).await.expect("stream must open");
        stream.base = held.clone();
        stream.offer = held.clone();
        stream.blind = false;
        stream
    }

    /// How a stream with this first message is refused.
    pub async fn refusal(channel: Channel, first: DeltaPolicyDiscoveryRequest) -> Status {
        Self::refusal_as(channel, first, None).await
    }

    /// The same with a token.
    pub async fn refusal_as(
        channel: Channel,
        first: DeltaPolicyDiscoveryRequest,
        token: Option<&str>,
    ) -> Status {
        let mut stream = match Self::open_as(channel, first, token).await {
            Ok(stream) => stream,
            Err(status) => return status,
        };
        match timeout(PATIENCE, stream.responses.message())
            .await
            .expect("an answer must come")
        {
            Ok(message) => panic!("the stream was not refused: {message:?}"),
            Err(status) => status,
        }
    }

    /// The next response, with its parts joined and its version verified.
    pub async fn next(&mut self) -> DeltaPolicyDiscoveryResponse {
        let mut response = self.message().await;
        let parts = response.parts;
        assert!(parts != 1, "one part is no split");
        for part in 2..=parts {
            let next = self.message().await;
            assert_eq!((next.part, next.parts), (part, parts));
            assert_eq!(next.version_info, response.version_info);
            assert_eq!(next.nonce, response.nonce);
            response.policies.extend(next.policies);
            response.removed_revisions.extend(next.removed_revisions);
            response.routes.extend(next.routes);
            response.removed_routes.extend(next.removed_routes);
        }
        self.offer(&response);
        response
    }

    /// How the stream ends, whatever responses come before that.
    pub async fn ended(&mut self) -> Status {
        loop {
            let message = timeout(PATIENCE, self.responses.message()).await;
            match message.expect("the stream must end") {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }

    /// Expects that nothing comes for a while.
    pub async fn silent(&mut self) {
        let message = timeout(QUIET, self.responses.message()).await;
        assert!(message.is_err(), "unexpected: {message:?}");
    }

    /// Sends a message as it is.
    pub async fn send(&self, request: DeltaPolicyDiscoveryRequest) {
        let requests = self.requests.as_ref().expect("stream must be open");
        requests
            .send(request)
            .await
            .expect("stream must take requests");
    }

    /// Acknowledges a response on a stream that may have ended meanwhile.
    pub async fn ack_late(&mut self, response: &DeltaPolicyDiscoveryResponse) {
        let requests = self.requests.as_ref().expect("stream must be open");
        let _ = requests.send(answer(response)).await;
    }

    /// Acknowledges a response.
    pub async fn ack(&mut self, response: &DeltaPolicyDiscoveryResponse) {
        self.take();
        self.send(answer(response)).await;
    }

    /// Refuses a response whole.
    pub async fn nack(&mut self, response: &DeltaPolicyDiscoveryResponse, message: &str) {
        self.offer = self.base.clone();
        self.send(DeltaPolicyDiscoveryRequest {
            version_info: String::new(),
            error_detail: Some(failure(message)),
            ..answer(response)
        })
        .await;
    }

    /// Refuses single revisions of a response and takes the rest.
    pub async fn reject(&mut self, response: &DeltaPolicyDiscoveryResponse, revisions: &[&str]) {
        self.take();
        self.send(DeltaPolicyDiscoveryRequest {
            version_info: String::new(),
            error_detail: Some(failure("some are not loaded")),
            rejected: revisions
                .iter()
                .map(|r| rejection(r, "no such setting"))
                .collect(),
            ..answer(response)
        })
        .await;
    }

    /// Takes and acknowledges responses until `holds`; the last one comes back.
    pub async fn follow(&mut self, holds: impl Fn(&Held) -> bool) -> DeltaPolicyDiscoveryResponse {
        loop {
            let response = self.next().await;
            self.ack(&response).await;
            if holds(&self.offer) {
                return response;
            }
        }
    }

    /// Follows until the policy's active route is of this generation.
    pub async fn follow_active(
        &mut self,
        policy: &str,
        generation: i64,
    ) -> DeltaPolicyDiscoveryResponse {
        let holds = |held: &Held| is(held, policy, generation, v1::RouteState::Active);
        self.follow(holds).await
    }

    /// The set that was announced last.
    pub fn held(&self) -> &Held {
        &self.offer
    }

    /// Closes the sending side.
    pub fn half_close(&mut self) {
        self.requests = None;
    }

    async fn message(&mut self) -> DeltaPolicyDiscoveryResponse {
        let message = timeout(PATIENCE, self.responses.message()).await;
        let message = message.expect("a response must come");
        message
            .expect("the stream must go on")
            .expect("the stream must not end")
    }

    fn take(&mut self) {
        self.base = self.offer.clone();
        self.taken = true;
    }

    fn offer(&mut self, response: &DeltaPolicyDiscoveryResponse) {
        let mut offer = self.base.clone();
        if response.no_change {
            let DeltaPolicyDiscoveryResponse {
                policies, routes, ..
            } = response;
            assert!(
                policies.is_empty() && routes.is_empty(),
                "no change has no content"
            );
            assert!(response.removed_revisions.is_empty() && response.removed_routes.is_empty());
        } else if !self.taken {
            offer.routes.clear();
            self.blind = false;
        }
        for policy in &response.policies {
            assert_eq!(
                policy.content_digest,
                content_digest(policy),
                "{}",
                policy.revision
            );
            offer
                .revisions
                .insert(policy.revision.clone(), policy.content_digest.clone());
        }
        for revision in &response.removed_revisions {
            assert!(
                offer.revisions.remove(revision).is_some(),
                "{revision} was never held"
            );
        }
        for route in &response.routes {
            offer.routes.insert(route.path.clone(), route.clone());
        }
        for path in &response.removed_routes {
            assert!(
                offer.routes.remove(path).is_some(),
                "{path} was never there"
            );
        }
        if !self.blind {
            assert_eq!(response.version_info, offer.version(), "{offer:#?}");
        }
        self.offer = offer;
    }
}

/// Whether the policy's route of this generation is in that state.
pub fn is(held: &Held, policy: &str, generation: i64, state: v1::RouteState) -> bool {
    let prefix = format!("{policy}/{generation}-");
    let mut routes = held.routes.values();
    routes.any(|r| r.path.starts_with(&prefix) && r.state() == state)
}

fn answer(response: &DeltaPolicyDiscoveryResponse) -> DeltaPolicyDiscoveryRequest {
    DeltaPolicyDiscoveryRequest {
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaPolicyDiscoveryRequest::default()
    }
}
