//! URLs of modules, as users write them.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use ::url::Url;
use assent_core::digest::Digest;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use oci_spec::distribution::Reference;

/// Where a module comes from: `registry://`, `https://`, `http://`, `file://`, `configmap://`
/// or `inline:`; without a scheme, a registry.
///
/// A reference of a registry is pinned by the digest of the manifest
/// (`registry://host/repository@sha256:…`), any other URL by the digest of the module in
/// the fragment (`https://host/policy.wasm#sha256:…`). If the URL names a text, the digest is that
/// of the text, and the module is built from it. `inline:<file>;base64,<text>` is the text itself.
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
    #[error(
        "the scheme {0:?} is not supported; use registry://, https://, http://, configmap:// or file://"
    )]
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
    /// It does not name a key of a ConfigMap.
    #[error(
        "configmap:// needs a namespace, a name and a key: configmap://namespace/name/policy.rego"
    )]
    ConfigMap,
    /// It is not a text in base64.
    #[error("inline: needs a file name and a text: inline:policy.rego;base64,…")]
    Inline,
}

/// A key of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigMapKey {
    /// The namespace.
    pub namespace: String,
    /// The ConfigMap.
    pub name: String,
    /// The key, which ends like the name of a file.
    pub key: String,
}

/// Ends of the names of texts. The crate that builds them knows the same.
const TEXTS: [&str; 4] = [".rego", ".cel.yaml", ".cel.yml", ".cel.json"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Registry(Reference),
    Web(Url),
    File(PathBuf),
    ConfigMap(ConfigMapKey),
    /// A file's name and its content.
    Inline(String, Bytes),
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

    /// The text of a policy that has it in its own manifest.
    pub fn inline(file: &str, text: &str) -> Self {
        Self {
            location: Location::Inline(file.to_owned(), text.to_owned().into()),
            pin: None,
        }
    }

    /// The text itself, if the URL is one: the name of a file, and its content.
    pub fn inline_text(&self) -> Option<(&str, &Bytes)> {
        match &self.location {
            Location::Inline(name, text) => Some((name, text)),
            _ => None,
        }
    }

    /// The key of a ConfigMap, if the URL names one.
    pub fn config_map(&self) -> Option<&ConfigMapKey> {
        match &self.location {
            Location::ConfigMap(key) => Some(key),
            _ => None,
        }
    }

    /// The name of the text that the URL refers to; none if it refers to a module.
    pub fn text_name(&self) -> Option<&str> {
        let name = match &self.location {
            Location::Registry(_) => return None,
            Location::Web(url) => url.path().rsplit('/').next()?,
            Location::File(path) => path.file_name()?.to_str()?,
            Location::ConfigMap(key) => &key.key,
            Location::Inline(name, _) => name,
        };
        TEXTS.iter().any(|end| name.ends_with(end)).then_some(name)
    }

    /// Checks what was read against the digest in the URL, and returns the pinned URL.
    pub fn pin_text(&self, text: &[u8]) -> Result<Self, crate::Error> {
        let digest = Digest::of(text);
        match self.pin {
            Some(expected) if expected != digest => Err(crate::Error::Digest {
                url: self.redacted(),
                expected,
                actual: digest,
            }),
            _ => Ok(self.pinned(digest)),
        }
    }

    /// Whether it always refers to the same bytes.
    pub fn is_pinned(&self) -> bool {
        match &self.location {
            Location::Inline(..) => true,
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
            // The text is in it: nothing could change.
            Location::Inline(..) => self.clone(),
            location => Self {
                location: location.clone(),
                pin: Some(digest),
            },
        }
    }

    /// For messages: without the query, which may contain a signature, and without a whole text.
    pub fn redacted(&self) -> String {
        match &self.location {
            Location::Web(url) => redacted(url),
            Location::Inline(name, text) => format!("inline:{name}#{}", Digest::of(text)),
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
        if let Some(rest) = text.strip_prefix("inline:") {
            return inline(rest);
        }
        match text.split_once("://") {
            None => registry(text),
            Some(("registry", reference)) => registry(reference),
            Some(("https" | "http", _)) => web(text),
            Some(("file", path)) => file(path),
            Some(("configmap", path)) => config_map(path),
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
            Location::ConfigMap(ConfigMapKey {
                namespace,
                name,
                key,
            }) => write!(f, "configmap://{namespace}/{name}/{key}")?,
            Location::Inline(name, text) => {
                write!(f, "inline:{name};base64,{}", BASE64_STANDARD.encode(text))?;
            }
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

fn inline(text: &str) -> Result<ModuleUrl, Error> {
    let (name, encoded) = text.split_once(";base64,").ok_or(Error::Inline)?;
    let text = BASE64_STANDARD.decode(encoded).map_err(|_| Error::Inline)?;
    Ok(ModuleUrl {
        location: Location::Inline(name.to_owned(), text.into()),
        pin: None,
    })
}

fn config_map(text: &str) -> Result<ModuleUrl, Error> {
    let (path, pin) = split_pin(text)?;
    let [namespace, name, key] = path.split('/').collect::<Vec<_>>()[..] else {
        return Err(Error::ConfigMap);
    };
    if [namespace, name, key].contains(&"") {
        return Err(Error::ConfigMap);
    }
    Ok(ModuleUrl {
        location: Location::ConfigMap(ConfigMapKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        }),
        pin,
    })
}

fn split_pin(text: &str) -> Result<(&str, Option<Digest>), Error> {
    Ok(match text.rsplit_once("#sha256:") {
        Some((path, hex)) => {
            let digest = format!("sha256:{hex}").parse();
            (path, Some(digest.map_err(|_| Error::Pin)?))
        }
        None => (text, None),
    })
}

/// The path is taken as it is written: `%20` and `#` are ordinary in file names.
fn file(text: &str) -> Result<ModuleUrl, Error> {
    let (path, pin) = split_pin(text)?;
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
    fn texts_are_recognised_by_their_names() {
        let name = |text: &str| {
            let url: ModuleUrl = text.parse().unwrap();
            url.text_name().map(str::to_owned)
        };
        assert_eq!(name("file://../a/p.rego").as_deref(), Some("p.rego"));
        assert_eq!(
            name("https://h/p.cel.yaml?x").as_deref(),
            Some("p.cel.yaml")
        );
        assert_eq!(name("configmap://n/c/p.rego").as_deref(), Some("p.rego"));
        assert_eq!(name("inline:p.rego;base64,cA==").as_deref(), Some("p.rego"));
        for module in [
            "file://p.wasm",
            "ghcr.io/org/p.rego:v1",
            "configmap://n/c/p.wasm",
        ] {
            assert_eq!(name(module), None, "{module}");
        }
        let url = ModuleUrl::inline("p.rego", "package p");
        check(&url.to_string(), "inline:p.rego;base64,cGFja2FnZSBw");
        assert!(url.is_pinned() && url.redacted().starts_with("inline:p.rego#sha256:"));
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
        assert_eq!(parse("configmap://n/c"), Error::ConfigMap);
        assert_eq!(parse("configmap://n//k"), Error::ConfigMap);
        assert_eq!(parse("inline:p.rego"), Error::Inline);
        let sha512 = format!("a/b@sha512:{HEX}{HEX}");
        assert_eq!(parse(&sha512), Error::Digest);
    }

    #[test]
    fn messages_do_not_contain_a_signature() {
        let url: ModuleUrl = "https://h/p.wasm?sig=secret".parse().unwrap();
        assert_eq!(url.redacted(), "https://h/p.wasm");
    }
}
