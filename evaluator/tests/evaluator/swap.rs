//! Sets are exchanged under load: no request fails, none sees half of a set.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use assent_core::RouteState::*;

use crate::{
    guests,
    http::{Client, revision},
    peer::Peer,
    secure::{certificate, client},
    set::{Revision, delta, full, snapshot},
    start_with,
};

/// Connections that ask without pause.
const CLIENTS: usize = 16;

/// Generations that roll through.
const GENERATIONS: i64 = 25;

fn generation(number: i64) -> Revision {
    Revision::new("a", number, &guests::deny(&format!("generation {number}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_answered_by_the_revision_that_its_path_names() {
    let dir = tempfile::tempdir().unwrap();
    let (files, trusted) = certificate(dir.path());
    let mut peer = Peer::start().await;
    let evaluator = start_with(&peer, |config| config.tls = Some(files)).await;
    let mut stream = peer.stream().await;
    let mut active = generation(1);
    peer.serve(&active);
    let mut set = snapshot(&[(&active, Active)]);
    stream.applied(full(&set, "n1")).await;

    // What webhooks name: always a generation that every replica has acknowledged.
    let (pointer, stop, count) = (
        Arc::new(AtomicU64::new(1)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let tls = client(&trusted, rustls::ALL_VERSIONS);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (pointer, stop, count) = (pointer.clone(), stop.clone(), count.clone());
            let (tls, addr) = (tls.clone(), evaluator.listen_addr());
            tokio::spawn(async move {
                let mut client = Client::tls(addr, tls).await;
                while !stop.load(Relaxed) {
                    let number = i64::try_from(pointer.load(Relaxed)).unwrap();
                    let path = generation(number).path();
                    let (status, answer) = client.review(&format!("/validate/{path}")).await;
                    assert_eq!(status.as_u16(), 200, "{path}: {answer}");
                    assert_eq!(revision(&answer), path);
                    let message = format!("generation {number}");
                    assert_eq!(answer["response"]["status"]["message"], message);
                    count.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();

    let mut retired: Option<Revision> = None;
    for number in 2..=GENERATIONS {
        let next = generation(number);
        peer.serve(&next);
        // The candidate is loaded, the webhook flips, the one before drains.
        let mut with = vec![(&active, Active), (&next, Candidate)];
        with.extend(retired.as_ref().map(|old| (old, Retired)));
        let loaded = snapshot(&with);
        stream
            .applied(delta(&set, &loaded, &format!("c{number}")))
            .await;
        pointer.store(u64::try_from(number).unwrap(), Relaxed);
        let flipped = snapshot(&[(&active, Retired), (&next, Active)]);
        stream
            .applied(delta(&loaded, &flipped, &format!("f{number}")))
            .await;
        (set, retired, active) = (flipped, Some(active), next);
    }
    stop.store(true, Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert!(count.load(Relaxed) >= u64::try_from(CLIENTS).unwrap());
}
