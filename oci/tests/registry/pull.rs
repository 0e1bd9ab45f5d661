//! Pulling with and without a login, by tag and by digest.

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Auth, Error, ModuleUrl, Puller, Sources};
use oci_client::secrets::RegistryAuth;

use crate::{
    MODULE, OTHER,
    registry::{Access, LAYER, Registry},
};

#[tokio::test]
async fn a_tag_that_moves_is_noticed_by_its_pin() {
    let registry = Registry::start(Access::Open).await;
    let push = |module| registry.push("org/p:v1", module, LAYER, RegistryAuth::Anonymous);
    push(MODULE).await;
    let first = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap();
    assert_eq!(first.bytes, MODULE);
    assert_eq!(first.digest, Digest::of(MODULE));
    assert!(first.resolved_url.is_pinned());
    push(OTHER).await;
    let second = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap();
    assert_eq!(second.digest, Digest::of(OTHER));
    let puller = Puller::new(registry.insecure(), AddressPolicy::PUBLIC).unwrap();
    let pinned = puller.pull(&first.resolved_url).await.unwrap();
    assert_eq!(pinned.digest, Digest::of(MODULE));
    assert_eq!(pinned.resolved_url, first.resolved_url);
}

#[tokio::test]
async fn what_is_not_there_or_no_policy_is_final() {
    let registry = Registry::start(Access::Open).await;
    let error = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Status { status: 404, .. }),
        "{error}"
    );
    let pin = format!("org/p@{}", Digest::of(b"nothing"));
    let error = registry.pull(registry.insecure(), &pin).await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let image = "application/vnd.oci.image.layer.v1.tar";
    registry
        .push("org/image:v1", MODULE, image, RegistryAuth::Anonymous)
        .await;
    let error = registry.pull(registry.insecure(), "org/image:v1").await;
    assert!(matches!(error, Err(Error::Manifest { .. })));
    registry
        .push("org/text:v1", b"no module", LAYER, RegistryAuth::Anonymous)
        .await;
    let error = registry.pull(registry.insecure(), "org/text:v1").await;
    assert!(matches!(error, Err(Error::NotWasm { .. })));
}

#[tokio::test]
async fn a_pull_secret_opens_a_registry() {
    let registry = Registry::start(Access::Login).await;
    let login = RegistryAuth::Basic("user".to_owned(), "pass".to_owned());
    registry.push("org/p:v1", MODULE, LAYER, login).await;
    let secret = |auth: &str| {
        let json = format!(
            r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#,
            registry.address
        );
        Sources {
            auth: Auth::from_docker_config(json.as_bytes()).unwrap(),
            ..registry.insecure()
        }
    };
    let pulled = registry.pull(secret("dXNlcjpwYXNz"), "org/p:v1").await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
    let error = registry.pull(secret("dXNlcjp3cm9uZw=="), "org/p:v1").await;
    assert!(matches!(error, Err(Error::Status { status: 401, .. })));
    let error = registry.pull(registry.insecure(), "org/p:v1").await;
    assert!(matches!(error, Err(Error::Login { .. })));
}

#[tokio::test]
async fn an_own_authority_is_trusted_where_it_is_declared() {
    let registry = Registry::start(Access::Tls).await;
    registry
        .push("org/p:v1", MODULE, LAYER, RegistryAuth::Anonymous)
        .await;
    let name = registry.address.to_string();
    let trusting = Sources {
        certificates: [(name, registry.ca_pem.clone().into_bytes())].into(),
        ..Sources::default()
    };
    let pulled = registry.pull(trusting, "org/p:v1").await.unwrap();
    assert_eq!(pulled.bytes, MODULE);
    let pulled = registry.pull(registry.insecure(), "org/p:v1").await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
    let url: ModuleUrl = format!("{}/org/p:v1", registry.address).parse().unwrap();
    let puller = Puller::new(Sources::default(), AddressPolicy::LOCAL).unwrap();
    let error = puller.pull(&url).await.unwrap_err();
    assert!(matches!(error, Error::Certificate { .. }), "{error}");
}

#[tokio::test]
async fn a_registry_that_is_down_is_worth_another_try() {
    let mut registry = Registry::start(Access::Open).await;
    registry.stop();
    let error = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}
