//! Logins for registries, as pull secrets hold them.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

/// Logins by registry, read from the docker configuration of pull secrets.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    /// By `host[:port][/path]`, lower case.
    logins: BTreeMap<String, Login>,
}

/// Why a pull secret can not be used. Never contains a part of the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The JSON is not a docker configuration.
    #[error(
        "invalid pull secret: it is not a docker configuration; create it with `kubectl create secret docker-registry`"
    )]
    Json,
    /// One login is invalid.
    #[error(
        "invalid pull secret: the entry for {0:?} has no valid user name and password; create it with `kubectl create secret docker-registry`"
    )]
    Entry(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Login {
    Basic {
        user: String,
        password: String,
    },
    Bearer(String),
    /// Is exchanged for tokens at the registry's token service.
    Identity(String),
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    registrytoken: String,
    identitytoken: String,
}

// === impl Auth ===

impl Auth {
    /// Reads a docker configuration: `.dockerconfigjson` of a secret, or the content of
    /// a `config.json`.
    pub fn from_docker_config(json: &[u8]) -> Result<Self, Error> {
        // serde's message would contain a part of the secret.
        let config: DockerConfig = serde_json::from_slice(json).map_err(|_| Error::Json)?;
        Self::from_entries(config.auths)
    }

    /// Reads the older format, `.dockercfg` of a secret, which has no `auths`.
    pub fn from_dockercfg(json: &[u8]) -> Result<Self, Error> {
        let entries = serde_json::from_slice(json).map_err(|_| Error::Json)?;
        Self::from_entries(entries)
    }

    /// Adds the logins of another secret, which take precedence.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.logins.extend(other.logins);
        self
    }

    fn from_entries(entries: BTreeMap<String, Entry>) -> Result<Self, Error> {
        let mut auth = Self::default();
        for (registry, entry) in entries {
            let login = entry
                .login()
                .ok_or_else(|| Error::Entry(registry.clone()))?;
            auth.logins
                .extend(login.map(|login| (key(&registry), login)));
        }
        Ok(auth)
    }

    /// Adds one login.
    #[must_use]
    pub fn with_basic(mut self, registry: &str, user: &str, password: &str) -> Self {
        let login = Login::Basic {
            user: user.to_owned(),
            password: password.to_owned(),
        };
        self.logins.insert(key(registry), login);
        self
    }

    /// The login for a repository: that of its longest prefix.
    pub(crate) fn login(&self, registry: &str, repository: &str) -> Option<&Login> {
        let mut path = format!("{}/{repository}", key(registry));
        loop {
            if let Some(login) = self.logins.get(&path) {
                return Some(login);
            }
            path.truncate(path.rfind('/')?);
        }
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.logins.keys()).finish()
    }
}

// === impl Entry ===

impl Entry {
    /// `None`: invalid. `Some(None)`: empty, as written by tools that keep the password in
    /// a credential helper.
    fn login(self) -> Option<Option<Login>> {
        if !self.registrytoken.is_empty() {
            return Some(Some(Login::Bearer(self.registrytoken)));
        }
        // The user name beside it has no meaning.
        if !self.identitytoken.is_empty() {
            return Some(Some(Login::Identity(self.identitytoken)));
        }
        if !self.auth.is_empty() {
            let decoded = STANDARD.decode(self.auth.trim()).ok()?;
            let text = String::from_utf8(decoded).ok()?;
            let (user, password) = text.trim_end_matches('\0').split_once(':')?;
            return Some(Some(Login::basic(user, password)));
        }
        if self.username.is_empty() && self.password.is_empty() {
            return Some(None);
        }
        Some(Some(Login::basic(&self.username, &self.password)))
    }
}

// === impl Login ===

