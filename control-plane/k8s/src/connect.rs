//! The connection to the API server, and what it is asked before anything else.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::{
    client::legacy::Client as HttpClient,
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Namespace};
use kube::{
    Api, Client, Config,
    api::PostParams,
    client::{Body, ConfigExt as _},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::ServiceBuilder;

/// A peer that vanished is detected after the sum of both: as fast as evaluators detect that of
/// the control plane.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// The API server can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig file can't be used.
    #[error("failed to read --kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The process does not run in a pod.
    #[error("no service account found: outside of a cluster, --kubeconfig is required")]
    NotInCluster(#[source] InClusterError),
    /// No client can be built from the configuration.
    #[error("failed to create a client for the API server")]
    Client(#[source] Box<kube::Error>),
    /// A request failed.
    #[error("failed to reach the API server")]
    Request(#[source] Box<kube::Error>),
    /// The control plane's namespace does not exist.
    #[error("namespace {0} does not exist: create it, or set --namespace")]
    NoNamespace(String),
}

/// A client for the API server of `kubeconfig`, or of the cluster that this pod runs in.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let mut config = match kubeconfig {
        Some(path) => {
            let error = |source| Error::Kubeconfig {
                path: path.to_owned(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(error)?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(error)?
        }
        None => Config::incluster().map_err(Error::NotInCluster)?,
    };
    // Watches are open for minutes, so that only connecting has a limit.
    config.connect_timeout = Some(Duration::from_secs(10));
    client(config).map_err(|e| Error::Client(Box::new(e)))
}

/// The uid of the control plane's namespace, which owns every webhook configuration.
pub async fn namespace_uid(client: &Client, name: &str) -> Result<String, Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_opt(name).await;
    let found = found.map_err(|e| Error::Request(Box::new(e)))?;
    let found = found.ok_or_else(|| Error::NoNamespace(name.to_owned()))?;
    Ok(found.metadata.uid.unwrap_or_default())
}

/// The user name that the API server knows this process by.
pub async fn own_user(client: &Client) -> Result<Option<String>, Error> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|e| Error::Request(Box::new(e)))?;
    let user = review.status.and_then(|s| s.user_info);
    Ok(user.and_then(|u| u.username))
}

/// A client over one HTTP/2 connection, which every API server supports: watches and requests
/// share it, and pings detect a peer that has vanished.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    let tls = config.rustls_client_config()?;
    let mut http = hyper_util::client::legacy::connect::HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(http);
    let connection = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(connection);
    Ok(Client::new(service, config.default_namespace))
}
