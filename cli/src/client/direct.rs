//! A connection to an address.

use std::{
    ffi::OsString,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use assent_control_plane::standalone::token;
use http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::{Client, Origin, ServerArgs, Token, prepare, root};

/// Connects to a control plane at `server`.
pub(super) async fn connect(args: &ServerArgs, server: Uri) -> anyhow::Result<Client> {
    let token = read_token(args, &server)?;
    let endpoint = endpoint(args, &server)?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| unreachable(&server, &error))?;
    let origin = Origin::Url(shown(&server));
    Ok(Client::new(
        channel,
        token,
        origin,
        args.policy_server.clone(),
    ))
}

fn endpoint(args: &ServerArgs, server: &Uri) -> anyhow::Result<Endpoint> {
    let endpoint = prepare(Endpoint::from(server.clone()))?;
    match server.scheme_str() {
        Some("http") => Ok(endpoint),
        Some("https") => {
            let tls = tls(args, server)?;
            endpoint
                .tls_config(tls)
                .context("failed to set up TLS: check --ca and --tls-name")
        }
        _ => bail!(
            "--server {server} is not the URL of a control plane; use http://HOST:PORT or https://HOST:PORT"
        ),
    }
}

fn tls(args: &ServerArgs, server: &Uri) -> anyhow::Result<ClientTlsConfig> {
    let Some(path) = &args.ca else {
        bail!("{server} needs --ca FILE: the certificate authority of the control plane");
    };
    let pem = std::fs::read(path);
    let pem = pem.with_context(|| format!("failed to read --ca {}", path.display()))?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    Ok(match &args.tls_name {
        Some(name) => tls.domain_name(name),
        None => tls,
    })
}

fn read_token(args: &ServerArgs, server: &Uri) -> anyhow::Result<Token> {
    let local = || local_token_file(server, std::env::var_os("ASSENT_STATE"));
    let Some(path) = args.token_file.clone().or_else(local) else {
        return Ok(Token::none());
    };
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("failed to read --token-file {}", path.display()))?;
    Token::new(text.trim()).with_context(|| {
        format!(
            "failed to use the token in {}: it is not one line of text",
            path.display()
        )
    })
}

fn unreachable(server: &Uri, error: &tonic::transport::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "failed to connect to {}: {}; start a control plane with `assent up`, select a cluster with --kubeconfig or --context, or specify an address with --server URL (or ASSENT_SERVER)",
        shown(server),
        root(error)
    )
}

/// The URL without the slash of an empty path.
fn shown(server: &Uri) -> String {
    server.to_string().trim_end_matches('/').to_owned()
}

/// The token that an `assent up` of this machine has made, if there is one.
fn local_token_file(server: &Uri, state: Option<OsString>) -> Option<PathBuf> {
    let host = server.host()?.trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !is_local {
        return None;
    }
    let in_state = state.map(|state| token::in_state(Path::new(&state)));
    let of_user = token::of_user(server.port_u16()?);
    let mut files = in_state.into_iter().chain(of_user);
    // One of another user is of no use, and not needed for looking at policies.
    files.find(|file| std::fs::File::open(file).is_ok())
}
