//! URLs of modules, as users write them.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use ::url::Url;
use assent_core::digest::Digest;
use oci_spec::distribution::Reference;

/// Where a module comes from: `registry://`, `https://`, `http://` or `file://`;
/// without a scheme, a registry.
///
/// A reference of a registry is pinned by the digest of the manifest
/// (`registry://host/repository@sha256:…`), any other URL by the digest of the module in
/// the fragment (`https://host/policy.wasm#sha256:…`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleUrl {
    location: Location,
    /// The module's own digest; the pin of a registry is in the reference.
    pin: Option<Digest>,
}

/// Why a URL is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is empty.
    #[error("the module's URL is empty; write one like registry://ghcr.io/org/policy:v1.0.0")]
    Empty,
    /// The scheme is unknown.
    #[error("the scheme {0:?} is not supported; use registry://, https://, http:// or file://")]
    Scheme(String),
    /// It is not a reference of a registry.
    #[error("invalid registry reference: {0}; write one like registry://ghcr.io/org/policy:v1.0.0")]
    Reference(String),
    /// It is not a web URL.
    #[error("invalid URL: {0}; write one like https://host/policy.wasm")]
    Web(String),
    /// It contains a password, where everybody can read it.
    #[error("a URL must not contain a user name or password; use a pull secret")]
    Credentials,
    /// The pin is not a digest.
    #[error("the part after # must be sha256:<64 lower-case hex digits>")]
    Pin,
    /// The pin uses another hash function.
    #[error("the digest must be sha256:<64 lower-case hex digits>")]
    Digest,
    /// The path is missing.
    #[error("file:// needs a path, absolute (file:///dir/policy.wasm) or relative")]
    Path,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Registry(Reference),
    Web(Url),
    File(PathBuf),
}

// === impl ModuleUrl ===

impl ModuleUrl {
    /// Whether it is a file of this machine.
    pub fn is_file(&self) -> bool {
        matches!(self.location, Location::File(_))
    }

    /// The path of a `file://` URL as it was written.
    pub fn file_path(&self) -> Option<&Path> {
        match &self.location {
            Location::File(path) => Some(path),
            _ => None,
        }
    }

    /// Whether it always refers to the same bytes.
    pub fn is_pinned(&self) -> bool {
        match &self.location {
            Location::Registry(reference) => reference.digest().is_some(),
            _ => self.pin.is_some(),
        }
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn into_location(self) -> Location {
        self.location
    }

    pub(crate) fn module_digest(&self) -> Option<Digest> {
        self.pin
    }

    /// The same URL, pinned: that of a registry by the manifest's digest.
    pub(crate) fn pinned(&self, digest: Digest) -> Self {
        match &self.location {
            Location::Registry(reference) => Self {
                location: Location::Registry(reference.clone_with_digest(digest.to_string())),
                pin: None,
            },
            location => Self {
                location: location.clone(),
                pin: Some(digest),
            },
        }
    }

    /// For messages: without the query, which may contain a signature.
    pub(crate) fn redacted(&self) -> String {
        match &self.location {
            Location::Web(url) => redacted(url),
            _ => self.to_string(),
        }
    }
}

impl FromStr for ModuleUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Err(Error::Empty);
        }
        match text.split_once("://") {
            None => registry(text),
            Some(("registry", reference)) => registry(reference),
            Some(("https" | "http", _)) => web(text),
            Some(("file", path)) => file(path),
            Some((scheme, _)) => Err(Error::Scheme(scheme.to_owned())),
        }
    }
}

impl fmt::Display for ModuleUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Location::Registry(reference) => write!(f, "registry://{reference}")?,
            Location::Web(url) => write!(f, "{url}")?,
            Location::File(path) => write!(f, "file://{}", path.display())?,
        }
        match self.pin {
            Some(digest) => write!(f, "#{digest}"),
            None => Ok(()),
        }
    }
}

/// A URL for messages: without its query, which may contain a signature.
pub(crate) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

fn registry(text: &str) -> Result<ModuleUrl, Error> {
    if text
        .split('/')
        .next()
        .is_some_and(|host| host.contains('@'))
        && text.contains('/')
    {
        return Err(Error::Credentials);
    }
    let reference =
        Reference::from_str(text).map_err(|error| Error::Reference(error.to_string()))?;
    if let Some(digest) = reference.digest() {
        digest.parse::<Digest>().map_err(|_| Error::Digest)?;
    }
    Ok(ModuleUrl {
        location: Location::Registry(reference),
        pin: None,
    })
}

