//! `https://` and `http://`.

use std::time::Duration;

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Error, Limits, ModuleUrl, Pulled, Puller, Sources};

use crate::{
    MODULE,
    server::{Server, answer, broken, endless, ok, redirect},
};

fn insecure(servers: &[&Server]) -> Sources {
    Sources {
        insecure: servers.iter().map(|s| s.address.to_string()).collect(),
        ..Sources::default()
    }
}

fn trusting(server: &Server) -> Sources {
    let name = server.address.to_string();
    Sources {
        certificates: [(name, server.ca_pem.clone().into_bytes())].into(),
        ..Sources::default()
    }
}

async fn pull(sources: Sources, reach: AddressPolicy, url: &str) -> Result<Pulled, Error> {
    let url: ModuleUrl = url.parse().unwrap();
    Puller::new(sources, reach).unwrap().pull(&url).await
}

#[tokio::test]
async fn a_module_comes_over_https_with_an_own_authority() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let url = server.url("/p.wasm?token=secret");
    let pulled = pull(trusting(&server), AddressPolicy::PUBLIC, &url)
        .await
        .unwrap();
    assert_eq!(pulled.bytes, MODULE);
    assert_eq!(pulled.digest, Digest::of(MODULE));
    let pinned = format!("{url}#{}", Digest::of(MODULE));
    assert_eq!(pulled.resolved_url.to_string(), pinned);
    let again = pull(trusting(&server), AddressPolicy::PUBLIC, &pinned)
        .await
        .unwrap();
    assert_eq!(again.digest, pulled.digest);
    assert!(server.seen().iter().all(|s| s.query == "token=secret"));
}

#[tokio::test]
async fn content_that_changed_is_noticed() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let other = Digest::of(b"other");
    let url = server.url(&format!("/p.wasm?token=secret#{other}"));
    let error = pull(trusting(&server), AddressPolicy::PUBLIC, &url)
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::Digest { expected, .. } if *expected == other));
    assert!(!error.is_retryable());
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let error = pull(Sources::default(), AddressPolicy::LOCAL, &server.url("/p")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Certificate { .. }), "{error}");
    assert!(!error.is_retryable());
    assert!(server.seen().is_empty());
    let other = Server::tls(|_| ok(MODULE)).await;
    let wrong = Sources {
        certificates: [(
            server.address.to_string(),
            other.ca_pem.clone().into_bytes(),
        )]
        .into(),
        ..Sources::default()
    };
    let error = pull(wrong, AddressPolicy::LOCAL, &server.url("/p")).await;
    assert!(matches!(error, Err(Error::Certificate { .. })));
}

#[tokio::test]
async fn declared_insecure_takes_any_certificate() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let pulled = pull(
        insecure(&[&server]),
        AddressPolicy::PUBLIC,
        &server.url("/p"),
    )
    .await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn plain_http_needs_a_declaration() {
    let server = Server::plain(|_| ok(MODULE)).await;
    let error = pull(Sources::default(), AddressPolicy::LOCAL, &server.url("/p")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Plain { .. }), "{error}");
    assert!(error.to_string().contains(&server.address.to_string()));
    assert_eq!(server.connections(), 0);
    let pulled = pull(
        insecure(&[&server]),
        AddressPolicy::PUBLIC,
        &server.url("/p"),
    )
    .await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn addresses_out_of_reach_are_not_even_connected_to() {
    let server = Server::tls(|_| ok(MODULE)).await;
    let port = server.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "2130706433",
    ] {
        let url = format!("https://{host}:{port}/p");
        let error = pull(Sources::default(), AddressPolicy::PUBLIC, &url)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::AddressRefused { .. }),
            "{host}: {error}"
        );
        assert!(!error.is_retryable());
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_redirect_reaches_no_further() {
    let inner = Server::tls(|_| ok(MODULE)).await;
    let target = inner.url("/credentials");
    let outer = Server::tls(move |_| redirect(&target)).await;
    let error = pull(trusting(&outer), AddressPolicy::PUBLIC, &outer.url("/p")).await;
    assert!(matches!(error, Err(Error::AddressRefused { .. })));
    assert_eq!(inner.connections(), 0);
    let plain = Server::plain(|_| ok(MODULE)).await;
    let target = plain.url("/p");
    let outer = Server::tls(move |_| redirect(&target)).await;
    let error = pull(trusting(&outer), AddressPolicy::LOCAL, &outer.url("/p")).await;
    assert!(matches!(error, Err(Error::Plain { .. })));
    assert_eq!(plain.connections(), 0);
}

