//! Restarts: from disk, without a control plane, and after a crash.

use std::{fs, path::Path, time::Duration};

use assent_core::{Digest, RouteState::Active, Snapshot};
use assent_evaluator::Handle;

use crate::{
    eventually, guests,
    http::{Client, revision},
    peer::Peer,
    set::{Revision, full, snapshot},
    start_with,
};

/// Runs an evaluator until `set` is on disk, then ends both sides.
async fn seed(state: &Path, revisions: &[&Revision]) -> (Snapshot, std::net::SocketAddr) {
    let mut peer = Peer::start().await;
    for revision in revisions {
        peer.serve(revision);
    }
    let evaluator = start_with(&peer, |config| config.state = Some(state.to_owned())).await;
    let mut stream = peer.stream().await;
    let all: Vec<_> = revisions
        .iter()
        .map(|revision| (*revision, Active))
        .collect();
    let set = snapshot(&all);
    stream.applied(full(&set, "n1")).await;
    eventually("the set is on disk", async || state.join("set").exists()).await;
    evaluator.shutdown().await;
    (set, peer.stop().await)
}

/// Restarts while the control plane is unreachable.
async fn alone(state: &Path, addr: std::net::SocketAddr, wait: Duration) -> Handle {
    let uri = format!("http://{addr}").parse().unwrap();
    let mut config = assent_evaluator::Config::loopback(uri, "evaluator-0");
    config.engine = Some(crate::engine());
    config.state = Some(state.to_owned());
    config.timings.ready_without_control_plane = wait;
    config.timings.drain = Duration::ZERO;
    assent_evaluator::Evaluator::start(config).await.unwrap()
}

#[tokio::test]
async fn it_serves_its_last_good_set_without_a_control_plane() {
    let dir = tempfile::tempdir().unwrap();
    let one = Revision::new("a", 1, &guests::deny("kept"));
    let (set, addr) = seed(dir.path(), &[&one]).await;
    let evaluator = alone(dir.path(), addr, Duration::ZERO).await;
    eventually("ready", async || evaluator.ready().is_ok()).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (_, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(answer["response"]["status"]["message"], "kept");
    assert_eq!(revision(&answer), one.path());
    // A control plane that comes back learns the loaded revisions.
    let mut peer = Peer::start_at(addr).await;
    let stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, set.version().to_string());
    assert_eq!(stream.hello.initial_revisions.len(), 1);
}

#[tokio::test]
async fn from_disk_it_is_ready_when_the_control_plane_confirms() {
    let dir = tempfile::tempdir().unwrap();
    let one = Revision::new("a", 1, &guests::accept());
    let (set, addr) = seed(dir.path(), &[&one]).await;
    let evaluator = alone(dir.path(), addr, Duration::from_secs(3600)).await;
    let mut peer = Peer::start_at(addr).await;
    let mut stream = peer.stream().await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 200);
    assert!(evaluator.ready().is_err());
    let mut confirm = full(&Snapshot::empty(), "m1");
    confirm.version_info = set.version().to_string();
    confirm.no_change = true;
    stream.applied(confirm).await;
    assert_eq!(evaluator.ready(), Ok(()));
}

#[tokio::test]
async fn a_damaged_set_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let one = Revision::new("a", 1, &guests::accept());
    let (_, addr) = seed(dir.path(), &[&one]).await;
    let path = dir.path().join("set");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let evaluator = alone(dir.path(), addr, Duration::ZERO).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 503);
    assert!(evaluator.ready().is_err());
    // It asks for everything, and heals.
    let mut peer = Peer::start_at(addr).await;
    peer.serve(&one);
    let mut stream = peer.stream().await;
    assert!(stream.hello.initial_revisions.is_empty());
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "m1"))
        .await;
    assert_eq!(evaluator.ready(), Ok(()));
}

#[tokio::test]
async fn a_damaged_module_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (
        Revision::new("a", 1, &guests::accept()),
        Revision::new("b", 1, &guests::deny("b")),
    );
    let (set, addr) = seed(dir.path(), &[&one, &two]).await;
    let module = dir
        .path()
        .join("modules")
        .join(Digest::of(one.wasm()).hex());
    fs::write(&module, b"damaged").unwrap();
    let evaluator = alone(dir.path(), addr, Duration::ZERO).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    eventually("the other policy serves", async || {
        client
            .review(&format!("/validate/{}", two.path()))
            .await
            .0
            .as_u16()
            == 200
    })
    .await;
    // Incomplete: not ready, and never an allow.
    let (status, _) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 503);
    assert!(evaluator.ready().is_err());
    let mut peer = Peer::start_at(addr).await;
    peer.serve(&one);
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, "");
    assert_eq!(stream.hello.initial_revisions.len(), 1);
    let mut missing = full(&set, "m1");
    missing
        .policies
        .retain(|policy| policy.revision == one.path());
    stream.applied(missing).await;
    assert_eq!(evaluator.ready(), Ok(()));
    assert_eq!(fs::read(&module).unwrap(), one.wasm());
}

