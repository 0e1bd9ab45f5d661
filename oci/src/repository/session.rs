//! Requests to one repository, with its login.

use std::sync::Arc;

use ::url::Url;
use assent_core::digest::Digest;
use bytes::Bytes;
use http::{Method, StatusCode, header};
use oci_spec::distribution::Reference;

use super::{challenge::Challenge, manifest};
use crate::{
    Error,
    auth::Login,
    module_url::redacted,
    transport::{Response, Transport},
};

/// The largest manifest that registries accept.
pub(super) const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Tokens are a few KiB.
const MAX_TOKEN_BYTES: usize = 1 << 20;

/// How much longer than declared a blob may be while it is read.
const MAX_EXCESS_BYTES: usize = 64 << 10;

/// The media type of the list of referrers.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A client of one repository that logs in when it is challenged.
pub(crate) struct Session {
    transport: Arc<Transport>,
    reference: Reference,
    base: Url,
    authorization: Option<String>,
    /// What a token is asked for: `pull` or `pull,push`.
    access: &'static str,
    /// Whether the registry has answered. From then on there is no fallback to plain HTTP.
    has_answered: bool,
}

/// Docker's own service returns the token by both names.
#[derive(serde::Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

// === impl Session ===

impl Session {
    pub(crate) fn new(transport: &Arc<Transport>, reference: &Reference) -> Result<Self, Error> {
        let registry = reference.resolve_registry();
        let base = format!("https://{registry}/v2/{}/", reference.repository());
        let base = Url::parse(&base).map_err(|error| Error::Manifest {
            url: format!("registry://{reference}"),
            why: error.to_string(),
        })?;
        let login = transport
            .auth
            .login(reference.registry(), reference.repository());
        let authorization = match login {
            Some(Login::Bearer(token)) => Some(format!("Bearer {token}")),
            // A password is sent only after the registry's challenge says where to.
            _ => None,
        };
        Ok(Self {
            transport: transport.clone(),
            reference: reference.clone(),
            base,
            authorization,
            access: "pull",
            has_answered: false,
        })
    }

    /// A session that may also push.
    pub(super) fn for_push(
        transport: &Arc<Transport>,
        reference: &Reference,
    ) -> Result<Self, Error> {
        Ok(Self {
            access: "pull,push",
            ..Self::new(transport, reference)?
        })
    }

