#![allow(clippy::unwrap_used)]

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{connector::Connector, dial::Resolver, proxy::Proxies, *};

#[allow(dead_code)]
#[path = "../../tests/http/server.rs"]
mod server;

use server::{ForwardProxy, Server, ok};

/// Resolves every name to these addresses; none stands for a name that does not resolve.
struct Names {
    resolver: Resolver,
    lookups: Arc<AtomicUsize>,
}

// === impl Names ===

impl Names {
    fn new(addresses: &[&str]) -> Self {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let lookups = Arc::new(AtomicUsize::new(0));
        let count = lookups.clone();
        let resolver = Resolver::new(move |_, port| {
            count.fetch_add(1, Ordering::SeqCst);
            let found = addresses.iter().map(|ip| SocketAddr::from((*ip, port)));
            let found: Vec<_> = found.collect();
            Box::pin(async move {
                match found.is_empty() {
                    true => Err(io::Error::other("no such name")),
                    false => Ok(found),
                }
            })
        });
        Self { resolver, lookups }
    }
}

fn transport(insecure: &[String], proxies: Proxies, names: &Names) -> Transport {
    let sources = Sources {
        insecure: insecure.to_vec(),
        ..Sources::default()
    };
    let resolver = names.resolver.clone();
    let connector = Connector::with(&sources, AddressPolicy::PUBLIC, proxies, resolver);
    Transport::with_connector(Auth::default(), connector.unwrap())
}

fn no_proxy() -> Proxies {
    Proxies::new("", "")
}

async fn get(transport: &Transport, url: &str) -> Result<Bytes, Error> {
    let url = url.parse().unwrap();
    let response = transport.get(&url, None, None).await?.success()?;
    response.body(1000).await
}

#[tokio::test]
async fn name_that_resolves_to_a_refused_address_is_refused() {
    let server = Server::plain(|_| ok("secret")).await;
    let port = server.address.port();
    for addresses in [
        &["127.0.0.1"] as &[&str],
        &["169.254.169.254"],
        &["10.0.0.1", "::1"],
    ] {
        let names = Names::new(addresses);
        let transport = transport(&[], no_proxy(), &names);
        let error = get(&transport, &format!("https://rebind.test:{port}/")).await;
        assert!(matches!(error, Err(Error::AddressRefused { .. })));
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn declaration_is_for_one_port() {
    let server = Server::plain(|_| ok("secret")).await;
    let names = Names::new(&["127.0.0.1"]);
    let transport = transport(&["registry.test:5000".to_owned()], no_proxy(), &names);
    let url = format!("https://registry.test:{}/", server.address.port());
    let error = get(&transport, &url).await;
    assert!(matches!(error, Err(Error::AddressRefused { .. })));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn reused_connection_is_not_resolved_again() {
    let server = Server::plain(|_| ok("body")).await;
    let names = Names::new(&["127.0.0.1"]);
    let host = format!("registry.test:{}", server.address.port());
    let transport = transport(std::slice::from_ref(&host), no_proxy(), &names);
    for _ in 0..3 {
        let body = get(&transport, &format!("http://{host}/")).await.unwrap();
        assert_eq!(body, "body");
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(names.lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http_request_is_forwarded_by_the_proxy() {
    let server = Server::plain(|_| ok("body")).await;
    let proxy = ForwardProxy::start(server.address).await;
    let url = format!("http://user:pass@{}", proxy.address);
    let names = Names::new(&[]);
    let transport = transport(
        &["registry.test".to_owned()],
        Proxies::new(&url, ""),
        &names,
    );
    let body = get(&transport, "http://registry.test/p?q=1").await.unwrap();
    assert_eq!(body, "body");
    let [head] = proxy.heads().try_into().ok().unwrap();
    assert!(
        head.starts_with("GET http://registry.test/p?q=1 HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("proxy-authorization: Basic dXNlcjpwYXNz"),
        "{head}"
    );
}

#[tokio::test]
async fn https_request_goes_through_a_tunnel() {
    let server = Server::http2(|_| ok("body")).await;
    let proxy = ForwardProxy::start(server.address).await;
    let url = format!("http://user:pass@{}", proxy.address);
    let names = Names::new(&[]);
    let transport = transport(
        &["registry.test".to_owned()],
        Proxies::new(&url, ""),
        &names,
    );
    for _ in 0..2 {
        let body = get(&transport, "https://registry.test/p").await.unwrap();
        assert_eq!(body, "body");
    }
    let [head] = proxy.heads().try_into().ok().unwrap();
    assert!(
        head.starts_with("CONNECT registry.test:443 HTTP/1.1\r\n"),
        "{head}"
    );
    let head = head.to_lowercase();
    assert!(
        head.contains("proxy-authorization: basic dxnlcjpwyxnz"),
        "{head}"
    );
    // The target sees neither the proxy's login nor another protocol than without a proxy.
    for seen in server.seen() {
        assert_eq!(seen.version, http::Version::HTTP_2);
        assert!(!seen.headers.contains_key("proxy-authorization"));
    }
}

#[tokio::test]
async fn proxied_target_with_a_refused_address_is_refused() {
    let server = Server::plain(|_| ok("secret")).await;
    let proxy = ForwardProxy::start(server.address).await;
    let url = format!("http://{}", proxy.address);
    // The proxy might choose the second address.
    let names = Names::new(&["1.1.1.1", "10.0.0.1"]);
    let transport = transport(&[], Proxies::new(&url, ""), &names);
    for target in [
        "https://10.96.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00::1]/",
        "https://rebind.test/",
    ] {
        let error = get(&transport, target).await;
        assert!(
            matches!(error, Err(Error::AddressRefused { .. })),
            "{target}: {error:?}"
        );
    }
    assert_eq!(proxy.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn name_that_only_the_proxy_resolves_is_left_to_the_proxy() {
    let server = Server::tls(|_| ok("body")).await;
    let proxy = ForwardProxy::start(server.address).await;
    let url = format!("http://{}", proxy.address);
    let transport = transport(&[], Proxies::new(&url, ""), &Names::new(&[]));
    // The tunnel opens; the certificate is not one of a public authority.
    let error = get(&transport, "https://registry.test/p").await;
    assert!(matches!(error, Err(Error::Certificate { .. })), "{error:?}");
    assert_eq!(proxy.heads().len(), 1);
}

#[tokio::test]
async fn hosts_in_no_proxy_and_loopback_are_connected_to_directly() {
    let server = Server::plain(|_| ok("body")).await;
    let proxy = ForwardProxy::start(server.address).await;
    let url = format!("http://{}", proxy.address);
    let port = server.address.port();
    let hosts = ["registry.test", "127.0.0.1", "localhost"].map(|host| format!("{host}:{port}"));
    let names = Names::new(&["127.0.0.1"]);
    let transport = transport(&hosts, Proxies::new(&url, ".test"), &names);
    for host in hosts {
        get(&transport, &format!("http://{host}/")).await.unwrap();
    }
    assert_eq!(proxy.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn proxy_that_can_not_be_used_is_named() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for (url, why) in [
        (
            format!("http://user:pass@{closed}"),
            "opened no tunnel: failed to connect",
        ),
        (format!("socks5://{closed}"), "is not an HTTP proxy"),
    ] {
        let transport = transport(&[], Proxies::new(&url, ""), &Names::new(&[]));
        let error = get(&transport, "https://registry.test/").await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        let said = error.to_string();
        assert!(
            said.contains(&closed.to_string()) && said.contains(why),
            "{said}"
        );
        assert!(!said.contains("pass"), "{said}");
    }
}
