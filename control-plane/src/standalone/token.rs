//! The token that calls which change policies need. It is stored where only its user can read it,
//! so that other users of the machine can look at policies and not change them.

use std::{
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tracing::warn;

/// A token and the files that hold it.
#[derive(Debug)]
pub(super) struct WriteToken {
    pub(super) token: String,
    /// Where commands of the same user find it; removed at the end.
    shared: Option<PathBuf>,
}

const FILE: &str = "token";

/// The token's file in a state directory.
pub fn in_state(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// The token's file for the control plane that listens on this port, in a directory of the user.
pub fn of_user(port: u16) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let runtime = set("XDG_RUNTIME_DIR").map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    let directory = runtime.or_else(home)?.join("assent");
    Some(directory.join(format!("{FILE}-{port}")))
}

/// A file with a token that only this process and its evaluators know.
pub(super) fn internal(state: &Path) -> anyhow::Result<PathBuf> {
    let path = state.join("internal-token");
    write(&path, &random()).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

// === impl WriteToken ===

impl WriteToken {
    /// Makes a new one.
    pub(super) fn create(state: &Path, discovery: SocketAddr) -> anyhow::Result<Self> {
        let token = random();
        let path = in_state(state);
        write(&path, &token).with_context(|| format!("failed to write {}", path.display()))?;
        let shared = of_user(discovery.port()).filter(|shared| {
            let written = share(shared, &token);
            if let Err(error) = &written {
                let file = path.display();
                warn!(
                    "failed to write {}: {error}; pass --token-file {file} to commands that change policies",
                    shared.display()
                );
            }
            written.is_ok()
        });
        Ok(Self { token, shared })
    }
}

impl Drop for WriteToken {
    fn drop(&mut self) {
        let Some(path) = &self.shared else { return };
        // Another process may have taken the port, and the file, meanwhile.
        if fs::read_to_string(path).is_ok_and(|text| text == self.token) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Two random UUIDs have 244 random bits.
fn random() -> String {
    let half = || uuid::Uuid::new_v4().simple();
    format!("{}{}", half(), half())
}

fn share(path: &Path, token: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    write(path, token)
}

/// Replaces the file by a rename: one that was there before may be readable by others.
fn write(path: &Path, token: &str) -> io::Result<()> {
    let aside = path.with_extension(format!("{}.tmp", std::process::id()));
    let _ = fs::remove_file(&aside);
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside);
    file.and_then(|mut file| file.write_all(token.as_bytes()))?;
    fs::rename(&aside, path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn file_is_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = in_state(dir.path());
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, "new").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "nothing is left behind");
    }

    #[test]
    fn file_of_another_process_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token-1");
        let token = |token: &str| WriteToken {
            token: token.to_owned(),
            shared: Some(path.clone()),
        };
        fs::write(&path, "theirs").unwrap();
        drop(token("ours"));
        assert!(path.exists());
        drop(token("theirs"));
        assert!(!path.exists());
    }
}