    /// The manifest of the reference, by its digest or else by its tag.
    pub(crate) async fn resolve(&mut self) -> Result<(Bytes, Digest), Error> {
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
        let response = self.get(&path, Some(manifest::ACCEPT)).await?;
        let body = response.body(MAX_MANIFEST_BYTES).await?;
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

    /// The index of artifacts that refer to a digest, from the referrers API or else from
    /// the tag that replaces it.
    pub(super) async fn referrers(&mut self, digest: Digest) -> Result<Option<Bytes>, Error> {
        match self.get(&format!("referrers/{digest}"), Some(INDEX)).await {
            Ok(response) => response.body(MAX_MANIFEST_BYTES).await.map(Some),
            // Registries without that API answer with various errors.
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
                url: self.redacted(),
                limit,
            });
        }
        let path = format!("blobs/{digest}");
        // A little more than declared is read, so that changed content is reported as such.
        let limit = match size {
            0 => limit,
            size => limit.min(size as usize + MAX_EXCESS_BYTES),
        };
        let body = self.get(&path, None).await?.body(limit).await?;
        verified(&self.url(&path)?, &body, Some(digest))?;
        Ok(body)
    }

    /// For messages.
    pub(crate) fn redacted(&self) -> String {
        format!("registry://{}", self.reference)
    }

    pub(super) fn manifest_error(&self, why: impl ToString) -> Error {
        Error::Manifest {
            url: self.redacted(),
            why: why.to_string(),
        }
    }

    /// Gets a path of the repository.
    async fn get(&mut self, path: &str, accept: Option<&str>) -> Result<Response, Error> {
        let url = self.url(path)?;
        match self.get_at(&url, accept).await {
            // Declared insecure, and not a TLS server.
            Err(Error::Network { .. })
                if !self.has_answered && self.transport.is_insecure(&url) =>
            {
                let scheme = self.base.set_scheme("http");
                scheme.map_err(|()| self.manifest_error("the registry has an invalid address"))?;
                let url = self.url(path)?;
                self.get_at(&url, accept).await
            }
            result => result,
        }
    }

    /// Gets a path of the repository, whatever its status is.
    pub(super) async fn exists(&mut self, path: &str) -> Result<bool, Error> {
        match self.get(path, None).await {
            Ok(_) => Ok(true),
            Err(Error::Status { status: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a body to a path of the repository, or to a URL that the registry named.
    pub(super) async fn send(
        &mut self,
        method: Method,
        target: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response, Error> {
        let mut url = self.target(target)?;
        let mut sent = self.send_to(&method, &url, content_type, &body).await;
        // Declared insecure, and not a TLS server.
        let fall_back = !self.has_answered && self.transport.is_insecure(&url);
        if fall_back && matches!(sent, Err(Error::Network { .. })) {
            let scheme = self.base.set_scheme("http");
            scheme.map_err(|()| self.manifest_error("the registry has an invalid address"))?;
            url = self.target(target)?;
            sent = self.send_to(&method, &url, content_type, &body).await;
        }
        let response = sent?;
        self.has_answered = true;
        if response.status != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return response.success();
        }
        self.log_in(&response).await?;
        response.drain().await;
        let sent = self.send_to(&method, &url, content_type, &body).await;
        sent?.success()
    }

    async fn send_to(
        &self,
        method: &Method,
        url: &Url,
        content_type: &str,
        body: &Bytes,
    ) -> Result<Response, Error> {
        // A login is for the registry alone, also if that names another server for uploads.
        let own = url.origin() == self.base.origin();
        let authorization = self.authorization.as_deref().filter(|_| own);
        let upload = self.transport.upload(
            method.clone(),
            url,
            content_type,
            body.clone(),
            authorization,
        );
        upload.await
    }

    /// A path of the repository, or an absolute URL.
    fn target(&self, target: &str) -> Result<Url, Error> {
        match target.starts_with('/') || target.contains("://") {
            true => self
                .base
                .join(target)
                .map_err(|error| self.manifest_error(error)),
            false => self.url(target),
        }
    }

    async fn get_at(&mut self, url: &Url, accept: Option<&str>) -> Result<Response, Error> {
        let authorization = self.authorization.as_deref();
        let response = self.transport.get(url, accept, authorization).await?;
        self.has_answered = true;
        // The login is for the registry: a challenge of a server that the registry redirects
        // to could name a token service of its own, and collect the password there.
        let is_challenge =
            response.status == StatusCode::UNAUTHORIZED && response.is_from_origin_of(url);
        if !is_challenge || authorization.is_some() {
            return response.success();
        }
        self.log_in(&response).await?;
        response.drain().await;
        let authorization = self.authorization.as_deref();
        self.transport
            .get(url, accept, authorization)
            .await?
            .success()
    }

    async fn log_in(&mut self, response: &Response) -> Result<(), Error> {
        let registry = self.reference.registry();
        let login = self
            .transport
            .auth
            .login(registry, self.reference.repository());
        let challenges = response.headers.get_all(header::WWW_AUTHENTICATE).iter();
        let challenge = challenges
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .next()
            .ok_or_else(|| {
                self.login_error("the registry asks for an unsupported kind of login")
            })?;
        let header = match challenge {
            Challenge::Basic => login.and_then(Login::basic_header).ok_or_else(|| {
                self.login_error("the registry requires a user name and password")
            })?,
            Challenge::Bearer { realm, service } => {
                self.token(&realm, service.as_deref(), login).await?
            }
        };
        self.authorization = Some(header);
        Ok(())
    }

    /// Requests a token. The registry chooses the token service, which may be any server:
    /// the same rules apply to it.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        login: Option<&Login>,
    ) -> Result<String, Error> {
        let mut url = Url::parse(realm)
            .map_err(|_| self.login_error("the registry refers to an invalid token service"))?;
        let scope = format!("repository:{}:{}", self.reference.repository(), self.access);
        let mut fields = vec![("scope", scope.as_str())];
        fields.extend(service.map(|service| ("service", service)));
        let response = match login {
            Some(Login::Identity(token)) => {
                fields.extend([("grant_type", "refresh_token"), ("client_id", "assent")]);
                fields.push(("refresh_token", token.as_str()));
                self.transport.post_form(&url, &fields).await?
            }
            login => {
                url.query_pairs_mut().extend_pairs(fields);
                let header = login.and_then(Login::basic_header);
                self.transport.get(&url, None, header.as_deref()).await?
            }
        };
        let body = response.success()?.body(MAX_TOKEN_BYTES).await?;
        let token = serde_json::from_slice::<Token>(&body).ok();
        let token = token.and_then(Token::any);
        let token = token.ok_or_else(|| self.login_error("the token service returned no token"))?;
        Ok(format!("Bearer {token}"))
    }

    fn url(&self, path: &str) -> Result<Url, Error> {
        // "sha256:…" alone would be parsed as a URL with that scheme.
        self.base
            .join(&format!("./{path}"))
            .map_err(|error| self.manifest_error(error))
    }

    fn login_error(&self, why: &'static str) -> Error {
        Error::Login {
            url: self.redacted(),
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
            url: redacted(url),
            expected,
            actual,
        }),
        _ => Ok(actual),
    }
}
