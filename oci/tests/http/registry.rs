//! What a registry may make the client do. A real registry is in `tests/registry`; this
//! one misbehaves.

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Auth, Error, ModuleUrl, Pulled, Puller, Sources};
use http::Response;

use crate::{
    MODULE,
    server::{Body, Seen, Server, answer, ok, redirect},
};

fn manifest() -> String {
    manifest_of(Digest::of(MODULE), MODULE.len())
}

fn manifest_of(digest: Digest, size: usize) -> String {
    let media_type = "application/vnd.wasm.content.layer.v1+wasm";
    format!(
        r#"{{"schemaVersion":2,"layers":[{{"mediaType":"{media_type}","digest":"{digest}","size":{size}}}]}}"#
    )
}

pub(crate) fn unauthorized(challenge: &str) -> Response<Body> {
    let mut response = answer(401, "secret");
    let value = challenge.parse().unwrap();
    response.headers_mut().insert("www-authenticate", value);
    response
}

/// Serves one policy; what it asks and where it sends clients is up to the test.
pub(crate) fn repository(seen: &Seen) -> Response<Body> {
    let blob = format!("/v2/org/p/blobs/{}", Digest::of(MODULE));
    match seen.path.as_str() {
        "/v2/org/p/manifests/v1" => ok(manifest()),
        path if path == blob => ok(MODULE),
        path if path.ends_with(&Digest::of(manifest().as_bytes()).to_string()) => ok(manifest()),
        _ => answer(404, "secret"),
    }
}

fn insecure(servers: &[&Server]) -> Sources {
    Sources {
        insecure: servers.iter().map(|s| s.address.to_string()).collect(),
        ..Sources::default()
    }
}

fn with_login(sources: Sources, registry: &Server) -> Sources {
    let auth = Auth::default().with_basic(&registry.address.to_string(), "user", "pass");
    Sources { auth, ..sources }
}

async fn pull(sources: Sources, registry: &Server, name: &str) -> Result<Pulled, Error> {
    let url: ModuleUrl = format!("{}/org/p{name}", registry.address).parse().unwrap();
    Puller::new(sources, AddressPolicy::PUBLIC)
        .unwrap()
        .pull(&url)
        .await
}

#[tokio::test]
async fn a_tag_is_pinned_by_its_manifest() {
    for server in [
        Server::plain(repository).await,
        Server::tls(repository).await,
    ] {
        let pulled = pull(insecure(&[&server]), &server, ":v1").await.unwrap();
        assert_eq!(pulled.bytes, MODULE);
        let manifest = Digest::of(manifest().as_bytes());
        let pinned = format!("registry://{}/org/p@{manifest}", server.address);
        assert_eq!(pulled.resolved_url.to_string(), pinned);
        let pin = format!("@{manifest}");
        let again = pull(insecure(&[&server]), &server, &pin).await.unwrap();
        assert_eq!(again.digest, pulled.digest);
    }
}

#[tokio::test]
async fn a_registry_that_is_not_declared_is_not_spoken_to_in_the_clear() {
    let server = Server::plain(repository).await;
    let error = pull(Sources::default(), &server, ":v1").await.unwrap_err();
    assert!(matches!(error, Error::AddressRefused { .. }), "{error}");
    let url: ModuleUrl = format!("{}/org/p:v1", server.address).parse().unwrap();
    let puller = Puller::new(Sources::default(), AddressPolicy::LOCAL).unwrap();
    puller.pull(&url).await.unwrap_err();
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn forged_content_is_refused() {
    let forged = Server::plain(|seen| match seen.path.contains("/manifests/") {
        true => ok(manifest()),
        false => ok(b"\0asm\x01\0\0\0forged".as_slice()),
    })
    .await;
    let error = pull(insecure(&[&forged]), &forged, ":v1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    assert!(!error.is_retryable());
    let pin = format!("@{}", Digest::of(b"another manifest"));
    let error = pull(insecure(&[&forged]), &forged, &pin).await.unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error}");
}

#[tokio::test]
async fn a_layer_that_claims_too_much_is_not_fetched() {
    let server = Server::plain(|_| ok(manifest_of(Digest::of(MODULE), 1 << 40))).await;
    let error = pull(insecure(&[&server]), &server, ":v1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_missing_tag_is_final_and_an_image_is_no_policy() {
    let server = Server::plain(|seen| match seen.path.as_str() {
        "/v2/org/p/manifests/image" => ok(r#"{"schemaVersion":2,"layers":[],"secret":1}"#),
        _ => answer(404, r#"{"errors":[{"message":"secret"}]}"#),
    })
    .await;
    let error = pull(insecure(&[&server]), &server, ":gone")
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Status { status: 404, .. }),
        "{error}"
    );
    assert!(!error.is_retryable() && !error.to_string().contains("secret"));
    let error = pull(insecure(&[&server]), &server, ":image")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Manifest { .. }), "{error}");
    assert!(!error.is_retryable() && !error.to_string().contains("secret"));
}

