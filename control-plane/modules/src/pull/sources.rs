//! What a server declares about the hosts that modules come from.

use std::collections::{BTreeMap, HashMap, HashSet};

use ::url::{Host, Url};

use super::auth::Auth;

/// Hosts with special treatment, by `host` (its default ports) or `host:port`. Being
/// named in `insecure` or `certificates` is also what lets a host have an address that
/// is not public.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Hosts whose certificate is not checked and that may speak plain HTTP.
    pub insecure: Vec<String>,
    /// Certificate authorities (PEM) trusted for a host, besides the system's.
    pub certificates: BTreeMap<String, Vec<u8>>,
    /// Logins of registries.
    pub auth: Auth,
}

/// Why declared sources can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the name of a host.
    #[error("the source {0:?} is not a host; write it as host or host:port")]
    Host(String),
    /// Not a certificate.
    #[error("the certificate of source {host:?} is not usable: {why}; give it as PEM")]
    Certificate {
        /// The source.
        host: String,
        /// What is wrong with it.
        why: String,
    },
    /// TLS can't be set up.
    #[error("failed to set up TLS: {0}")]
    Tls(String),
}

/// A host and port to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) host: Host,
    pub(super) port: u16,
}

/// Sources by the place they are for.
#[derive(Debug)]
pub(super) struct Declared<C> {
    insecure: HashSet<Place>,
    certificates: HashMap<Place, C>,
}

/// No port stands for the default ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    host: Host,
    port: Option<u16>,
}

// === impl Origin ===

impl Origin {
    /// Where a web address leads. `None` for one without a host.
    pub(super) fn of(url: &Url) -> Option<Self> {
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
    /// Reads the names; `trust` makes of a PEM bundle what is kept for the host.
    pub(super) fn read(
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

    pub(super) fn is_insecure(&self, origin: &Origin) -> bool {
        self.insecure.contains(&origin.place())
    }

    pub(super) fn certificates(&self, origin: &Origin) -> Option<&C> {
        self.certificates.get(&origin.place())
    }

    /// Whether somebody vouches for this host, whatever its address.
    pub(super) fn names(&self, origin: &Origin) -> bool {
        self.is_insecure(origin) || self.certificates(origin).is_some()
    }
}

fn place(name: &str) -> Result<Place, Error> {
    let bad = || Error::Host(name.to_owned());
    // Anything but a host and a port would be taken for another part of a URL.
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
    fn a_name_without_port_stands_for_the_default_ports() {
        check(&["Registry.Local"], "https://registry.local/p", true);
        check(&["registry.local"], "http://registry.local/p", true);
        check(&["registry.local"], "http://registry.local:5000/p", false);
        check(&["registry.local"], "http://other.local/p", false);
    }

    #[test]
    fn a_name_with_port_stands_for_that_port() {
        check(&["127.0.0.1:5000"], "http://127.0.0.1:5000/p", true);
        check(&["127.0.0.1:5000"], "http://127.0.0.1/p", false);
        check(&["[::1]:5000"], "http://[::1]:5000/p", true);
        check(&["host:443"], "https://host/p", true);
    }

    #[test]
    fn what_is_no_host_is_refused() {
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