fn web(text: &str) -> Result<ModuleUrl, Error> {
    let mut url = Url::parse(text).map_err(|error| Error::Web(error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::Credentials);
    }
    let pin = url.fragment().map(str::parse).transpose();
    let pin = pin.map_err(|_| Error::Pin)?;
    url.set_fragment(None);
    Ok(ModuleUrl {
        location: Location::Web(url),
        pin,
    })
}

/// The path is taken as it is written: `%20` and `#` are ordinary in file names.
fn file(text: &str) -> Result<ModuleUrl, Error> {
    let (path, pin) = match text.rsplit_once("#sha256:") {
        Some((path, hex)) => {
            let digest = format!("sha256:{hex}").parse();
            (path, Some(digest.map_err(|_| Error::Pin)?))
        }
        None => (text, None),
    };
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        return Err(Error::Path);
    }
    Ok(ModuleUrl {
        location: Location::File(PathBuf::from(path)),
        pin,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let url: ModuleUrl = text.parse().unwrap();
        assert_eq!(url.to_string(), expect);
        assert_eq!(expect.parse::<ModuleUrl>().unwrap(), url);
    }

    #[test]
    fn urls_are_normalised() {
        check("ghcr.io/org/policy:v1", "registry://ghcr.io/org/policy:v1");
        check("registry://ghcr.io/a/b", "registry://ghcr.io/a/b:latest");
        check("localhost:5000/p:1", "registry://localhost:5000/p:1");
        check("policy:v1", "registry://docker.io/library/policy:v1");
        let pinned = format!("registry://ghcr.io/a/b@sha256:{HEX}");
        check(&pinned, &pinned);
        check(
            "HTTPS://Host/p.wasm?x=1".to_lowercase().as_str(),
            "https://host/p.wasm?x=1",
        );
        check("http://[::1]:80/p", "http://[::1]/p");
        check("file:///a b/p#1%20.wasm", "file:///a b/p#1%20.wasm");
        check("file://../p.wasm", "file://../p.wasm");
        let pinned = format!("file://p.wasm#sha256:{HEX}");
        check(&pinned, &pinned);
    }

    #[test]
    fn pinned_urls_are_recognised() {
        for pinned in ["a/b@sha256:", "https://h/p#sha256:", "file:///p#sha256:"] {
            let url: ModuleUrl = format!("{pinned}{HEX}").parse().unwrap();
            assert!(url.is_pinned(), "{url}");
        }
        for loose in ["a/b:v1", "https://h/p", "file:///p"] {
            let url: ModuleUrl = loose.parse().unwrap();
            assert!(!url.is_pinned(), "{url}");
            assert!(url.pinned(Digest::of(b"")).is_pinned(), "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected() {
        let parse = |text: &str| text.parse::<ModuleUrl>().unwrap_err();
        assert_eq!(parse(""), Error::Empty);
        assert_eq!(parse("  "), Error::Empty);
        assert_eq!(parse("ftp://h/p"), Error::Scheme("ftp".into()));
        assert!(matches!(parse("registry://"), Error::Reference(_)));
        assert!(matches!(
            parse("registry://UPPER/Case"),
            Error::Reference(_)
        ));
        assert!(matches!(parse("registry://h/../../p"), Error::Reference(_)));
        assert!(matches!(parse("https://"), Error::Web(_)));
        assert_eq!(parse("https://user:secret@h/p"), Error::Credentials);
        assert_eq!(parse("registry://user:secret@h/p"), Error::Credentials);
        assert_eq!(parse("https://h/p#latest"), Error::Pin);
        assert_eq!(parse("file:///p#sha256:00"), Error::Pin);
        assert_eq!(parse("file://"), Error::Path);
        assert_eq!(parse("file:///dir/"), Error::Path);
        let sha512 = format!("a/b@sha512:{HEX}{HEX}");
        assert_eq!(parse(&sha512), Error::Digest);
    }

    #[test]
    fn messages_do_not_contain_a_signature() {
        let url: ModuleUrl = "https://h/p.wasm?sig=secret".parse().unwrap();
        assert_eq!(url.redacted(), "https://h/p.wasm");
    }
}
