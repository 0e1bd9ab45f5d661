//! Reuse of connections, HTTP/2 and proxies.

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Auth, Error, ModuleUrl, Puller, Sources};
use http::Version;
use tokio::process::Command;

use crate::{
    MODULE,
    registry::{repository, unauthorized},
    server::{ForwardProxy, Server, ok, redirect},
};

/// Tells the child process of a test what to pull.
const CHILD_URL: &str = "ASSENT_TEST_CHILD_URL";

fn trusting(server: &Server) -> Sources {
    let name = server.address.to_string();
    Sources {
        certificates: [(name.clone(), server.ca_pem.clone().into_bytes())].into(),
        auth: Auth::default().with_basic(&name, "user", "pass"),
        ..Sources::default()
    }
}

fn puller(server: &Server) -> Puller {
    Puller::new(trusting(server), AddressPolicy::PUBLIC).unwrap()
}

fn reference(server: &Server) -> ModuleUrl {
    format!("{}/org/p:v1", server.address).parse().unwrap()
}

#[tokio::test]
async fn several_pulls_share_one_connection() {
    for server in [
        Server::tls(repository).await,
        Server::http2(repository).await,
    ] {
        let puller = puller(&server);
        for _ in 0..3 {
            let pulled = puller.pull(&reference(&server)).await.unwrap();
            assert_eq!(pulled.digest, Digest::of(MODULE));
        }
        assert_eq!(server.seen().len(), 6);
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn http2_is_used_if_the_server_offers_it() {
    for (server, version) in [
        (Server::tls(repository).await, Version::HTTP_11),
        (Server::http2(repository).await, Version::HTTP_2),
    ] {
        puller(&server).pull(&reference(&server)).await.unwrap();
        let seen = server.seen();
        assert!(!seen.is_empty() && seen.iter().all(|seen| seen.version == version));
    }
}

#[tokio::test]
async fn login_does_not_cost_a_connection() {
    let server = Server::tls(|seen| match seen.authorization() {
        Some("Basic dXNlcjpwYXNz") => repository(seen),
        _ => unauthorized("Basic realm=\"r\""),
    })
    .await;
    puller(&server).pull(&reference(&server)).await.unwrap();
    assert_eq!(server.seen().len(), 3);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn redirect_on_a_reused_connection_does_not_reach_a_refused_address() {
    let inner = Server::tls(|_| ok(MODULE)).await;
    let target = inner.url("/credentials");
    let server = Server::http2(move |seen| match seen.path.as_str() {
        "/p" => ok(MODULE),
        _ => redirect(&target),
    })
    .await;
    let puller = puller(&server);
    let url = |path: &str| server.url(path).parse::<ModuleUrl>().unwrap();
    for _ in 0..2 {
        puller.pull(&url("/p")).await.unwrap();
        let error = puller.pull(&url("/redirect")).await.unwrap_err();
        assert!(matches!(error, Error::AddressRefused { .. }), "{error}");
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(inner.connections(), 0);
}

#[tokio::test]
async fn connections_of_other_sources_are_not_reused() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let url: ModuleUrl = server.url("/p").parse().unwrap();
    puller(&server).pull(&url).await.unwrap();
    let undeclared = Puller::new(Sources::default(), AddressPolicy::PUBLIC).unwrap();
    let error = undeclared.pull(&url).await.unwrap_err();
    assert!(matches!(error, Error::AddressRefused { .. }), "{error}");
    assert_eq!(server.connections(), 1);
}

/// The environment of a process that runs several tests can not be changed: the pull runs
/// in a process of its own, which is this test's program with another test.
#[tokio::test]
async fn proxy_variables_are_honoured() {
    let server = Server::plain(|_| ok(MODULE)).await;
    for (variables, proxied) in [
        (&["HTTP_PROXY"] as &[&str], true),
        (&["http_proxy"], true),
        (&["HTTPS_PROXY"], false),
        (&["HTTP_PROXY", "NO_PROXY"], false),
    ] {
        let proxy = ForwardProxy::start(server.address).await;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "connections::child_pulls_a_module", "--ignored"])
            .env(CHILD_URL, "http://registry.invalid/p");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            child.env_remove(name).env_remove(name.to_lowercase());
        }
        for name in variables {
            let value = match *name {
                "NO_PROXY" => "registry.invalid".to_owned(),
                _ => format!("http://{}", proxy.address),
            };
            child.env(name, value);
        }
        let output = child.kill_on_drop(true).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), proxied, "{variables:?}: {said}");
        assert_eq!(proxy.heads().len(), usize::from(proxied), "{variables:?}");
    }
}

#[tokio::test]
#[ignore = "runs in a child process of proxy_variables_are_honoured"]
async fn child_pulls_a_module() {
    // Absent when somebody runs all ignored tests.
    let Ok(url) = std::env::var(CHILD_URL) else {
        return;
    };
    let sources = Sources {
        insecure: vec!["registry.invalid".to_owned()],
        ..Sources::default()
    };
    let puller = Puller::new(sources, AddressPolicy::PUBLIC).unwrap();
    let pulled = puller.pull(&url.parse().unwrap()).await.unwrap();
    assert_eq!(pulled.bytes, MODULE);
}
