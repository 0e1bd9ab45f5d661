use assent_core::Digest;
use assent_grpc::modules::{Artefact, ModuleBytes, ModuleSource, ModuleStat};
use assent_proto::v1::{self, module_service_client::ModuleServiceClient};
use bytes::Bytes;
use tonic::Code;

use crate::support::*;

const WASM: &[u8] = &[7; 600_000];
const ENGINE: &str = "engine-1";

/// Has one module, compiled for one engine.
pub(crate) struct Shelf;

// === impl Shelf ===

#[tonic::async_trait]
impl ModuleSource for Shelf {
    async fn stat(&self, digests: &[Digest], engine: &str, _: Option<&str>) -> Vec<ModuleStat> {
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

    async fn open(&self, digest: Digest, engine: &str, _: Option<&str>) -> Option<ModuleBytes> {
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
async fn what_cannot_be_fetched_says_why() {
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
