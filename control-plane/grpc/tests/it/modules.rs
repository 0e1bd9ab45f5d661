use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use assent_core::{Digest, Policy, Route, RouteState, Snapshot, policy::Content};
use assent_grpc::{
    Access, Authenticator, Config, Principal, auth,
    modules::{Artefact, ModuleBytes, ModuleSource, ModuleStat},
};
use assent_proto::v1::{self, module_service_client::ModuleServiceClient};
use bytes::Bytes;
use tonic::{Code, Request as Call};

use crate::support::*;

const WASM: &[u8] = &[7; 600_000];
const ENGINE: &str = "engine-1";

/// Has one module, compiled for one engine.
pub(crate) struct Shelf;

// === impl Shelf ===

#[tonic::async_trait]
impl ModuleSource for Shelf {
    async fn stat(&self, digests: &[Digest], engine: &str) -> Vec<ModuleStat> {
        let stat = |digest: &Digest| match *digest == Digest::of(WASM) {
            true => ModuleStat {
                size: Some(WASM.len() as u64),
                artefact: (engine == ENGINE).then(|| Artefact {
                    digest: Digest::of(b"native"),
                    size: 6,
                }),
            },
            false => ModuleStat::default(),
        };
        digests.iter().map(stat).collect()
    }

    async fn open(&self, digest: Digest, engine: &str) -> Option<ModuleBytes> {
        let bytes = match engine {
            "" => Bytes::from_static(WASM),
            ENGINE => Bytes::from_static(b"native"),
            _ => return None,
        };
        let of = Digest::of(&bytes);
        (digest == Digest::of(WASM)).then_some(ModuleBytes { bytes, digest: of })
    }
}

fn fetch(digest: String, offset: u64, engine: &str) -> v1::FetchModuleRequest {
    v1::FetchModuleRequest {
        digest,
        offset,
        engine: engine.into(),
    }
}

#[tokio::test]
async fn modules_are_fetched_in_chunks_and_resumed() {
    let plane = Plane::synced(&[]).await;
    let mut client = ModuleServiceClient::new(plane.channel().await);
    for offset in [0, 300_000, WASM.len()] {
        let request = fetch(Digest::of(WASM).to_string(), offset as u64, "");
        let mut chunks = client.fetch_module(request).await.unwrap().into_inner();
        let (mut at, mut count) = (offset, 0);
        while let Some(chunk) = chunks.message().await.unwrap() {
            assert_eq!(
                (chunk.offset, chunk.total_size),
                (at as u64, WASM.len() as u64)
            );
            assert_eq!(chunk.digest, Digest::of(WASM).to_string());
            assert!(chunk.data.len() <= 256 << 10);
            at += chunk.data.len();
            count += 1;
        }
        assert_eq!(at, WASM.len());
        assert!(count >= 1);
    }
    let request = fetch(Digest::of(WASM).to_string(), 0, ENGINE);
    let mut chunks = client.fetch_module(request).await.unwrap().into_inner();
    let chunk = chunks.message().await.unwrap().unwrap();
    assert_eq!(chunk.digest, Digest::of(b"native").to_string());
}

