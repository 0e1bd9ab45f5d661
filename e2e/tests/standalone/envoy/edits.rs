//! Policies are edited while requests arrive.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use assent_e2e::{
    Options, Up,
    envoy::{Authorizer, Envoy, rego, send},
    eventually,
    up::free_address,
};
use bytes::Bytes;

use super::policy;

/// Its settings are the number of its generation.
const NUMBERED: &str = r#"package n

decision := {"allowed": true, "dynamic_metadata": {"number": data.number}}
"#;

const EDITS: i64 = 6;

fn numbered(number: i64) -> String {
    policy(
        "numbered",
        "n.wasm",
        &format!("  settings: {{number: {number}}}\n"),
    )
}

#[tokio::test]
async fn every_request_is_decided_by_exactly_one_revision() {
    let authz = free_address();
    let options = Options::replicas(2)
        .args(&["--authz", &authz.to_string(), "--drain-seconds", "1"])
        .file("n.wasm", rego(NUMBERED, "n/decision"))
        .file("n.yaml", numbered(1));
    let up = Up::start(options).await;
    up.wait_enforced("numbered", 1).await;
    let envoy = Envoy::start(&Authorizer::Tcp(authz)).await;
    let (stop, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let clients = (0..4).map(|_| {
        let (stop, sent, to) = (stop.clone(), sent.clone(), envoy.closed);
        tokio::spawn(async move {
            while !stop.load(Relaxed) {
                let answer = send(to, "GET", "/", &[], Bytes::new()).await;
                assert_eq!(answer.code, 200, "{}", answer.text());
                sent.fetch_add(1, Relaxed);
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    for number in 2..=EDITS {
        up.write("n.yaml", numbered(number));
        up.wait_enforced("numbered", number).await;
    }
    let before = sent.load(Relaxed);
    eventually("requests go on", async || sent.load(Relaxed) > before + 20).await;
    stop.store(true, Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let total = sent.load(Relaxed) as usize;
    eventually("the access log is complete", async || {
        envoy.access().len() >= total
    })
    .await;
    let mut seen = Vec::new();
    for line in envoy.access() {
        let metadata = &line["metadata"];
        let number = metadata["number"].as_i64().unwrap();
        let revision = metadata["assent"]["revision"].as_str().unwrap();
        assert!(revision.starts_with(&format!("{number}-")), "{line}");
        seen.push(number);
    }
    seen.dedup();
    assert_eq!(
        (seen.first(), seen.last()),
        (Some(&1), Some(&EDITS)),
        "{seen:?}"
    );
}
