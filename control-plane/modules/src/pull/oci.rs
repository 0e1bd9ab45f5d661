//! Modules from OCI registries.

mod challenge;
mod manifest;

use ::url::Url;
use assent_core::digest::Digest;
use bytes::Bytes;
use http::{StatusCode, header};
use oci_spec::distribution::Reference;

use self::{
    challenge::Challenge,
    manifest::{Content, Layer},
};
use super::{
    Error,
    auth::Login,
    http::{Answer, Http},
    url::shown,
};

/// What registries accept at most for a manifest.
const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Tokens are a few KiB.
const MAX_TOKEN_BYTES: usize = 1 << 20;

/// A module with the digest of the manifest that names it.
pub(super) struct Found {
    pub(super) module: Bytes,
    pub(super) manifest: Digest,
}

/// One conversation with one repository.
struct Session<'a> {
    http: &'a Http,
    reference: &'a Reference,
    base: Url,
    authorization: Option<String>,
}

#[derive(serde::Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: String,
}

pub(super) async fn pull(http: &Http, reference: &Reference, limit: usize) -> Result<Found, Error> {
    let secure = Session::new(http, reference, "https")?;
    let insecure = http.is_insecure(&secure.base);
    match secure.pull(limit).await {
        // Declared insecure, and not a server that speaks TLS.
        Err(Error::Network { .. }) if insecure => {
            Session::new(http, reference, "http")?.pull(limit).await
        }
        result => result,
    }
}

// === impl Session ===

impl<'a> Session<'a> {
    fn new(http: &'a Http, reference: &'a Reference, scheme: &str) -> Result<Self, Error> {
        let registry = reference.resolve_registry();
        let base = format!("{scheme}://{registry}/v2/{}/", reference.repository());
        let base = Url::parse(&base).map_err(|error| Error::Manifest {
            url: format!("registry://{reference}"),
            why: error.to_string(),
        })?;
        let authorization = match http
            .auth
            .login(reference.registry(), reference.repository())
        {
            Some(login @ Login::Bearer(_)) => Some(login.header()),
            // A password is only sent once the registry has said where to.
            _ => None,
        };
        Ok(Self {
            http,
            reference,
            base,
            authorization,
        })
    }

    async fn pull(mut self, limit: usize) -> Result<Found, Error> {
        let pin = self.reference.digest().map(|digest| {
            let parsed = digest.parse::<Digest>();
            parsed.expect("a reference must have been checked to hold a SHA-256 digest")
        });
        let tag = self.reference.tag().unwrap_or("latest").to_owned();
        let name = pin.map_or(tag, |digest| digest.to_string());
        let (manifest, digest) = self.manifest(&name, pin).await?;
        let layer = match self.read(&manifest)? {
            Content::Layer(layer) => layer,
            Content::Index(entry) => {
                let (inner, _) = self.manifest(&entry.to_string(), Some(entry)).await?;
                self.layer_of(&inner)?
            }
        };
        let module = self.blob(&layer, limit).await?;
        Ok(Found {
            module,
            manifest: digest,
        })
    }

    async fn manifest(
        &mut self,
        name: &str,
        expected: Option<Digest>,
    ) -> Result<(Bytes, Digest), Error> {
        let url = self.url(&format!("manifests/{name}"))?;
        let answer = self.get(&url, Some(manifest::ACCEPT)).await?;
        let body = answer.body(MAX_MANIFEST_BYTES).await?;
        let digest = verified(&url, &body, expected)?;
        Ok((body, digest))
    }

    async fn blob(&mut self, layer: &Layer, limit: usize) -> Result<Bytes, Error> {
        let url = self.url(&format!("blobs/{}", layer.digest))?;
        if layer.size > limit as u64 {
            return Err(Error::TooLarge {
                url: self.shown(),
                limit,
            });
        }
        let body = self.get(&url, None).await?.body(limit).await?;
        verified(&url, &body, Some(layer.digest))?;
        Ok(body)
    }

    /// Gets a path of the repository, logging in when the registry asks for it.
    async fn get(&mut self, url: &Url, accept: Option<&str>) -> Result<Answer, Error> {
        let authorization = self.authorization.as_deref();
        let answer = self.http.get(url, accept, authorization).await?;
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
                .ok_or_else(|| self.login_error("the registry wants a user name and password"))?
                .header(),
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
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let header = login.map(Login::header);
        let answer = self.http.get(&url, None, header.as_deref()).await?;
        let body = answer.success()?.body(MAX_TOKEN_BYTES).await?;
        let token: Token = serde_json::from_slice(&body)
            .map_err(|_| self.login_error("the token service gave no token"))?;
        Ok(format!("Bearer {}", token.token))
    }

    fn read(&self, manifest: &[u8]) -> Result<Content, Error> {
        manifest::read(manifest).map_err(|error| Error::Manifest {
            url: self.shown(),
            why: error.to_string(),
        })
    }

    fn layer_of(&self, manifest: &[u8]) -> Result<Layer, Error> {
        match self.read(manifest)? {
            Content::Layer(layer) => Ok(layer),
            Content::Index(_) => Err(Error::Manifest {
                url: self.shown(),
                why: "it is an index of indexes".to_owned(),
            }),
        }
    }

    fn url(&self, path: &str) -> Result<Url, Error> {
        // "sha256:…" alone would be taken for a URL with a scheme of that name.
        self.base
            .join(&format!("./{path}"))
            .map_err(|error| Error::Manifest {
                url: self.shown(),
                why: error.to_string(),
            })
    }

    fn shown(&self) -> String {
        format!("registry://{}", self.reference)
    }

    fn login_error(&self, why: &'static str) -> Error {
        Error::Login {
            url: self.shown(),
            why,
        }
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
