//! Flags of the port that Envoy asks.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use crate::{DefaultDecision, Listen, RequestsConfig, RequestsListen, Workloads};

/// Where and how requests at Envoy are decided.
#[derive(Clone, Debug, clap::Args)]
pub struct AuthzArgs {
    /// Where Envoy asks whether requests are allowed (ext_authz over gRPC): ADDRESS:PORT or unix:PATH
    #[arg(long, env = "ASSENT_AUTHZ", value_name = "ADDR")]
    authz: Option<AuthzAddress>,
    /// What is decided about requests that no policy matches: deny or allow
    #[arg(
        long,
        env = "ASSENT_AUTHZ_DEFAULT",
        value_name = "DECISION",
        default_value = "deny",
        value_parser = parse_default,
        requires = "authz"
    )]
    authz_default: DefaultDecision,
    /// Namespace of the workload that this evaluator runs beside: RequestPolicies of other namespaces do not decide
    #[arg(
        long,
        env = "ASSENT_AUTHZ_NAMESPACE",
        value_name = "NAMESPACE",
        requires = "authz"
    )]
    authz_namespace: Option<String>,
}

/// A TCP address or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthzAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

// === impl AuthzArgs ===

impl AuthzArgs {
    /// None if Envoy is not answered.
    pub fn config(self) -> Option<RequestsConfig> {
        let Self {
            authz,
            authz_default,
            authz_namespace,
        } = self;
        Some(RequestsConfig {
            listen: match authz? {
                AuthzAddress::Tcp(addr) => RequestsListen::Tcp(Listen::Addr(addr)),
                AuthzAddress::Unix(path) => RequestsListen::Unix(path),
            },
            default: authz_default,
            workloads: authz_namespace.map_or(Workloads::All, Workloads::Namespace),
        })
    }

    /// The address that was given.
    pub fn address(&self) -> Option<&AuthzAddress> {
        self.authz.as_ref()
    }
}

fn parse_default(text: &str) -> Result<DefaultDecision, String> {
    match text.to_ascii_lowercase().as_str() {
        "deny" => Ok(DefaultDecision::Deny),
        "allow" => Ok(DefaultDecision::Allow),
        _ => Err("must be deny or allow".to_owned()),
    }
}

// === impl AuthzAddress ===

impl FromStr for AuthzAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err("the path after unix: must be absolute".to_owned()),
            };
        }
        let addr = text.parse().map(Self::Tcp);
        addr.map_err(|_| "must be ADDRESS:PORT, such as 127.0.0.1:9191, or unix:PATH".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_sockets() {
        let socket = AuthzAddress::Unix("/run/a".into());
        assert_eq!("unix:/run/a".parse(), Ok(socket));
        let port = AuthzAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9191)));
        assert_eq!("127.0.0.1:9191".parse(), Ok(port));
        for wrong in ["", "9191", "localhost:9191", "unix:", "unix:a"] {
            assert!(wrong.parse::<AuthzAddress>().is_err(), "{wrong}");
        }
    }
}
