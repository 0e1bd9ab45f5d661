//! Scripted discovery clients over the generated code.

mod delta;
mod sotw;

use assent_proto::{
    google::rpc,
    v1::{self, DeltaPolicyDiscoveryRequest, Node, PolicyDiscoveryRequest, RejectedPolicy},
};
use tonic::Code;

pub use self::{
    delta::{Delta, is},
    sotw::{Sotw, check},
};

/// A node of the default server.
pub fn node(id: &str) -> Node {
    Node {
        id: id.into(),
        instance_uid: format!("{id}-process-1"),
        abis: vec!["wapc".into()],
        ..Node::default()
    }
}

/// A node of another server.
pub fn node_of(server: &str, id: &str) -> Node {
    Node {
        policy_server: server.into(),
        ..node(id)
    }
}

/// The first message of an incremental stream of a replica without state.
pub fn first(node: Node) -> DeltaPolicyDiscoveryRequest {
    DeltaPolicyDiscoveryRequest {
        node: Some(node),
        ..DeltaPolicyDiscoveryRequest::default()
    }
}

/// The first message of a state-of-the-world stream of a replica without state.
pub fn first_sotw(node: Node) -> PolicyDiscoveryRequest {
    PolicyDiscoveryRequest {
        node: Some(node),
        ..PolicyDiscoveryRequest::default()
    }
}

/// A status as evaluators put it into answers.
pub fn failure(message: &str) -> rpc::Status {
    rpc::Status {
        code: Code::InvalidArgument as i32,
        message: message.into(),
        details: Vec::new(),
    }
}

/// A rejection of one revision.
pub fn rejection(revision: &str, message: &str) -> RejectedPolicy {
    RejectedPolicy {
        revision: revision.into(),
        stage: v1::Stage::Settings.into(),
        status: Some(failure(message)),
        retryable: false,
    }
}

/// A request with a bearer token.
pub fn with_token<T>(message: T, token: Option<&str>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token {
        let value = format!("Bearer {token}")
            .parse()
            .expect("a token must be a header value");
        request.metadata_mut().insert("authorization", value);
    }
    request
}
