//! The ports that evaluators connect to, and who may use them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use assent_grpc::{
    Authenticator, Tls,
    auth::{Local, StaticTokens},
    serve,
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    fleet::Embedded,
    token::{self, WriteToken},
};
use crate::services::Sources;

/// Calls at a time on one connection from this machine.
const LOOPBACK_STREAMS: u32 = 10_000;

/// The tokens of a file or, if there is none, a new one for whoever changes policies.
pub(super) fn authenticator(
    token_file: Option<PathBuf>,
    state: &Path,
    discovery: SocketAddr,
) -> anyhow::Result<(Arc<dyn Authenticator>, Option<WriteToken>)> {
    if let Some(path) = token_file {
        return Ok((Arc::new(StaticTokens::load(path)?), None));
    }
    let token = WriteToken::create(state, discovery)?;
    Ok((Arc::new(Local::new(&token.token)), Some(token)))
}

pub(super) async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener
        .with_context(|| format!("failed to listen on {flag} {address}; is another one running?"))
}

pub(super) fn spawn(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    listener: TcpListener,
    tls: Option<Tls>,
    sources: &Sources,
    authenticator: Arc<dyn Authenticator>,
    max_connection_streams: Option<u32>,
    shutdown: &CancellationToken,
) {
    let hub = sources.hub.clone();
    let services = sources.services(authenticator);
    let stop = shutdown.clone();
    let mut options = serve::Options::default();
    // On loopback a connection may be that of many replicas: a proxy's, or a load client's.
    let address = listener.local_addr();
    if address.is_ok_and(|address| address.ip().is_loopback()) {
        options.max_concurrent_streams = LOOPBACK_STREAMS;
    }
    if let Some(streams) = max_connection_streams {
        options.max_concurrent_streams = streams;
    }
    tasks.spawn(async move {
        serve::serve(vec![listener], tls, hub, services, options, stop).await?;
        Ok(())
    });
}

/// Embedded evaluators connect to the discovery port or, if that requires TLS or a token, to
/// a port of their own with a token that only this process knows.
pub(super) async fn embedded(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    secured: bool,
    discovery: SocketAddr,
    state: &Path,
    replicas: u16,
    sources: &Sources,
    shutdown: &CancellationToken,
) -> anyhow::Result<Embedded> {
    let plain = Embedded {
        discovery,
        token_file: None,
        state: state.to_owned(),
        replicas,
        authz: None,
        decision_log: None,
    };
    if !secured || replicas == 0 {
        return Ok(plain);
    }
    let token_file = token::internal(state)?;
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "loopback").await?;
    let discovery = listener.local_addr()?;
    let tokens = Arc::new(StaticTokens::load(&token_file)?);
    spawn(tasks, listener, None, sources, tokens, None, shutdown);
    Ok(Embedded {
        discovery,
        token_file: Some(token_file),
        ..plain
    })
}
