//! What HTTPS costs by itself: every request is answered with its own body. With a policy, which
//! judges the same review every time, it is what nobody can do without: the request, the call, the
//! answer, in one process.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args as ClapArgs;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{guests::Guests, raw::Raw};
use crate::server::{read_line, say};

/// How the port is secured, and who is called.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Certificate chain as PEM
    #[arg(long)]
    cert: PathBuf,
    /// Private key as PEM
    #[arg(long)]
    key: PathBuf,
    /// Policy that is called before each answer, by its label
    #[arg(long)]
    call: Option<String>,
    /// Folder with the example policies
    #[arg(long, default_value = "policies")]
    policies: PathBuf,
}

/// Says its address, and serves until standard input ends.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(tls(&args)?));
    let raw = args.call.map(|label| prepare(&args.policies, &label));
    let raw = raw.transpose()?.map(Arc::new);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    say(&listener.local_addr()?.to_string())?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(acceptor.clone(), stream, raw.clone()));
        }
    });
    while read_line().await?.is_some() {}
    Ok(())
}

fn tls(args: &Args) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(&args.cert)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&args.key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn prepare(folder: &Path, label: &str) -> anyhow::Result<Raw> {
    let guests = Guests::one(folder, label)?;
    let guest = guests.all().first().context("no such policy")?;
    Raw::prepare(guests.engine(), guest)
}

/// Like the review port in all that is not about reviews. A client that goes away ends it.
async fn connection(acceptor: TlsAcceptor, stream: TcpStream, raw: Option<Arc<Raw>>) {
    let _ = stream.set_nodelay(true);
    if let Ok(stream) = acceptor.accept(stream).await {
        let builder = auto::Builder::new(TokioExecutor::new());
        let answer = service_fn(move |request| answer(request, raw.clone()));
        let connection = builder.serve_connection(TokioIo::new(stream), answer);
        let _ = connection.await;
    }
}

async fn answer(
    request: Request<Incoming>,
    raw: Option<Arc<Raw>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let called = raw.is_none_or(|raw| raw.call_once().is_ok());
    let mut response = Response::new(Full::default());
    match body {
        Ok(body) if called => *response.body_mut() = Full::new(body.to_bytes()),
        _ => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}