impl Login {
    fn basic(user: &str, password: &str) -> Self {
        Self::Basic {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    /// User name and password as the value of an `Authorization` header.
    pub(crate) fn basic_header(&self) -> Option<String> {
        match self {
            Self::Basic { user, password } => Some(format!(
                "Basic {}",
                STANDARD.encode(format!("{user}:{password}"))
            )),
            Self::Bearer(_) | Self::Identity(_) => None,
        }
    }
}

/// Docker writes its own registry by several names, and as a URL.
fn key(registry: &str) -> String {
    let name = registry.to_lowercase();
    let name = name.strip_prefix("https://").unwrap_or(&name);
    let name = name.strip_prefix("http://").unwrap_or(name);
    let name = name.trim_end_matches('/');
    let name = name.strip_suffix("/v1").unwrap_or(name);
    let name = name.strip_suffix("/v2").unwrap_or(name);
    match name {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(json: &str) -> Result<Auth, Error> {
        Auth::from_docker_config(json.as_bytes())
    }

    #[track_caller]
    fn check(auth: &Auth, registry: &str, repository: &str, expect: Option<&str>) {
        let user = match auth.login(registry, repository) {
            Some(Login::Basic { user, .. }) => Some(user.as_str()),
            Some(Login::Bearer(token) | Login::Identity(token)) => Some(token.as_str()),
            None => None,
        };
        assert_eq!(user, expect, "{registry}/{repository}");
    }

    #[test]
    fn logins_are_found_by_registry_and_path() {
        let auth = read(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="},
                "ghcr.io": {"username": "all", "password": "secret"},
                "ghcr.io/org": {"username": "org", "password": "secret"},
                "localhost:5000": {"registrytoken": "token"},
                "azurecr.io": {"auth": "MDAwMDo=", "identitytoken": "identity"},
                "helper.io": {}
            }, "credsStore": "x"}"#,
        )
        .unwrap();
        check(&auth, "docker.io", "library/p", Some("hub"));
        check(&auth, "ghcr.io", "other/p", Some("all"));
        check(&auth, "ghcr.io", "org/sub/p", Some("org"));
        check(&auth, "ghcr.io", "organisation/p", Some("all"));
        check(&auth, "localhost:5000", "p", Some("token"));
        check(&auth, "localhost", "p", None);
        check(&auth, "azurecr.io", "p", Some("identity"));
        check(&auth, "helper.io", "p", None);
        check(&auth, "evil.io", "ghcr.io/p", None);
    }

    #[test]
    fn older_format_is_read() {
        let json = br#"{"https://r.io/v1/": {"username": "old", "password": "x", "email": "e"}}"#;
        let auth = Auth::from_dockercfg(json).unwrap();
        check(&auth, "r.io", "p", Some("old"));
        assert_eq!(Auth::from_dockercfg(b"[]").unwrap_err(), Error::Json);
        let broken = Auth::from_dockercfg(br#"{"r.io": {"auth": "!"}}"#).unwrap_err();
        assert_eq!(broken, Error::Entry("r.io".to_owned()));
        let newer = Auth::default().with_basic("r.io", "new", "x");
        check(&auth.with(newer), "r.io", "p", Some("new"));
    }

    #[test]
    fn header_contains_user_and_password() {
        let auth = Auth::default().with_basic("r.io", "hub", "secret");
        let header = auth.login("r.io", "p").unwrap().basic_header();
        assert_eq!(header.as_deref(), Some("Basic aHViOnNlY3JldA=="));
    }

    #[test]
    fn secrets_are_not_in_messages() {
        let auth = Auth::default().with_basic("r.io", "user", "secret");
        assert_eq!(format!("{auth:?}"), r#"{"r.io"}"#);
        for bad in [
            r#"{"auths": {"r.io": {"auth": "c2VjcmV0"}}}"#,
            r#"{"auths": {"r.io": {"auth": "secret!"}}}"#,
            r#"{"auths": "secret"}"#,
            "secret",
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(
                !error.contains("secret!") && !error.contains("c2Vj"),
                "{error}"
            );
            assert!(!error.contains("\"secret\""), "{error}");
        }
    }
}