#[tokio::test]
async fn a_few_redirects_are_followed() {
    let server = Server::tls(|seen| match seen.path.as_str() {
        "/1" => redirect("2"),
        "/2" => redirect("/3?x=1"),
        "/3" => ok(MODULE),
        "/loop" => redirect("/loop"),
        "/file" => redirect("file:///etc/passwd"),
        _ => answer(302, ""),
    })
    .await;
    let get = |path: &str| {
        let url = server.url(path);
        let sources = trusting(&server);
        async move { pull(sources, AddressPolicy::PUBLIC, &url).await }
    };
    assert_eq!(get("/1").await.unwrap().bytes, MODULE);
    server.seen();
    assert!(matches!(get("/loop").await, Err(Error::Redirects { .. })));
    assert_eq!(server.seen().len(), 6);
    assert!(matches!(get("/file").await, Err(Error::BadRedirect { .. })));
    assert!(matches!(
        get("/nowhere").await,
        Err(Error::BadRedirect { .. })
    ));
}

#[tokio::test]
async fn a_status_says_whether_to_try_again_and_bodies_are_kept_out() {
    let server = Server::plain(|seen| {
        let status = seen.path.trim_start_matches('/').parse().unwrap();
        answer(status, "internal secret")
    })
    .await;
    for (status, again) in [
        (404, false),
        (401, false),
        (403, false),
        (410, false),
        (204, false),
    ]
    .into_iter()
    .chain([(408, true), (429, true), (500, true), (503, true)])
    {
        let url = server.url(&format!("/{status}?sig=secret"));
        let error = pull(insecure(&[&server]), AddressPolicy::PUBLIC, &url)
            .await
            .unwrap_err();
        assert_eq!(error.is_retryable(), again, "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        if status != 204 {
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_too_large_is_cut_off() {
    let server = Server::plain(|seen| match seen.path.as_str() {
        "/announced" => ok(vec![0; 2000]),
        _ => endless(),
    })
    .await;
    let limits = Limits {
        max_bytes: 1000,
        ..Limits::default()
    };
    let puller = Puller::new(insecure(&[&server]), AddressPolicy::PUBLIC).unwrap();
    let puller = puller.with_limits(limits);
    for path in ["/announced", "/endless"] {
        let url: ModuleUrl = server.url(path).parse().unwrap();
        let error = puller.pull(&url).await.unwrap_err();
        assert!(
            matches!(error, Error::TooLarge { limit: 1000, .. }),
            "{error}"
        );
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let server = Server::plain(|_| ok(MODULE)).await;
    let limits = Limits {
        deadline: Duration::from_millis(100),
        ..Limits::default()
    };
    let puller = Puller::new(insecure(&[&server]), AddressPolicy::PUBLIC).unwrap();
    let url: ModuleUrl = server.url("/never").parse().unwrap();
    let error = puller.with_limits(limits).pull(&url).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_broken_connection_is_worth_another_try() {
    let server = Server::plain(|_| broken()).await;
    let sources = insecure(&[&server]);
    let url = server.url("/p");
    let error = pull(sources.clone(), AddressPolicy::PUBLIC, &url)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
    assert!(error.is_retryable());
    drop(server);
    let error = pull(sources, AddressPolicy::PUBLIC, &url)
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn what_is_no_module_is_refused() {
    let server = Server::plain(|seen| match seen.path.as_str() {
        "/html" => ok("<html>secret</html>"),
        "/component" => ok(b"\0asm\x0d\0\x01\0".as_slice()),
        "/version" => ok(b"\0asm\x02\0\0\0".as_slice()),
        _ => ok(""),
    })
    .await;
    for (path, word) in [
        ("/html", "is not a WebAssembly module"),
        ("/component", "component"),
        ("/version", "version"),
        ("/empty", "is not a WebAssembly module"),
    ] {
        let error = pull(
            insecure(&[&server]),
            AddressPolicy::PUBLIC,
            &server.url(path),
        )
        .await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NotWasm { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_bundle_without_certificates_is_refused() {
    for pem in [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        let sources = Sources {
            certificates: [("host".to_owned(), pem.as_bytes().to_vec())].into(),
            ..Sources::default()
        };
        let error = Puller::new(sources, AddressPolicy::PUBLIC)
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"host\""), "{error}");
    }
}
