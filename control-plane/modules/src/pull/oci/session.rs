//! One conversation with one repository.

use ::url::Url;
use assent_core::digest::Digest;
use bytes::Bytes;
use http::{StatusCode, header};
use oci_spec::distribution::Reference;

use super::{challenge::Challenge, manifest};
use crate::pull::{
    Error,
    auth::Login,
    http::{Answer, Http},
    url::shown,
};

/// What registries accept at most for a manifest.
pub(super) const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Tokens are a few KiB.
const MAX_TOKEN_BYTES: usize = 1 << 20;

/// The answer to the question who refers to a digest.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Speaks to a repository, logging in when it is asked to.
pub(in crate::pull) struct Session<'a> {
    http: &'a Http,
    reference: &'a Reference,
    base: Url,
    authorization: Option<String>,
    /// Whether the registry has answered: there is no way back to plain HTTP then.
    answered: bool,
}

/// Docker's own service gives the token under both names.
#[derive(serde::Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

// === impl Session ===

impl<'a> Session<'a> {
    pub(in crate::pull) fn new(http: &'a Http, reference: &'a Reference) -> Result<Self, Error> {
        let registry = reference.resolve_registry();
        let base = format!("https://{registry}/v2/{}/", reference.repository());
        let base = Url::parse(&base).map_err(|error| Error::Manifest {
            url: format!("registry://{reference}"),
            why: error.to_string(),
        })?;
        let login = http
            .auth
            .login(reference.registry(), reference.repository());
        let authorization = match login {
            Some(Login::Bearer(token)) => Some(format!("Bearer {token}")),
            // A password is only sent once the registry has said where to.
            _ => None,
        };
        Ok(Self {
            http,
            reference,
            base,
            authorization,
            answered: false,
        })
    }

    /// The manifest that the reference names, by its digest or else by its tag.
    pub(in crate::pull) async fn resolve(&mut self) -> Result<(Bytes, Digest), Error> {
        let pin = self.reference.digest().map(|digest| {
            let parsed = digest.parse::<Digest>();
            parsed.expect("a reference must have been checked to hold a SHA-256 digest")
        });
        let tag = self.reference.tag().unwrap_or("latest").to_owned();
        let name = pin.map_or(tag, |digest| digest.to_string());
        self.manifest(&name, pin).await
    }

    pub(super) async fn manifest(
        &mut self,
        name: &str,
        expected: Option<Digest>,
    ) -> Result<(Bytes, Digest), Error> {
        let path = format!("manifests/{name}");
        let answer = self.get(&path, Some(manifest::ACCEPT)).await?;
        let body = answer.body(MAX_MANIFEST_BYTES).await?;
        let digest = verified(&self.url(&path)?, &body, expected)?;
        Ok((body, digest))
    }