#[tokio::test]
async fn a_token_is_fetched_with_the_login_and_used() {
    let tokens = Server::plain(|_| ok(r#"{"token":"abc"}"#)).await;
    let realm = tokens.url("/token");
    let registry = Server::plain(move |seen| match seen.authorization() {
        Some("Bearer abc") => repository(seen),
        _ => unauthorized(&format!(r#"Bearer realm="{realm}",service="reg istry""#)),
    })
    .await;
    let sources = with_login(insecure(&[&registry, &tokens]), &registry);
    pull(sources, &registry, ":v1").await.unwrap();
    let [asked] = tokens.seen().try_into().ok().unwrap();
    assert_eq!(asked.authorization(), Some("Basic dXNlcjpwYXNz"));
    assert_eq!(
        asked.query,
        "scope=repository%3Aorg%2Fp%3Apull&service=reg+istry"
    );
    // The password goes to the token service alone.
    let to_registry = registry.seen();
    assert!(!to_registry.is_empty());
    for seen in to_registry {
        assert!(matches!(seen.authorization(), None | Some("Bearer abc")));
    }
}

#[tokio::test]
async fn an_identity_token_buys_a_token() {
    // Services may give it under both names.
    let both = r#"{"token":"abc","access_token":"abc","expires_in":300}"#;
    for given in [both, r#"{"access_token":"abc"}"#] {
        let tokens = Server::plain(move |_| ok(given)).await;
        let realm = tokens.url("/token?a=b");
        let registry = Server::plain(move |seen| match seen.authorization() {
            Some("Bearer abc") => repository(seen),
            _ => unauthorized(&format!(r#"Bearer realm="{realm}",service="s""#)),
        })
        .await;
        let entry = r#"{"auth":"MDAwMDo=","identitytoken":"i d"}"#;
        let config = format!(r#"{{"auths":{{"{}":{entry}}}}}"#, registry.address);
        let sources = Sources {
            auth: Auth::from_docker_config(config.as_bytes()).unwrap(),
            ..insecure(&[&registry, &tokens])
        };
        pull(sources, &registry, ":v1").await.unwrap();
        let [asked] = tokens.seen().try_into().ok().unwrap();
        assert_eq!((asked.authorization(), asked.query.as_str()), (None, "a=b"));
        assert_eq!(
            asked.body,
            "scope=repository%3Aorg%2Fp%3Apull&service=s&grant_type=refresh_token&client_id=assent&refresh_token=i+d"
        );
    }
}

#[tokio::test]
async fn a_token_service_is_reached_no_further_than_a_registry() {
    for tokens in [
        Server::plain(|_| ok("{}")).await,
        Server::tls(|_| ok("{}")).await,
    ] {
        let realm = tokens.url("/latest/meta-data");
        let challenge = format!(r#"Bearer realm="{realm}""#);
        let registry = Server::plain(move |_| unauthorized(&challenge)).await;
        let sources = with_login(insecure(&[&registry]), &registry);
        let error = pull(sources, &registry, ":v1").await.unwrap_err();
        let refused = matches!(error, Error::AddressRefused { .. } | Error::Plain { .. });
        assert!(refused, "{error}");
        assert_eq!(tokens.connections(), 0);
    }
}

#[tokio::test]
async fn basic_logins_work_and_their_absence_is_said() {
    let registry = Server::plain(|seen| match seen.authorization() {
        Some("Basic dXNlcjpwYXNz") => repository(seen),
        _ => unauthorized("Basic realm=\"r\""),
    })
    .await;
    let sources = with_login(insecure(&[&registry]), &registry);
    pull(sources, &registry, ":v1").await.unwrap();
    let error = pull(insecure(&[&registry]), &registry, ":v1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Login { .. }), "{error}");
    assert!(error.to_string().contains("imagePullSecret"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_final() {
    let registry = Server::plain(|_| unauthorized("Basic realm=\"r\"")).await;
    let sources = with_login(insecure(&[&registry]), &registry);
    let error = pull(sources, &registry, ":v1").await.unwrap_err();
    assert!(
        matches!(error, Error::Status { status: 401, .. }),
        "{error}"
    );
    assert!(!error.is_retryable() && !error.to_string().contains("pass;"));
    assert_eq!(registry.seen().len(), 2);
}

#[tokio::test]
async fn storage_behind_a_redirect_does_not_see_the_login() {
    let storage = Server::plain(|_| ok(MODULE)).await;
    let target = storage.url("/blob?sig=1");
    let registry =
        Server::plain(
            move |seen| match (seen.authorization(), seen.path.contains("/blobs/")) {
                (None, _) => unauthorized("Basic realm=\"r\""),
                (Some(_), true) => redirect(&target),
                (Some(_), false) => repository(seen),
            },
        )
        .await;
    let sources = with_login(insecure(&[&registry, &storage]), &registry);
    pull(sources, &registry, ":v1").await.unwrap();
    let [seen] = storage.seen().try_into().ok().unwrap();
    assert_eq!(seen.authorization(), None);
}

#[tokio::test]
async fn login_is_not_sent_to_a_token_service_that_a_redirect_target_names() {
    for challenge in ["Bearer realm=\"{realm}\"", "Basic realm=\"r\""] {
        let tokens = Server::plain(|_| ok(r#"{"token":"abc"}"#)).await;
        let challenge = challenge.replace("{realm}", &tokens.url("/token"));
        let storage = Server::plain(move |_| unauthorized(&challenge)).await;
        let target = storage.url("/blob");
        let registry = Server::plain(move |_| redirect(&target)).await;
        let sources = with_login(insecure(&[&registry, &storage, &tokens]), &registry);
        let error = pull(sources, &registry, ":v1").await.unwrap_err();
        assert!(
            matches!(error, Error::Status { status: 401, .. }),
            "{error}"
        );
        assert_eq!(tokens.connections(), 0);
        // Without a login of the redirect target's own, asking again is of no use.
        let [seen] = storage.seen().try_into().ok().unwrap();
        assert_eq!(seen.authorization(), None);
        assert!(registry.seen().iter().all(|s| s.authorization().is_none()));
    }
}
