//! `PolicyDiscoveryService`, written by hand so that streams share encoded frames.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use assent_core::{RevisionId, fleet::Name, policy::is_dns_subdomain};
use assent_proto::v1;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, header::CONTENT_TYPE};
use tonic::{
    Status,
    body::Body,
    codec::{BufferSettings, Streaming},
    metadata::GRPC_CONTENT_TYPE,
    server::{Grpc, NamedService},
};
use tonic_prost::{ProstCodec, ProstDecoder};
use tracing::Instrument as _;

use crate::{
    auth::{Access, Authenticator, Gate},
    connection::Counted,
    encode::{Content, Settings},
    events::StreamEvent,
    from_proto::{self, Request},
    hub::Hub,
    pipe::Pipe,
    registry::Key,
    stream::Opening,
    to_proto,
};

/// The longest message of a client: the first one may list 20,000 revisions, with names of up to
/// 300 bytes and a digest each.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// The initial read buffer of a stream. Answers are short, and there are thousands of streams.
/// The buffer grows with the messages.
const READ_BUFFER_BYTES: usize = 512;

/// The most retired routes in one health check: two for each of a thousand policies.
const MAX_RETIRED_ROUTES: usize = 2_000;

/// The discovery service as a tower service.
#[derive(Clone)]
pub struct Discovery {
    hub: Hub,
    gate: Gate,
}

// === impl Discovery ===

impl Discovery {
    /// A service whose streams follow `hub`, for callers that `authenticator` accepts.
    pub fn new(hub: Hub, authenticator: Arc<dyn Authenticator>) -> Self {
        Self {
            hub,
            gate: Gate::new(authenticator),
        }
    }

    async fn open<R: Request>(self, request: http::Request<Body>) -> http::Response<Body> {
        match self.try_open::<R>(request).await {
            Ok(response) => response,
            Err(status) => {
                self.hub.metrics().refused(status.code());
                let mut response = status.into_http();
                response.extensions_mut().insert(Counted);
                response
            }
        }
    }

    async fn try_open<R: Request>(
        &self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Status> {
        self.hub.check_serving()?;
        refuse_compression(request.headers())?;
        let (parts, body) = request.into_parts();
        let caller = self
            .gate
            .admit(&parts.headers, &parts.extensions, Access::Stream)
            .await?;
        let settings = BufferSettings::new(READ_BUFFER_BYTES, READ_BUFFER_BYTES);
        let decoder = ProstDecoder::<R>::new(settings);
        let (pipe, body_out) = Pipe::new();
        let opening = Opening {
            hub: self.hub.clone(),
            gate: self.gate.clone(),
            caller,
            requests: Streaming::new_request(decoder, body, None, Some(MAX_REQUEST_BYTES)),
            pipe,
        };
        tokio::spawn(opening.run().in_current_span());
        let mut response = http::Response::new(Body::new(body_out));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        Ok(response)
    }

    async fn fetch(
        self,
        request: tonic::Request<v1::PolicyDiscoveryRequest>,
    ) -> Result<tonic::Response<v1::PolicyDiscoveryResponse>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Read).await?;
        let node = request.into_inner().node.unwrap_or_default();
        let server = from_proto::server_or_default(node.policy_server);
        caller.principal.check_server(&server)?;
        let published = self.hub.published(&server).await?;
        let content = Content::full(&published.snapshot, Settings::Withheld);
        let response = content.into_state_of_the_world(&published.header(), 0, 0);
        Ok(tonic::Response::new(response))
    }

    async fn health_check(
        self,
        request: tonic::Request<v1::HealthCheckRequest>,
    ) -> Result<tonic::Response<v1::HealthCheckResponse>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Replica).await?;
        let request = request.into_inner();
        if !is_dns_subdomain(&request.id) {
            return Err(Status::invalid_argument(
                from_proto::Error::BadId.to_string(),
            ));
        }
        if request.retired_routes.len() > MAX_RETIRED_ROUTES {
            let text = format!("`retired_routes` has more than {MAX_RETIRED_ROUTES} entries");
            return Err(Status::invalid_argument(text));
        }
        let server = from_proto::server_or_default(request.policy_server);
        caller.principal.check(&request.id, &server)?;
        let key = Key {
            server: Name::from(server),
            replica: Name::from(request.id),
        };
        let known = self.hub.inner().streams.find(&key, &request.instance_uid);
        if let Some(pipe) = &known {
            pipe.heard();
            self.forward(key, request.retired_routes).await?;
        }
        let interval = self.hub.inner().config.health_interval.as_millis();
        Ok(tonic::Response::new(v1::HealthCheckResponse {
            known: known.is_some(),
            interval_ms: u32::try_from(interval).unwrap_or(u32::MAX),
            control_plane: Some(to_proto::control_plane(&self.hub.control_plane())),
        }))
    }

    /// Reports the heartbeat and the requests on retired routes to the controller.
    async fn forward(&self, key: Key, routes: Vec<v1::RetiredRouteRequests>) -> Result<(), Status> {
        let Key { server, replica } = key;
        let heard = StreamEvent::Heartbeat {
            server: server.clone(),
            replica: replica.clone(),
        };
        let seen = routes.into_iter().filter(|route| route.requests > 0);
        let seen = seen.map(|route| StreamEvent::RetiredRequests {
            server: server.clone(),
            replica: replica.clone(),
            path: RevisionId::from_wire(&route.path),
            requests: route.requests,
        });
        for event in std::iter::once(heard).chain(seen) {
            let sent = self.hub.inner().events.send(event).await;
            sent.map_err(|_| Status::unavailable("the control plane is ending"))?;
        }
        Ok(())
    }
}

impl NamedService for Discovery {
    const NAME: &'static str = "assent.discovery.v1.PolicyDiscoveryService";
}

impl tower::Service<http::Request<Body>> for Discovery {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match method {
            "DeltaPolicies" => this
                .open::<v1::DeltaPolicyDiscoveryRequest>(request)
                .map(Ok)
                .boxed(),
            "StreamPolicies" => this
                .open::<v1::PolicyDiscoveryRequest>(request)
                .map(Ok)
                .boxed(),
            "FetchPolicies" => async move {
                let call = tower::service_fn(move |request| this.clone().fetch(request));
                Ok(Grpc::new(ProstCodec::default()).unary(call, request).await)
            }
            .boxed(),
            "HealthCheck" => async move {
                let call = tower::service_fn(move |request| this.clone().health_check(request));
                Ok(Grpc::new(ProstCodec::default()).unary(call, request).await)
            }
            .boxed(),
            _ => {
                std::future::ready(Ok(Status::unimplemented("no such method").into_http())).boxed()
            }
        }
    }
}

/// Answers have a few bytes, so that compression is not supported.
fn refuse_compression(headers: &http::HeaderMap) -> Result<(), Status> {
    let identity = HeaderValue::from_static("identity");
    match headers.get("grpc-encoding") {
        Some(encoding) if *encoding != identity => Err(Status::unimplemented(
            "compressed requests are not understood: send them plain",
        )),
        _ => Ok(()),
    }
}
