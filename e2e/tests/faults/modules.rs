//! Modules whose bytes do not match their digest.

use std::{fs, path::Path};

use assent_e2e::{
    Evaluator, Options, Up,
    hash::digest,
    module,
    peer::Peer,
    set::{Set, revision},
};
use assent_proto::v1::{
    FetchModuleRequest,
    RouteState::{Active, Candidate},
    Stage,
    module_service_client::ModuleServiceClient,
};

#[tokio::test]
async fn evaluator_rejects_bytes_with_wrong_digest() {
    let mut peer = Peer::start().await;
    let good = module::deny_all("the good one");
    peer.serve(&good);
    let evaluator = Evaluator::start(&peer.url(), "a").await;
    let mut stream = peer.stream().await;
    let one = revision("a", 1, &good);
    let first = Set::new(&[(&one, Active)]);
    stream.applied(first.full("n1")).await;
    // The control plane names one module and sends another, of the same length.
    let (named, sent) = (module::deny_all("announced"), module::deny_all("delivered"));
    assert_eq!(named.len(), sent.len());
    peer.serve_as(&digest(&named), &sent);
    let two = revision("a", 2, &named);
    let second = Set::new(&[(&one, Active), (&two, Candidate)]);
    let answer = stream.refused(second.since(&first, "n2")).await;
    assert_eq!(answer.rejected.len(), 1);
    assert_eq!(answer.rejected[0].revision, two.revision);
    let stages = [Stage::Fetch, Stage::Verify];
    assert!(stages.contains(&answer.rejected[0].stage()), "{answer:?}");
    let (code, verdict) = evaluator.validate(&one.revision).await;
    assert_eq!(
        (code, &verdict["response"]["allowed"]),
        (200, &false.into())
    );
    assert!(!verdict.to_string().contains("delivered"), "{verdict}");
    let (_, verdict) = evaluator.validate(&two.revision).await;
    assert!(!verdict.to_string().contains("delivered"), "{verdict}");
    // And it keeps none of them.
    let kept = fs::read_dir(evaluator.state().join("modules"))
        .unwrap()
        .flatten();
    for file in kept {
        assert_ne!(fs::read(file.path()).unwrap(), sent);
    }
}

#[tokio::test]
async fn control_plane_never_serves_a_damaged_module() {
    let (good, evil) = (
        module::deny_all("as it was vetted"),
        module::accept_all("planted"),
    );
    let options = Options::default().file("p.wasm", good.clone());
    let mut up = Up::start(options).await;
    up.apply(
        "p",
        &assent_e2e::manifest::Policy::cluster("p").module("p.wasm"),
    );
    up.wait_accepted("p", 1, "Accepted").await;
    let before = up.fetch("default").await.unwrap();
    up.process.kill();
    let damaged = replace(&up.state(), &good, &evil);
    assert_eq!(damaged, 1, "the module must be stored once");
    up.restart().await;
    assert_eq!(
        up.fetch("default").await.unwrap().version_info,
        before.version_info
    );
    let mut client = ModuleServiceClient::new(up.channel().await);
    let request = FetchModuleRequest {
        digest: digest(&good),
        ..FetchModuleRequest::default()
    };
    let mut bytes = Vec::new();
    if let Ok(response) = client.fetch_module(request).await {
        let mut chunks = response.into_inner();
        while let Ok(Some(chunk)) = chunks.message().await {
            bytes.extend(chunk.data);
        }
    }
    assert!(
        bytes.is_empty() || bytes == good,
        "{} bytes that nobody vetted",
        bytes.len()
    );
    assert!(up.metric("assent_modules_damaged_total").await >= 1.0);
}

/// Replaces the files with this content below a directory; how many there were.
fn replace(directory: &Path, content: &[u8], by: &[u8]) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            count += replace(&path, content, by);
        } else if fs::read(&path).is_ok_and(|bytes| bytes == content) {
            // Stored files may not be writable; whoever owns the directory replaces them.
            fs::remove_file(&path).unwrap();
            fs::write(&path, by).unwrap();
            count += 1;
        }
    }
    count
}
