//! Commands that query a control plane, without one.

use std::net::TcpListener;

use crate::support::{Files, assent};

/// An address that nothing listens on.
fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn missing_control_plane_is_reported_with_advice() {
    let server = unused_address();
    for args in [
        &["status"][..],
        &["status", "no-privileged"],
        &["replicas"],
        &["context"],
        &["rollout", "status", "no-privileged"],
        &["rollout", "history", "shop/limits"],
        &["rollout", "undo", "cluster/no-privileged"],
    ] {
        let done = assent(&[args, &["--server", &server]].concat());
        done.expect(2)
            .says("start a control plane with `assent up`")
            .says(&server);
        assert_eq!(done.out, "");
    }
}

#[test]
fn bad_credentials_are_reported_before_connecting() {
    let server = unused_address().replace("http:", "https:");
    let files = Files::new(&[("token", b"two\nlines"), ("ca.pem", b"no certificate")]);
    let status = |args: &[&str]| assent(&[&["status", "--server", &server], args].concat());
    status(&[]).expect(2).says("--ca FILE");
    status(&["--ca", &files.path("lost.pem")])
        .expect(2)
        .says("lost.pem");
    status(&["--token-file", &files.path("token")])
        .expect(2)
        .says("not one line of text");
    let odd = assent(&["status", "--server", "localhost"]);
    odd.expect(2).says("use http://HOST:PORT");
}

#[test]
fn up_fails_if_it_cannot_listen() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let files = Files::new(&[]);
    let args = [
        "up",
        "--replicas",
        "0",
        "--discovery",
        "127.0.0.1:0",
        "--http",
        &taken,
    ];
    let policies = files.path("policies");
    let done = assent(&[&args[..], &["--policies", &policies, "--log-level", "off"]].concat());
    done.expect(1).says("--http").says("error: ");
    assert_eq!(done.err.lines().count(), 1, "{done:?}");
    assent(&["up", "--replicas", "many"]).expect(2);
}
