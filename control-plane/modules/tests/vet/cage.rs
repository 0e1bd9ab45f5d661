//! What a vetting child can not do.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Command};

use assent_modules::vet::{Enforcement, System, Vetter};

use super::{Bounds, CHILD, public_dir, vetter, waiting_child};
use crate::orphan::wait_until;

/// A line of `/proc/<pid>/status`.
fn status(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.strip_prefix(':'));
    value.unwrap_or("missing").trim().to_owned()
}

/// Runs every attempt in a confined process; its results by name.
fn attempts(secret: &str) -> BTreeMap<String, String> {
    let output = Command::new(CHILD).args(["escape", secret]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, result)| (name.to_owned(), result.to_owned()))
        .collect()
}

#[test]
fn confined_process_reaches_nothing() {
    let dir = public_dir();
    // Readable by every user, as the token of a service account may be.
    let secret = dir.path().join("token");
    fs::write(&secret, "secret").unwrap();
    let mut attempts = attempts(secret.to_str().unwrap());
    assert!(attempts.remove("confinement").is_some());
    // A confined process still computes.
    assert_eq!(attempts.remove("use a thread").unwrap(), "ok true");
    assert!(attempts.len() > 30, "{attempts:?}");
    for (name, result) in &attempts {
        assert!(!result.starts_with("ok"), "{name}: {result}");
    }
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
}

#[tokio::test]
async fn child_is_confined_as_the_report_says() {
    let System { confinement, .. } = vetter().probe().await.unwrap();
    let child = waiting_child(Bounds::default()).await;
    // The filter is the last thing that is set.
    wait_until("the child confines itself", || {
        status(child.id(), "Seccomp") == if confinement.seccomp { "2" } else { "0" }
    });
    if !confinement.seccomp {
        assert_ne!(confinement.landlock, Enforcement::None);
        return;
    }
    let no_new_privileges = status(child.id(), "NoNewPrivs") == "1";
    assert_eq!(no_new_privileges, confinement.no_new_privileges);
}

#[tokio::test]
async fn children_of_root_are_nobody() {
    // The directory of the program under test may be closed to other users.
    let dir = public_dir();
    let exe = dir.path().join("assent-vet");
    fs::copy(CHILD, &exe).unwrap();
    let system = Vetter::new(exe, Vec::new()).probe().await.unwrap();
    assert!(system.confinement.unprivileged, "{system:?}");
}

#[tokio::test]
async fn program_that_nobody_may_execute_is_confined_all_the_same() {
    let dir = tempfile::TempDir::new().unwrap();
    let exe = dir.path().join("assent-vet");
    fs::copy(CHILD, &exe).unwrap();
    fs::set_permissions(&exe, fs::Permissions::from_mode(0o700)).unwrap();
    let system = Vetter::new(exe, Vec::new()).probe().await.unwrap();
    let confinement = system.confinement;
    assert!(confinement.seccomp || confinement.landlock != Enforcement::None);
}

#[tokio::test]
async fn probe_reports_the_engine_of_children() {
    let engine = assent_wasm::Engine::new(assent_wasm::EngineConfig::small()).unwrap();
    let system = vetter().probe().await.unwrap();
    assert_eq!(system.engine, engine.fingerprint());
}

#[tokio::test]
async fn probe_of_a_wrong_program_is_an_error() {
    let wrong = super::script("echo usage", Bounds::default());
    wrong.probe().await.unwrap_err();
    let failed = super::script("echo neither >&2; exit 70", Bounds::default());
    let error = failed.probe().await.unwrap_err().to_string();
    assert!(error.contains("neither"), "{error}");
}
