//! Hosts that modules are pulled from, as a PolicyServer declares them.

use std::collections::{BTreeMap, HashMap, HashSet};

use ::url::{Host, Url};

use crate::auth::Auth;

/// Hosts with special treatment, by `host` (its default ports) or `host:port`. A host that
/// is declared in `insecure` or `certificates` may also have an address that is not public.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sources {
    /// Hosts whose certificate is not checked and that may speak plain HTTP.
    pub insecure: Vec<String>,
    /// Certificate authorities (PEM) trusted for a host, besides the system's.
    pub certificates: BTreeMap<String, Vec<u8>>,
    /// Logins of registries.
    pub auth: Auth,
}

/// Why declared sources can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the name of a host.
    #[error("invalid source {0:?}: it must be host or host:port")]
    Host(String),
    /// Not a certificate.
    #[error("invalid certificate of the source {host:?}: {why}; it must be PEM")]
    Certificate {
        /// The source.
        host: String,
        /// The reason.
        why: String,
    },
    /// TLS can not be set up.
    #[error("failed to set up TLS: {0}")]
    Tls(String),
}

/// A host and port to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

/// Declared hosts.
#[derive(Debug)]
pub(crate) struct Declared<C> {
    insecure: HashSet<Place>,
    certificates: HashMap<Place, C>,
}

/// A declared host. Without a port it stands for the default ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    host: Host,
    port: Option<u16>,
}

// === impl Origin ===

impl Origin {
    /// The origin of a URL. `None` if it has no host.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        Some(Self {
            host: url.host()?.to_owned(),
            port: url.port_or_known_default()?,
        })
    }

    fn place(&self) -> Place {
        Place {
            host: self.host.clone(),
            port: (!matches!(self.port, 80 | 443)).then_some(self.port),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place().port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => write!(f, "{}", self.host),
        }
    }
}

// === impl Declared ===

impl<C> Declared<C> {
    /// Parses the names; `trust` converts the PEM bundle of a host.
    pub(crate) fn read(
        sources: &Sources,
        trust: impl Fn(&[u8]) -> Result<C, String>,
    ) -> Result<Self, Error> {
        let insecure = sources.insecure.iter().map(|name| place(name));
        let certificates = sources.certificates.iter().map(|(name, pem)| {
            let trusted = trust(pem).map_err(|why| Error::Certificate {
                host: name.clone(),
                why,
            })?;
            Ok((place(name)?, trusted))
        });
        Ok(Self {
            insecure: insecure.collect::<Result<_, _>>()?,
            certificates: certificates.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn is_insecure(&self, origin: &Origin) -> bool {
        self.insecure.contains(&origin.place())
    }

    pub(crate) fn certificates(&self, origin: &Origin) -> Option<&C> {
        self.certificates.get(&origin.place())
    }

    /// Whether the host may be connected to whatever its address is.
    pub(crate) fn declares(&self, origin: &Origin) -> bool {
        self.is_insecure(origin) || self.certificates(origin).is_some()
    }
}

fn place(name: &str) -> Result<Place, Error> {
    let bad = || Error::Host(name.to_owned());
    // The URL parser would take anything else for another part of a URL.
    if name.contains(['/', '@', '?', '#', '\\']) || name.trim() != name {
        return Err(bad());
    }
    let url = Url::parse(&format!("https://{name}")).map_err(|_| bad())?;
    Ok(Origin::of(&url).ok_or_else(bad)?.place())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn declared(names: &[&str]) -> Declared<()> {
        let sources = Sources {
            insecure: names.iter().map(|n| (*n).to_owned()).collect(),
            ..Sources::default()
        };
        Declared::read(&sources, |_| Ok(())).unwrap()
    }

    #[track_caller]
    fn check(names: &[&str], url: &str, expect: bool) {
        let origin = Origin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(declared(names).is_insecure(&origin), expect, "{url}");
    }

    #[test]
    fn name_without_port_matches_the_default_ports() {
        check(&["Registry.Local"], "https://registry.local/p", true);
        check(&["registry.local"], "http://registry.local/p", true);
        check(&["registry.local"], "http://registry.local:5000/p", false);
        check(&["registry.local"], "http://other.local/p", false);
    }

    #[test]
    fn name_with_port_matches_that_port() {
        check(&["127.0.0.1:5000"], "http://127.0.0.1:5000/p", true);
        check(&["127.0.0.1:5000"], "http://127.0.0.1/p", false);
        check(&["[::1]:5000"], "http://[::1]:5000/p", true);
        check(&["host:443"], "https://host/p", true);
    }

    #[test]
    fn invalid_host_is_rejected() {
        for name in [
            "",
            "http://host",
            "host/path",
            "user@host",
            "host:x",
            " host",
        ] {
            assert_eq!(place(name), Err(Error::Host(name.into())));
        }
    }
}
