//! Tokens from a file.

use std::{
    collections::HashMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use assent_core::{Digest, policy::is_dns_subdomain};

use super::{Access, Authenticator, Error as AuthError, Principal};

#[cfg(test)]
mod tests;

/// How often the file is checked: a changed token works within this time.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Tokens from a file: one per line, `token` or `token,replica-id`. The latter is valid for that
/// replica only. Empty lines and lines that start with `#` are skipped. The file is read again when
/// it changes; if the new content is not valid, the old one stays in use.
#[derive(Debug)]
pub struct StaticTokens {
    path: PathBuf,
    /// Tokens are looked up by their digests, so that the time does not depend on the token.
    tokens: ArcSwap<HashMap<Digest, Option<Arc<str>>>>,
    seen: Mutex<Seen>,
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("failed to read token file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has no token in it.
    #[error("token file {0} has no token: write one per line")]
    Empty(PathBuf),
    /// The second part of a line is not a replica name.
    #[error("token file {path}, line {line}: what follows the comma must be a replica's name")]
    Replica {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
}

#[derive(Debug)]
struct Seen {
    modified: Option<SystemTime>,
    checked: Instant,
}

// === impl StaticTokens ===

impl StaticTokens {
    /// Reads the file; warns if others than its owner may read it.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        warn_if_readable(&path);
        let modified = modified(&path);
        let tokens = read(&path)?;
        Ok(Self {
            path,
            tokens: ArcSwap::from_pointee(tokens),
            seen: Mutex::new(Seen {
                modified,
                checked: Instant::now(),
            }),
        })
    }

    fn refresh(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.checked.elapsed() < RELOAD_INTERVAL {
            return;
        }
        seen.checked = Instant::now();
        let modified = modified(&self.path);
        if modified == seen.modified {
            return;
        }
        match read(&self.path) {
            Ok(tokens) => {
                seen.modified = modified;
                self.tokens.store(Arc::new(tokens));
                tracing::info!(path = %self.path.display(), "token file reloaded");
            }
            Err(error) => tracing::warn!(%error, "keeping the tokens read before"),
        }
    }

    fn find(&self, token: Option<&str>) -> Result<Principal, AuthError> {
        let token = token.filter(|t| !t.is_empty()).ok_or(AuthError::Missing)?;
        let tokens = self.tokens.load();
        let bound = tokens.get(&Digest::of(token.as_bytes()));
        match bound.ok_or_else(|| AuthError::Invalid("it is not in the token file".to_owned()))? {
            None => Ok(Principal::Anyone {
                identity: "token".to_owned(),
            }),
            Some(id) => Ok(Principal::Replica {
                id: id.to_string(),
                policy_server: None,
                identity: format!("token of {id}"),
                expires: None,
                follower: false,
                addresses: Vec::new(),
            }),
        }
    }
}

#[tonic::async_trait]
impl Authenticator for StaticTokens {
    async fn authenticate(
        &self,
        token: Option<&str>,
        _peer: Option<SocketAddr>,
        access: Access,
    ) -> Result<Principal, AuthError> {
        self.refresh();
        let principal = self.find(token)?;
        if access == Access::Write && matches!(principal, Principal::Replica { .. }) {
            let why = "a replica's token does not change policies".to_owned();
            return Err(AuthError::Forbidden(why));
        }
        Ok(principal)
    }
}

fn read(path: &Path) -> Result<HashMap<Digest, Option<Arc<str>>>, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let tokens = parse(&text).map_err(|line| Error::Replica {
        path: path.to_owned(),
        line,
    })?;
    if tokens.is_empty() {
        return Err(Error::Empty(path.to_owned()));
    }
    Ok(tokens)
}

/// The tokens, or the number of the line that is wrong.
fn parse(text: &str) -> Result<HashMap<Digest, Option<Arc<str>>>, usize> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| entry(line).ok_or(number))
        .collect()
}

fn entry(line: &str) -> Option<(Digest, Option<Arc<str>>)> {
    let Some((token, id)) = line.split_once(',') else {
        return Some((Digest::of(line.as_bytes()), None));
    };
    let (token, id) = (token.trim(), id.trim());
    let valid = !token.is_empty() && is_dns_subdomain(id);
    valid.then(|| (Digest::of(token.as_bytes()), Some(id.into())))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::metadata(path).map(|m| m.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "others than its owner may read the token file: chmod 600");
    }
}
