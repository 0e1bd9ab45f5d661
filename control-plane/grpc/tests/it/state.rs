use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use assent_core::{
    Millis, PolicyKey, Snapshot,
    fleet::{CountedReplicas, Fleet, Node},
};
use assent_grpc::{
    rollout::{Error, RevisionRow, Rollouts, Undone},
    status::{Page, PolicyRow, Query, StatusSource, Unavailable},
};
use assent_proto::v1::{
    self, client_status_service_client::ClientStatusServiceClient,
    rollout_service_client::RolloutServiceClient,
};
use tokio::sync::watch;
use tonic::Code;

use crate::support::*;

/// A fleet under a lock, as a driver would have it.
pub(crate) struct Board {
    fleet: Mutex<Fleet>,
    /// The driver is gone.
    ended: Mutex<bool>,
    changes: watch::Sender<u64>,
}

/// One policy with one revision to go back to.
pub(crate) struct History;

fn ask() -> v1::ClientStatusRequest {
    v1::ClientStatusRequest::default()
}

// === impl Board ===

impl Board {
    pub(crate) fn new() -> Arc<Self> {
        let fleet = Fleet::new(CountedReplicas::All, Duration::from_secs(60));
        let board = Arc::new(Self {
            fleet: Mutex::new(fleet),
            ended: Mutex::default(),
            changes: watch::Sender::new(0),
        });
        board.join("r-0", 1);
        board.join("r-1", 2);
        board
    }

    fn join(&self, id: &str, stream: u64) {
        let node = Node {
            id: id.into(),
            ..Node::default()
        };
        self.fleet
            .lock()
            .unwrap()
            .opened(Millis(1), node, "someone".into(), stream);
        self.changes.send_modify(|n| *n += 1);
    }
}

#[tonic::async_trait]
impl StatusSource for Board {
    async fn client_status(&self, query: Query) -> Result<Option<Page>, Unavailable> {
        if *self.ended.lock().unwrap() {
            return Err(Unavailable("ending".into()));
        }
        let version = Snapshot::empty().version();
        let (replicas, next) = query.select(&self.fleet.lock().unwrap(), version);
        let policy = PolicyRow {
            policy: "cluster/a".into(),
            ..PolicyRow::default()
        };
        Ok((query.server == "default").then(|| Page {
            version: Some(version),
            replicas,
            policies: [policy]
                .into_iter()
                .filter(|p| query.wants_policy(&p.policy))
                .collect(),
            next,
            now: Millis(1),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        }))
    }

    async fn servers(&self) -> Result<Vec<String>, Unavailable> {
        Ok(vec!["default".to_owned(), "tenants".to_owned()])
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

// === impl History ===

#[tonic::async_trait]
impl Rollouts for History {
    async fn list(&self, policy: &PolicyKey) -> Result<Vec<RevisionRow>, Error> {
        if policy.name() != "a" {
            return Err(Error::NotFound(format!("there is no policy {policy}")));
        }
        Ok(Vec::new())
    }

    async fn undo(&self, _: &PolicyKey, to_generation: Option<i64>) -> Result<Undone, Error> {
        match to_generation {
            None | Some(1) => Ok(Undone {
                from_generation: 1,
                new_generation: 3,
            }),
            Some(_) => Err(Error::Refused("no such generation".into())),
        }
    }
}

#[tokio::test]
async fn status_comes_in_pages_of_replicas() {
    let plane = Plane::synced(&[]).await;
    let mut client = ClientStatusServiceClient::new(plane.channel().await);
    let mut request = ask();
    request.page_size = 1;
    let one = client
        .fetch_client_status(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!((one.replicas.len(), one.policies.len()), (1, 1));
    let row = &one.replicas[0];
    assert_eq!(row.state(), v1::ReplicaState::Behind);
    assert_eq!(row.connected_since.as_ref().unwrap().seconds, 100);
    request.page_token = one.next_page_token;
    let two = client
        .fetch_client_status(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!((two.replicas.len(), two.policies.len()), (1, 0));
    assert_eq!(two.replicas[0].node.as_ref().unwrap().id, "r-1");
    assert!(two.next_page_token.is_empty());
}

#[tokio::test]
async fn servers_are_listed() {
    let plane = Plane::synced(&[]).await;
    let mut client = ClientStatusServiceClient::new(plane.channel().await);
    let listed = client
        .list_policy_servers(v1::ListPolicyServersRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.policy_servers, ["default", "tenants"]);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let plane = Plane::synced(&[]).await;
    let mut client = ClientStatusServiceClient::new(plane.channel().await);
    let mut request = ask();
    request.policy_server = "other".into();
    let status = client.fetch_client_status(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let mut request = ask();
    request.states = vec![0];
    let status = client.fetch_client_status(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn stopped_controller_is_not_a_missing_server() {
    let plane = Plane::synced(&[]).await;
    *plane.board.ended.lock().unwrap() = true;
    let mut client = ClientStatusServiceClient::new(plane.channel().await);
    let status = client.fetch_client_status(ask()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let stream = client.stream_client_status(ask()).await;
    let status = stream.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_status_stream_follows_changes() {
    let plane = Plane::synced(&[]).await;
    let mut client = ClientStatusServiceClient::new(plane.channel().await);
    let mut stream = client
        .stream_client_status(ask())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().replicas.len(), 2);
    // A change that changes no answer is not told.
    plane.board.changes.send_modify(|n| *n += 1);
    plane.board.join("r-2", 3);
    assert_eq!(stream.message().await.unwrap().unwrap().replicas.len(), 3);
}

#[tokio::test]
async fn rollouts_are_listed_and_undone() {
    let plane = Plane::synced(&[]).await;
    let mut client = RolloutServiceClient::new(plane.channel().await);
    let list = |policy: &str| v1::ListRevisionsRequest {
        policy: policy.into(),
    };
    assert!(client.list_revisions(list("cluster/a")).await.is_ok());
    let status = client.list_revisions(list("cluster/b")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let status = client.list_revisions(list("nonsense")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let undo = |to_generation| v1::UndoRequest {
        policy: "cluster/a".into(),
        to_generation,
    };
    let undone = client.undo(undo(0)).await.unwrap().into_inner();
    assert_eq!((undone.from_generation, undone.new_generation), (1, 3));
    assert_eq!(
        client.undo(undo(2)).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(
        client.undo(undo(-1)).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}
