//! Replicas to the messages of Envoy's client status.

use assent_core::{Policy, Snapshot, session::Failure};
use assent_proto::envoy::{
    admin::v3::{ClientResourceStatus, UpdateFailureState},
    config::core::v3::{Node, node::UserAgentVersionType},
    service::status::v3::{ClientConfig, ConfigStatus, client_config::GenericXdsConfig},
};

use crate::status::ReplicaRow;

/// Revisions of policies are the resources.
const TYPE_URL: &str = "type.googleapis.com/assent.discovery.v1.Policy";

/// A replica with the state of every revision in `snapshot`, which is published for `server`.
pub(super) fn client(server: &str, row: &ReplicaRow, snapshot: &Snapshot) -> ClientConfig {
    let resources = snapshot.policies();
    ClientConfig {
        node: Some(node(server, row)),
        generic_xds_configs: resources.map(|p| resource(p, row, snapshot)).collect(),
        client_scope: String::new(),
    }
}

fn node(server: &str, row: &ReplicaRow) -> Node {
    let version = row.replica.node.evaluator_version.clone();
    Node {
        id: row.name.to_string(),
        cluster: server.to_owned(),
        user_agent_name: "assent-evaluator".to_owned(),
        // A replica that is expected and never connected has none.
        user_agent_version_type: Some(version)
            .filter(|version| !version.is_empty())
            .map(UserAgentVersionType::UserAgentVersion),
        ..Node::default()
    }
}

fn resource(policy: &Policy, row: &ReplicaRow, snapshot: &Snapshot) -> GenericXdsConfig {
    let name = policy.revision.to_string();
    let report = &row.replica.report;
    let applied = row.replica.applied.as_ref();
    let applied = applied.filter(|applied| applied.snapshot.contains(&name));
    let rejection = applied.and_then(|applied| {
        let mut rejected = applied.rejected.iter();
        rejected.find(|rejection| rejection.revision == policy.revision)
    });
    let whole = report.refused.as_ref();
    let whole = whole.filter(|refused| refused.whole && refused.snapshot.contains(&name));
    let (version, state) = match (applied, rejection, whole) {
        (Some(applied), None, _) => (applied.snapshot.version().to_string(), State::Acknowledged),
        (Some(applied), Some(rejection), _) => (
            applied.snapshot.version().to_string(),
            State::Refused(&rejection.failure),
        ),
        (None, _, Some(refused)) => (
            refused.snapshot.version().to_string(),
            State::Refused(&refused.failure),
        ),
        (None, _, None) if report.sent == Some(snapshot.version()) => {
            (snapshot.version().to_string(), State::Sent)
        }
        (None, _, None) => (String::new(), State::NotSent),
    };
    GenericXdsConfig {
        type_url: TYPE_URL.to_owned(),
        name,
        config_status: state.of_config().into(),
        client_status: state.of_client().into(),
        error_state: state.error(&version),
        version_info: version,
        ..GenericXdsConfig::default()
    }
}

/// What a replica has done with a revision.
enum State<'a> {
    Acknowledged,
    Refused(&'a Failure),
    Sent,
    NotSent,
}

// === impl State ===

impl State<'_> {
    fn of_config(&self) -> ConfigStatus {
        match self {
            State::Acknowledged => ConfigStatus::Synced,
            State::Refused(_) => ConfigStatus::Error,
            State::Sent => ConfigStatus::Stale,
            State::NotSent => ConfigStatus::NotSent,
        }
    }

    fn of_client(&self) -> ClientResourceStatus {
        match self {
            State::Acknowledged => ClientResourceStatus::Acked,
            State::Refused(_) => ClientResourceStatus::Nacked,
            State::Sent | State::NotSent => ClientResourceStatus::Requested,
        }
    }

    fn error(&self, version: &str) -> Option<UpdateFailureState> {
        let State::Refused(failure) = self else {
            return None;
        };
        Some(UpdateFailureState {
            details: failure.message.clone(),
            version_info: version.to_owned(),
            ..UpdateFailureState::default()
        })
    }
}
