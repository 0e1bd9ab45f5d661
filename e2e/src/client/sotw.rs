//! A state-of-the-world stream that checks every response against the protocol's arithmetic.

use assent_proto::v1::{
    PolicyDiscoveryRequest, PolicyDiscoveryResponse,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::failure;
use crate::{
    PATIENCE, QUIET,
    hash::{Held, content_digest},
};

/// A state-of-the-world stream.
pub struct Sotw {
    requests: mpsc::Sender<PolicyDiscoveryRequest>,
    responses: Streaming<PolicyDiscoveryResponse>,
}

/// Checks a full set against its version.
pub fn check(response: &PolicyDiscoveryResponse) -> Held {
    for policy in &response.policies {
        assert_eq!(
            policy.content_digest,
            content_digest(policy),
            "{}",
            policy.revision
        );
    }
    let held = Held::of(&response.policies, &response.routes);
    assert_eq!(response.version_info, held.version());
    held
}

// === impl Sotw ===

impl Sotw {
    /// Opens a stream with this first message.
    pub async fn open(channel: Channel, first: PolicyDiscoveryRequest) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(256);
        requests.send(first).await.expect("channel must be open");
        let mut client = PolicyDiscoveryServiceClient::new(channel);
        let responses = client
            .stream_policies(ReceiverStream::new(outgoing))
            .await?;
        Ok(Self {
            requests,
            responses: responses.into_inner(),
        })
    }

    /// How a stream with this first message is refused.
    pub async fn refusal(channel: Channel, first: PolicyDiscoveryRequest) -> Status {
        let mut stream = match Self::open(channel, first).await {
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

    /// The next response, its parts put together, checked.
    pub async fn next(&mut self) -> PolicyDiscoveryResponse {
        let mut response = self.message().await;
        for part in 2..=response.parts {
            let next = self.message().await;
            assert_eq!((next.part, next.parts), (part, response.parts));
            assert_eq!(
                (&next.version_info, &next.nonce),
                (&response.version_info, &response.nonce)
            );
            response.policies.extend(next.policies);
            response.routes.extend(next.routes);
        }
        check(&response);
        response
    }

    /// Expects that nothing comes for a while.
    pub async fn silent(&mut self) {
        let message = timeout(QUIET, self.responses.message()).await;
        assert!(message.is_err(), "unexpected: {message:?}");
    }

    /// Sends a message as it is.
    pub async fn send(&self, request: PolicyDiscoveryRequest) {
        self.requests
            .send(request)
            .await
            .expect("stream must take requests");
    }

    /// Acknowledges a response.
    pub async fn ack(&self, response: &PolicyDiscoveryResponse) {
        self.send(PolicyDiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            ..PolicyDiscoveryRequest::default()
        })
        .await;
    }

    /// Refuses a response whole.
    pub async fn nack(&self, response: &PolicyDiscoveryResponse, message: &str) {
        self.send(PolicyDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            error_detail: Some(failure(message)),
            ..PolicyDiscoveryRequest::default()
        })
        .await;
    }

    async fn message(&mut self) -> PolicyDiscoveryResponse {
        let message = timeout(PATIENCE, self.responses.message()).await;
        let message = message.expect("a response must come");
        message
            .expect("the stream must go on")
            .expect("the stream must not end")
    }
}
