//! Modules from files.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use crate::{Error, Files};

pub(crate) async fn read(files: &Files, path: &Path, limit: usize) -> Result<Bytes, Error> {
    let Files::Below(base) = files else {
        return Err(Error::FilesRefused {
            url: format!("file://{}", path.display()),
        });
    };
    // An absolute path replaces the base.
    let path = base.join(path);
    tokio::task::spawn_blocking(move || read_blocking(path, limit))
        .await
        .expect("reading a file must not panic")
}

fn read_blocking(path: PathBuf, limit: usize) -> Result<Bytes, Error> {
    let failed = |source: io::Error| Error::File {
        path: path.clone(),
        source,
    };
    // Checked before it is opened: opening a pipe would wait for a writer.
    if !std::fs::metadata(&path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    File::open(&path)
        .map_err(failed)?
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > limit {
        return Err(Error::TooLarge {
            url: format!("file://{}", path.display()),
            limit,
        });
    }
    Ok(bytes.into())
}
