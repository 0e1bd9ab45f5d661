//! `file://`.

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Error, Files, Limits, ModuleUrl, Pulled, Puller, Sources};
use tempfile::TempDir;

use crate::MODULE;

fn puller(dir: &TempDir) -> Puller {
    let puller = Puller::new(Sources::default(), AddressPolicy::LOCAL).unwrap();
    puller.with_files(Files::Below(dir.path().to_owned()))
}

async fn pull(puller: &Puller, url: &str) -> Result<Pulled, Error> {
    puller.pull(&url.parse::<ModuleUrl>().unwrap()).await
}

#[tokio::test]
async fn files_are_found_absolute_and_relative() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("p.wasm"), MODULE).unwrap();
    let absolute = format!("file://{}/p.wasm", dir.path().display());
    for url in ["file://p.wasm", "file://./p.wasm", &absolute] {
        let pulled = pull(&puller(&dir), url).await.unwrap();
        assert_eq!(pulled.bytes, MODULE);
        let pinned = format!("{url}#{}", Digest::of(MODULE));
        assert_eq!(pulled.resolved_url.to_string(), pinned);
    }
}

#[tokio::test]
async fn files_are_for_standalone_use() {
    let puller = Puller::new(Sources::default(), AddressPolicy::LOCAL).unwrap();
    let error = pull(&puller, "file:///etc/hostname").await.unwrap_err();
    assert!(matches!(error, Error::FilesRefused { .. }), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("dir")).unwrap();
    let pipe = dir.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for url in [
        "file://dir",
        "file://pipe",
        "file://missing",
        "file:///dev/zero",
    ] {
        let error = pull(&puller(&dir), url).await.unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{url}: {error}");
    }
}

#[tokio::test]
async fn large_and_changed_files_are_refused() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("p.wasm"), MODULE).unwrap();
    let limits = Limits {
        max_bytes: MODULE.len() - 1,
        ..Limits::default()
    };
    let error = pull(&puller(&dir).with_limits(limits), "file://p.wasm").await;
    assert!(matches!(error, Err(Error::TooLarge { .. })));
    let url = format!("file://p.wasm#{}", Digest::of(b"other"));
    let error = pull(&puller(&dir), &url).await;
    assert!(matches!(error, Err(Error::Digest { .. })));
}
