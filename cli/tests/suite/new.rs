//! Projects that `assent new` starts: they build and pass their tests.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Files, assent};

#[track_caller]
fn start(files: &Files, language: &str) -> String {
    let directory = files.path("");
    let done = assent(&["new", language, "require-owner", "--directory", &directory]);
    done.expect(0);
    files.path("require-owner")
}

/// Runs the project's own build script, with this program in the path.
#[track_caller]
fn build(project: &str, environment: &[(&str, &str)]) {
    let program = Path::new(env!("CARGO_BIN_EXE_assent"));
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = program.parent().unwrap().display();
    let built = Command::new(format!("{project}/build.sh"))
        .env("PATH", format!("{bin}:{path}"))
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{log}");
}

#[track_caller]
fn passes(project: &str) {
    let done = assent(&["test", project]);
    done.expect(0);
    assert!(done.out.contains("3 passed"), "{done:?}");
}

#[test]
fn text_projects_pass_their_tests() {
    for language in ["rego", "cel"] {
        let files = Files::new(&[]);
        passes(&start(&files, language));
    }
}

#[test]
fn rust_project_builds_and_passes_its_tests() {
    let files = Files::new(&[]);
    let project = start(&files, "rust");
    // The versions that the example policies are built with, which are there already.
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/Cargo.lock");
    std::fs::copy(lock, format!("{project}/Cargo.lock")).unwrap();
    let target = files.path("target");
    build(
        &project,
        &[("CARGO_TARGET_DIR", &target), ("RUSTFLAGS", "")],
    );
    passes(&project);
}

#[test]
fn go_project_builds_and_passes_its_tests() {
    let files = Files::new(&[]);
    let project = start(&files, "go");
    build(&project, &[("GOFLAGS", ""), ("GOWORK", "off")]);
    passes(&project);
}

#[test]
fn existing_directory_is_left_alone() {
    let files = Files::new(&[]);
    files.add("require-owner/policy.rego", b"mine");
    let directory = files.path("");
    let again = assent(&["new", "rego", "require-owner", "--directory", &directory]);
    again.expect(2).says("does not exist yet");
    let kept = std::fs::read(files.path("require-owner/policy.rego")).unwrap();
    assert_eq!(kept, b"mine");
    assent(&["new", "rego", "Not/a-name"])
        .expect(2)
        .says("lower-case");
}