#[tokio::test]
async fn failed_fetch_reports_the_reason() {
    let plane = Plane::synced(&[]).await;
    let mut client = ModuleServiceClient::new(plane.channel().await);
    let known = Digest::of(WASM).to_string();
    for (request, code) in [
        (fetch("sha256:zz".into(), 0, ""), Code::InvalidArgument),
        (
            fetch(Digest::of(b"other").to_string(), 0, ""),
            Code::NotFound,
        ),
        (fetch(known.clone(), 0, "other-engine"), Code::NotFound),
        (fetch(known, WASM.len() as u64 + 1, ""), Code::OutOfRange),
    ] {
        assert_eq!(client.fetch_module(request).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn stats_come_in_the_order_asked() {
    let plane = Plane::synced(&[]).await;
    let mut client = ModuleServiceClient::new(plane.channel().await);
    let request = v1::StatModulesRequest {
        digests: vec![
            Digest::of(b"other").to_string(),
            Digest::of(WASM).to_string(),
        ],
        engine: ENGINE.into(),
    };
    let modules = client
        .stat_modules(request)
        .await
        .unwrap()
        .into_inner()
        .modules;
    assert_eq!((modules[0].present, modules[1].present), (false, true));
    assert_eq!(modules[1].artefact.as_ref().unwrap().size, 6);
    let request = v1::StatModulesRequest {
        digests: vec!["x".into()],
        engine: String::new(),
    };
    assert_eq!(
        client.stat_modules(request).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

/// A token is the name of a PolicyServer, whose replica the caller is.
struct ByServer;

#[tonic::async_trait]
impl Authenticator for ByServer {
    async fn authenticate(
        &self,
        token: Option<&str>,
        _: Option<SocketAddr>,
        _: Access,
    ) -> Result<Principal, auth::Error> {
        let server = token.ok_or(auth::Error::Missing)?;
        Ok(Principal::Replica {
            id: "r-0".to_owned(),
            policy_server: Some(server.to_owned()),
            identity: server.to_owned(),
            expires: None,
            follower: false,
            addresses: Vec::new(),
        })
    }
}

fn of_server<T>(message: T, server: &str) -> Call<T> {
    let mut call = Call::new(message);
    let value = format!("Bearer {server}").parse().unwrap();
    call.metadata_mut().insert("authorization", value);
    call
}

/// A snapshot with one policy whose module is [`WASM`].
fn mk_snapshot_of_wasm(state: RouteState) -> Arc<Snapshot> {
    let policy = mk_policy("a", 2);
    let content = Content {
        module_digest: Digest::of(WASM),
        ..policy.content.clone()
    };
    let policy = Policy::new(policy.policy.clone(), 1, "0a1b2c3d", content, 9);
    let route = Route::of(&policy.revision, state);
    Arc::new(Snapshot::new(vec![policy.into()], vec![route.into()]))
}

#[tokio::test]
async fn replica_gets_modules_of_its_own_server_only() {
    let plane = Plane::start_with(Config::default(), Arc::new(ByServer)).await;
    let publish = |server: &str, snapshot| {
        let hub = &plane.hub;
        hub.publish(server, snapshot, SystemTime::now());
    };
    publish("other", mk_snapshot(&["other"]));
    plane.hub.add_server("silent");
    plane.hub.set_synced();
    let mut client = ModuleServiceClient::new(plane.channel().await);
    let digest = Digest::of(WASM).to_string();
    for state in [
        RouteState::Active,
        RouteState::Candidate,
        RouteState::Retired,
    ] {
        publish("own", mk_snapshot_of_wasm(state));
        for (server, expected) in [
            ("own", Code::Ok),
            ("other", Code::NotFound),
            ("silent", Code::NotFound),
            ("missing", Code::NotFound),
        ] {
            for engine in ["", ENGINE] {
                let request = of_server(fetch(digest.clone(), 0, engine), server);
                let fetched = client.fetch_module(request).await;
                let code = fetched.map_or_else(|status| status.code(), |_| Code::Ok);
                assert_eq!(code, expected, "{server} {state:?}");
            }
            let request = v1::StatModulesRequest {
                digests: vec![digest.clone()],
                engine: ENGINE.into(),
            };
            let stats = client.stat_modules(of_server(request, server)).await;
            let stat = stats.unwrap().into_inner().modules.remove(0);
            let is_own = expected == Code::Ok;
            assert_eq!((stat.present, stat.artefact.is_some()), (is_own, is_own));
        }
    }
    // What is no longer published is no longer given.
    publish("own", mk_snapshot(&["a"]));
    let request = of_server(fetch(digest, 0, ""), "own");
    let status = client.fetch_module(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}