    /// The manifest under a tag, if there is one.
    pub(super) async fn find_manifest(&mut self, tag: &str) -> Result<Option<Bytes>, Error> {
        match self.manifest(tag, None).await {
            Ok((body, _)) => Ok(Some(body)),
            Err(Error::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The index of what refers to a digest, by the registry's own list or else by the
    /// tag that stands in for it.
    pub(super) async fn referrers(&mut self, digest: Digest) -> Result<Option<Bytes>, Error> {
        match self.get(&format!("referrers/{digest}"), Some(INDEX)).await {
            Ok(answer) => answer.body(MAX_MANIFEST_BYTES).await.map(Some),
            // Registries that do not know the question say so in many ways.
            Err(error @ Error::Status { .. }) if !error.is_retryable() => {
                self.find_manifest(&format!("sha256-{}", digest.hex()))
                    .await
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn blob(
        &mut self,
        digest: Digest,
        size: u64,
        limit: usize,
    ) -> Result<Bytes, Error> {
        if size > limit as u64 {
            return Err(Error::TooLarge {
                url: self.shown(),
                limit,
            });
        }
        let path = format!("blobs/{digest}");
        let body = self.get(&path, None).await?.body(limit).await?;
        verified(&self.url(&path)?, &body, Some(digest))?;
        Ok(body)
    }

    /// For messages.
    pub(in crate::pull) fn shown(&self) -> String {
        format!("registry://{}", self.reference)
    }

    pub(super) fn manifest_error(&self, why: impl ToString) -> Error {
        Error::Manifest {
            url: self.shown(),
            why: why.to_string(),
        }
    }

    /// Gets a path of the repository.
    async fn get(&mut self, path: &str, accept: Option<&str>) -> Result<Answer, Error> {
        let url = self.url(path)?;
        match self.get_at(&url, accept).await {
            // Declared insecure, and not a server that speaks TLS.
            Err(Error::Network { .. }) if !self.answered && self.http.is_insecure(&url) => {
                let scheme = self.base.set_scheme("http");
                scheme.map_err(|()| self.manifest_error("the registry has no usable address"))?;
                let url = self.url(path)?;
                self.get_at(&url, accept).await
            }
            result => result,
        }
    }

    async fn get_at(&mut self, url: &Url, accept: Option<&str>) -> Result<Answer, Error> {
        let authorization = self.authorization.as_deref();
        let answer = self.http.get(url, accept, authorization).await?;
        self.answered = true;
        if answer.status != StatusCode::UNAUTHORIZED || authorization.is_some() {
            return answer.success();
        }
        self.log_in(&answer).await?;
        let authorization = self.authorization.as_deref();
        self.http.get(url, accept, authorization).await?.success()
    }

    async fn log_in(&mut self, answer: &Answer) -> Result<(), Error> {
        let registry = self.reference.registry();
        let login = self.http.auth.login(registry, self.reference.repository());
        let asked = answer.headers.get_all(header::WWW_AUTHENTICATE).iter();
        let challenge = asked
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .next()
            .ok_or_else(|| self.login_error("the registry asks for a login of an unknown kind"))?;
        let header = match challenge {
            Challenge::Basic => login
                .and_then(Login::basic_header)
                .ok_or_else(|| self.login_error("the registry wants a user name and password"))?,
            Challenge::Bearer { realm, service } => {
                self.token(&realm, service.as_deref(), login).await?
            }
        };
        self.authorization = Some(header);
        Ok(())
    }

    /// The token service is another server that the registry names: it is reached under
    /// the same rules.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        login: Option<&Login>,
    ) -> Result<String, Error> {
        let mut url = Url::parse(realm)
            .map_err(|_| self.login_error("the registry names no usable token service"))?;
        let scope = format!("repository:{}:pull", self.reference.repository());
        let mut asked = vec![("scope", scope.as_str())];
        asked.extend(service.map(|service| ("service", service)));
        let answer = match login {
            Some(Login::Identity(token)) => {
                asked.extend([("grant_type", "refresh_token"), ("client_id", "assent")]);
                asked.push(("refresh_token", token.as_str()));
                self.http.post_form(&url, &asked).await?
            }
            login => {
                url.query_pairs_mut().extend_pairs(asked);
                let header = login.and_then(Login::basic_header);
                self.http.get(&url, None, header.as_deref()).await?
            }
        };
        let body = answer.success()?.body(MAX_TOKEN_BYTES).await?;
        let token = serde_json::from_slice::<Token>(&body).ok();
        let token = token.and_then(Token::any);
        let token = token.ok_or_else(|| self.login_error("the token service gave no token"))?;
        Ok(format!("Bearer {token}"))
    }

    fn url(&self, path: &str) -> Result<Url, Error> {
        // "sha256:…" alone would be taken for a URL with a scheme of that name.
        self.base
            .join(&format!("./{path}"))
            .map_err(|error| self.manifest_error(error))
    }

    fn login_error(&self, why: &'static str) -> Error {
        Error::Login {
            url: self.shown(),
            why,
        }
    }
}

// === impl Token ===

impl Token {
    fn any(self) -> Option<String> {
        [self.token, self.access_token]
            .into_iter()
            .find(|token| !token.is_empty())
    }
}

fn verified(url: &Url, bytes: &[u8], expected: Option<Digest>) -> Result<Digest, Error> {
    let actual = Digest::of(bytes);
    match expected {
        Some(expected) if expected != actual => Err(Error::Digest {
            url: shown(url),
            expected,
            actual,
        }),
        _ => Ok(actual),
    }
}
