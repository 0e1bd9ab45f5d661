//! A real Kubernetes API for tests: etcd, kube-apiserver and kube-controller-manager as
//! processes, without nodes. Pods are only objects; [`Kubectl::pod_ready`] reports what a
//! kubelet would.
//!
//! ```text
//! assent_e2e::kube::with_temp_ns(async |ns| {
//!     ns.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}").await;
//!     let object = ns.get(&["configmap", "a"]).await;
//!     assert_eq!(object["data"]["k"], "v");
//! })
//! .await;
//! ```
//!
//! Starting takes seconds and some 400 MB, so that tests of one program share one
//! ([`shared`]). A test that stops the API server, or fills it, starts its own
//! ([`ApiServer::start`]).

pub mod api;
pub mod balancer;
mod cleanup;
mod cluster;
pub mod harness;
mod kubectl;
mod namespace;
mod pki;
mod pods;
mod server;

pub use balancer::Balancer;
pub use cluster::Cluster;
pub use harness::Harness;
pub use kubectl::Kubectl;
pub use namespace::{with_temp_ns, with_temp_ns_on};
pub use pods::Token;
pub use server::ApiServer;

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::sync::OnceCell;

/// The audience of replicas' tokens.
pub const AUDIENCE: &str = "assent-control-plane";

/// The server that the tests of this program share. It ends with the program, however that ends.
pub async fn shared() -> &'static ApiServer {
    static SHARED: OnceCell<ApiServer> = OnceCell::const_new();
    SHARED.get_or_init(ApiServer::start).await
}

/// The CRDs of the chart.
pub fn crds() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/assent/crds");
    let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = files
        .map(|file| file.expect("a directory must be readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no definitions", dir.display());
    files
}
