//! A real Kubernetes API for tests: etcd, kube-apiserver and kube-controller-manager as
//! processes, without nodes. Pods are objects here; what a kubelet would say about one is
//! said by [`Kubectl::pod_ready`].
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
mod cluster;
mod keeper;
mod kubectl;
mod namespace;
mod pki;
mod pods;
mod server;
pub mod stage;

pub use balancer::Balancer;
pub use cluster::Cluster;
pub use kubectl::Kubectl;
pub use namespace::{with_temp_ns, with_temp_ns_on};
pub use pods::Token;
pub use server::ApiServer;
pub use stage::Stage;

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::sync::OnceCell;

/// The audience that the control plane asks replicas' tokens for.
pub const AUDIENCE: &str = "assent-control-plane";

/// The one that tests of this program share. It goes when the program ends, however it ends.
pub async fn shared() -> &'static ApiServer {
    static SHARED: OnceCell<ApiServer> = OnceCell::const_new();
    SHARED.get_or_init(ApiServer::start).await
}

/// The definitions of Assent's kinds, as the chart has them.
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
