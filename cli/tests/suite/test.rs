//! `assent test`.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use crate::support::{Files, assent, command, module, policy};

const CASES: &str = "version: 1
settings: {exemptNamespaces: [ops]}
cases:
  - name: privileged pod is denied
    object: &pod
      apiVersion: v1
      kind: Pod
      metadata: {name: web}
      spec:
        containers: [{name: web, image: nginx, securityContext: {privileged: true}}]
    expect:
      allowed: false
      messageContains: spec.containers[0]
  - name: exempt namespace is allowed
    object: *pod
    namespace: ops
    expect: {allowed: true}
  - name: a star is refused
    settings: {exemptImages: ['*']}
    expect: {valid: false, messageContains: 'exemptImages[0]'}
  - name: object of a file
    file: data/pod.yaml
    expect: {allowed: true}
";

const POD: &[u8] = b"apiVersion: v1\nkind: Pod\nmetadata: {name: plain}\nspec: {containers: []}\n";

/// A directory with a policy and its cases.
fn project(cases: &str) -> Files {
    let files = Files::new(&[(
        "policy.wasm",
        &std::fs::read(module("no-privileged")).unwrap(),
    )]);
    files.add("tests/cases.yaml", cases.as_bytes());
    files.add("tests/data/pod.yaml", POD);
    files
}

#[test]
fn cases_in_yaml_pass() {
    let project = project(CASES);
    let done = assent(&["test", &project.path("")]);
    assert!(
        done.expect(0)
            .out
            .ends_with("\n4 passed, 0 failed, 0 not run\n"),
        "{done:#?}"
    );
    assert!(done.out.starts_with("RESULT   CASE "), "{done:#?}");
    let some = assent(&["test", &project.path(""), "--filter", "star"]);
    assert!(some.expect(0).out.contains("1 passed"), "{some:#?}");
}

#[test]
fn cases_that_fail_say_why() {
    let wrong = CASES
        .replace("allowed: false", "allowed: true")
        .replace("messageContains: spec.containers[0]", "code: 200")
        .replace(
            "valid: false, messageContains: 'exemptImages[0]'",
            "valid: true",
        );
    let project = project(&wrong);
    let junit = project.path("junit.xml");
    let done = assent(&["test", &project.path(""), "--junit", &junit]);
    let text = &done.expect(1).out;
    assert!(text.contains("expected allowed, got denied: "), "{text}");
    assert!(text.contains("expected valid settings, got: "), "{text}");
    assert!(text.contains("2 passed, 2 failed, 0 not run"), "{text}");
    let xml = std::fs::read_to_string(junit).unwrap();
    assert_eq!(xml.matches("<failure ").count(), 2, "{xml}");
}

#[test]
fn cases_that_cannot_be_run_are_exit_code_2() {
    let check = |cases: &str, part: &str| {
        let project = project(cases);
        let done = assent(&["test", &project.path("")]);
        assert!(
            done.expect(2).out.contains(part),
            "no {part:?} in {done:#?}"
        );
    };
    check("expcet: {}\n", "unknown field `expcet`");
    check(
        "cases: [{file: lost.yaml, expect: {allowed: true}}]\n",
        "lost.yaml",
    );
    check(
        "policy: lost.wasm\ncases: [{expect: {valid: true}}]\n",
        "lost.wasm",
    );
    check(
        "version: 7\ncases: [{expect: {valid: true}}]\n",
        "version 7 is not known",
    );
    check("a: [\n", "line 1, column 4");
    let empty = Files::new(&[]);
    assent(&["test", &empty.path("")])
        .expect(2)
        .says("there are no cases");
    assent(&["test", &empty.path("lost")])
        .expect(2)
        .says("there is no file or directory");
}

#[test]
fn case_without_policy_uses_the_nearest_one() {
    let files = Files::new(&[]);
    files.add("tests/a.yaml", b"{expect: {valid: true}, settings: {}}");
    let done = assent(&["test", &files.path("")]);
    assert!(done.expect(2).out.contains("names no policy"), "{done:#?}");
    let given = assent(&[
        "test",
        &files.path(""),
        "--policy",
        &module("no-privileged"),
    ]);
    given.expect(0);
    let manifest = policy("no-privileged").join("manifest.yaml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let manifest = manifest.replace("policy.wasm", &module("no-privileged"));
    files.add("manifest.yaml", manifest.as_bytes());
    assent(&["test", &files.path("tests/a.yaml")]).expect(0);
}

#[test]
fn watch_runs_again_after_a_change() {
    let project = project("{settings: {}, expect: {valid: false}}");
    let mut child = command(&["test", "--watch", &project.path("")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next_sums = || {
        let mut lines = lines.by_ref().map(Result::unwrap);
        lines.find(|line| line.ends_with(" not run")).unwrap()
    };
    assert_eq!(next_sums(), "0 passed, 1 failed, 0 not run");
    project.add("tests/cases.yaml", b"{settings: {}, expect: {valid: true}}");
    // A run may see the file before all of it is written.
    while next_sums() != "1 passed, 0 failed, 0 not run" {}
    child.kill().unwrap();
    child.wait().unwrap();
}