#[tokio::test]
async fn content_that_brought_the_process_down_is_not_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let one = Revision::new("a", 1, &guests::accept());
    let attempts = dir.path().join("attempts");
    fs::create_dir_all(&attempts).unwrap();
    let marker = attempts.join(one.policy().content_digest.hex());
    fs::write(&marker, format!("selftest {}", one.path())).unwrap();
    let mut peer = Peer::start().await;
    peer.serve(&one);
    let _evaluator = start_with(&peer, |config| config.state = Some(dir.path().to_owned())).await;
    let mut stream = peer.stream().await;
    stream.push(full(&snapshot(&[(&one, Active)]), "n1")).await;
    let answer = stream.answer().await;
    assert_eq!(
        answer.rejected[0].stage(),
        assent_proto::v1::Stage::Selftest
    );
    assert!(!answer.rejected[0].retryable);
    // Changed content is another matter.
    let two = Revision::new("a", 2, &guests::deny("two"));
    peer.serve(&two);
    let (before, after) = (snapshot(&[(&one, Active)]), snapshot(&[(&two, Active)]));
    stream
        .applied(crate::set::delta(&before, &after, "n2"))
        .await;
    assert_eq!(fs::read_dir(&attempts).unwrap().count(), 0);
}

/// An evaluator as a process of its own, without a control plane.
fn process(state: &Path, port: u16) -> std::process::Child {
    std::process::Command::new(env!("CARGO_BIN_EXE_assent-evaluator"))
        .args(["--discovery", "http://127.0.0.1:1", "--id", "evaluator-0"])
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .args([
            "--admin-listen",
            "127.0.0.1:0",
            "--ready-without-control-plane",
            "0",
        ])
        .arg("--state")
        .arg(state)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Waits until a content is being tried, and kills the process meanwhile.
async fn kill_while_trying(state: &Path, content: &Digest) {
    let marker = state.join("attempts").join(content.hex());
    let read = || fs::read_to_string(&marker).ok();
    // The attempt takes a second. If this test was not looking for as long, another one will do.
    for _ in 0..20 {
        // The last process that was killed has left one, which the next one moves away.
        let before = read();
        let is_new = || read().is_some_and(|text| Some(text) != before);
        let mut child = process(state, free_port());
        for _ in 0..1_000 {
            if is_new() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if is_new() {
            return;
        }
    }
    panic!("no process was killed while it tried {content}");
}

#[tokio::test]
async fn a_killed_process_does_not_take_what_it_served_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let one = Revision::new("a", 1, &guests::slow_settings());
    seed(dir.path(), &[&one]).await;
    // The second time in a row the policy has to wait, and is tried again all the same.
    for _ in 0..2 {
        kill_while_trying(dir.path(), &one.policy().content_digest).await;
    }
    let port = free_port();
    let mut child = process(dir.path(), port);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let path = format!("/validate/{}", one.path());
    eventually("it serves again", async || {
        let Ok(stream) = tokio::net::TcpStream::connect(address).await else {
            return false;
        };
        drop(stream);
        Client::plain(address).await.review(&path).await.0.as_u16() == 200
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_forged_set_is_not_used_if_there_is_a_key() {
    let (dir, key) = (
        tempfile::tempdir().unwrap(),
        tempfile::NamedTempFile::new().unwrap(),
    );
    fs::write(key.path(), "0123456789abcdef0123456789abcdef").unwrap();
    let one = Revision::new("a", 1, &guests::deny("kept"));
    // A forger can write everything but the key: this set has all its digests right.
    let (_, addr) = seed(dir.path(), &[&one]).await;
    let sealed = || async {
        let uri = format!("http://{addr}").parse().unwrap();
        let mut config = assent_evaluator::Config::loopback(uri, "evaluator-0");
        config.engine = Some(crate::engine());
        config.state = Some(dir.path().to_owned());
        config.state_key = Some(key.path().to_owned());
        config.timings.ready_without_control_plane = Duration::ZERO;
        config.timings.drain = Duration::ZERO;
        assent_evaluator::Evaluator::start(config).await.unwrap()
    };
    let path = format!("/validate/{}", one.path());
    let evaluator = sealed().await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    assert_eq!(client.review(&path).await.0.as_u16(), 503);
    // What it writes itself is found again.
    let mut peer = Peer::start_at(addr).await;
    peer.serve(&one);
    let mut stream = peer.stream().await;
    assert!(stream.hello.initial_revisions.is_empty());
    let before = fs::read(dir.path().join("set")).unwrap();
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "m1"))
        .await;
    eventually("the set is on disk", async || {
        fs::read(dir.path().join("set")).unwrap() != before
    })
    .await;
    evaluator.shutdown().await;
    peer.stop().await;
    let evaluator = sealed().await;
    eventually("ready", async || evaluator.ready().is_ok()).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    assert_eq!(client.review(&path).await.0.as_u16(), 200);
}

#[tokio::test]
async fn a_state_directory_that_can_not_be_used_does_not_stop_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut peer = Peer::start().await;
    let state = file.path().join("below-a-file");
    let evaluator = start_with(&peer, |config| config.state = Some(state)).await;
    let mut stream = peer.stream().await;
    stream.applied(full(&Snapshot::empty(), "n1")).await;
    assert_eq!(evaluator.ready(), Ok(()));
}

#[tokio::test]
async fn the_control_plane_going_away_changes_nothing_that_is_served() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let evaluator = start_with(&peer, |_| {}).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    drop(stream);
    peer.stop().await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 200);
    assert_eq!(evaluator.ready(), Ok(()));
}
