//! `assent run`: inputs, exit codes and messages.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Files, assent, assent_with_input, case, command, module, policy};

const PRIVILEGED: &str = "pod-privileged";

fn request(name: &str) -> Value {
    case("no-privileged", name)["request"].clone()
}

fn review(name: &str) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(name)})
}

fn manifest(lines: &str) -> String {
    let rules =
        "rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]";
    format!(
        "apiVersion: policies.assent.dev/v1alpha1\nkind: ClusterAdmissionPolicy\nmetadata: {{name: no-privileged}}\nspec:\n  module: file://{}\n  {rules}\n{lines}",
        module("no-privileged")
    )
}

#[test]
fn review_and_bare_request_are_equivalent_and_may_come_from_stdin() {
    let review = review(PRIVILEGED).to_string();
    let done = assent_with_input(
        &["run", &module("no-privileged"), "--request", "-"],
        review.as_bytes(),
    );
    done.expect(1);
    assert!(done.out.starts_with("denied: "), "{done:?}");
    let review = Files::new(&[("pod.json", review.as_bytes())]);
    let json = assent(&[
        "run",
        &module("no-privileged"),
        "-r",
        &review.path("pod.json"),
        "-o",
        "json",
    ]);
    assert_eq!(json.expect(1).json()["uid"], request(PRIVILEGED)["uid"]);
}

#[test]
fn manifest_provides_module_and_settings() {
    let manifest = policy("no-privileged").join("manifest.yaml");
    let manifest = manifest.to_str().unwrap();
    let files = Files::new(&[
        (
            "exempt.json",
            request("daemonset-exempt-image").to_string().as_bytes(),
        ),
        ("none.yaml", b"exemptImages: []"),
    ]);
    let request = files.path("exempt.json");
    assent(&["run", manifest, "--request", &request]).expect(0);
    let none = files.path("none.yaml");
    assent(&["run", manifest, "--request", &request, "--settings", &none]).expect(1);
}

#[test]
fn manifest_provides_message_and_mode() {
    let files = Files::new(&[
        ("pod.json", request(PRIVILEGED).to_string().as_bytes()),
        (
            "message.yaml",
            manifest("  message: ask the platform team\n").as_bytes(),
        ),
        ("monitor.yaml", manifest("  mode: monitor\n").as_bytes()),
    ]);
    let run = |name: &str| {
        assent(&[
            "run",
            &files.path(name),
            "-r",
            &files.path("pod.json"),
            "-o",
            "json",
        ])
    };
    let response = run("message.yaml").expect(1).json();
    assert_eq!(response["status"]["message"], "ask the platform team");
    let cause = response["status"]["details"]["causes"][0]["message"]
        .as_str()
        .unwrap();
    assert!(cause.contains("privileged"), "{response}");
    let monitored = run("monitor.yaml");
    monitored.expect(0).says("monitor mode");
    assert_eq!(monitored.json()["allowed"], true);
}

#[test]
fn mutation_must_be_allowed() {
    let case = case("add-labels", "pod-no-labels");
    let files = Files::new(&[
        ("pod.json", case["request"].to_string().as_bytes()),
        ("settings.json", case["settings"].to_string().as_bytes()),
    ]);
    let run = |extra: &str| {
        let (pod, settings) = (files.path("pod.json"), files.path("settings.json"));
        let module = module("add-labels");
        let mut args = vec!["run", &module, "--request", &pod, "--settings", &settings];
        args.extend((!extra.is_empty()).then_some(extra));
        assent(&args)
    };
    for allowed in ["", "--mutating", "--mutating=true"] {
        assert!(
            run(allowed).expect(0).out.contains("  patch    "),
            "{allowed}"
        );
    }
    assert!(
        run("--mutating=false")
            .expect(1)
            .out
            .contains("mutating: true")
    );
}

#[test]
fn bad_settings_are_rejected_with_the_modules_message() {
    let files = Files::new(&[
        ("pod.json", request(PRIVILEGED).to_string().as_bytes()),
        ("wrong.yaml", b"exemptImages: 7"),
        ("list.yaml", b"- 1"),
        ("broken.json", b"{\"a\": "),
        ("twice.yaml", b"a: 1\na: 2"),
    ]);
    let run = |settings: &str| {
        let path = files.path(settings);
        assent(&[
            "run",
            &module("no-privileged"),
            "-r",
            &files.path("pod.json"),
            "-s",
            &path,
        ])
    };
    run("wrong.yaml").expect(2).says("expected a sequence");
    run("list.yaml")
        .expect(2)
        .says("must be one YAML or JSON object");
    run("broken.json").expect(2).says("broken.json");
    run("twice.yaml").expect(2).says("duplicate key");
    run("missing.yaml").expect(2).says("missing.yaml");
}

#[test]
fn bad_requests_are_reported() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}).to_string();
    let files = Files::new(&[
        ("text", b"hello"),
        ("pod.json", pod.as_bytes()),
        ("empty", b""),
    ]);
    let run = |name: &str| {
        assent(&[
            "run",
            &module("no-privileged"),
            "--request",
            &files.path(name),
        ])
    };
    run("text").expect(2).says("not JSON");
    run("empty").expect(2).says("not JSON");
    run("pod.json")
        .expect(2)
        .says("this is a Pod, not an AdmissionReview");
    run("missing.json").expect(2).says("missing.json");
}

#[test]
fn bad_modules_are_reported() {
    let files = Files::new(&[
        ("pod.json", request(PRIVILEGED).to_string().as_bytes()),
        (
            "cut.wasm",
            &std::fs::read(module("no-privileged")).unwrap()[..1000],
        ),
        ("text.wasm", b"#!/bin/sh"),
        ("foreign.wasm", b"\0asm\x01\0\0\0"),
        ("wrong.yaml", manifest("  mutatin: true\n").as_bytes()),
        (
            "lost.yaml",
            manifest("").replace("policy.wasm", "lost.wasm").as_bytes(),
        ),
    ]);
    let run = |name: &str| assent(&["run", name, "--request", &files.path("pod.json")]);
    run(&files.path("cut.wasm"))
        .expect(2)
        .says("failed to parse the WebAssembly module");
    run(&files.path("text.wasm"))
        .expect(2)
        .says("is neither a WebAssembly module, nor a text");
    run(&files.path("foreign.wasm"))
        .expect(2)
        .says("failed to load");
    run(&files.path("wrong.yaml"))
        .expect(2)
        .says("spec.mutatin");
    run(&files.path("lost.yaml")).expect(2).says("lost.wasm");
    run(&files.path("missing.wasm"))
        .expect(2)
        .says("registry://host/repository:tag");
    run("ftp://host/policy.wasm")
        .expect(2)
        .says("use registry://, https://, http://, configmap:// or file://");
}

#[test]
fn module_is_found_by_digest_in_store() {
    let bytes = std::fs::read(module("no-privileged")).unwrap();
    let digest = assent_core::Digest::of(&bytes);
    let files = Files::new(&[("pod.json", request(PRIVILEGED).to_string().as_bytes())]);
    let store = files.path("state");
    std::fs::create_dir_all(format!("{store}/modules")).unwrap();
    std::fs::write(format!("{store}/modules/{}", digest.hex()), &bytes).unwrap();
    let digest = digest.to_string();
    let pod = files.path("pod.json");
    assent(&["run", &digest, "--store", &store, "--request", &pod]).expect(1);
    assent(&["run", &digest, "--request", &pod])
        .expect(2)
        .says("--store DIR");
    let other = assent_core::Digest::of(b"other").to_string();
    assent(&["run", &other, "--store", &store, "--request", &pod])
        .expect(2)
        .says("has no valid module");
    assent(&["run", "sha256:12", "--store", &store, "--request", &pod])
        .expect(2)
        .says("sha256:12");
}

#[test]
fn file_url_is_checked_against_its_digest() {
    let files = Files::new(&[("pod.json", request("pod-plain").to_string().as_bytes())]);
    let module = module("no-privileged");
    let digest = assent_core::Digest::of(&std::fs::read(&module).unwrap());
    let run = |url: String| assent(&["run", &url, "--request", &files.path("pod.json")]);
    run(format!("file://{module}#{digest}")).expect(0);
    let other = assent_core::Digest::of(b"other");
    run(format!("file://{module}#{other}"))
        .expect(2)
        .says("failed to verify");
}

#[test]
fn closed_pipe_does_not_panic() {
    let files = Files::new(&[("pod.json", request(PRIVILEGED).to_string().as_bytes())]);
    let module = module("no-privileged");
    let pod = files.path("pod.json");
    for args in [
        vec!["--help"],
        vec!["run", &module, "--request", &pod, "-o", "json"],
    ] {
        let mut child = command(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !said.contains("panicked") && !said.contains("error"),
            "{args:?}: {said}"
        );
        assert!(
            matches!(ended.status.code(), Some(0 | 1)),
            "{args:?}: {:?}",
            ended.status
        );
    }
}

#[test]
fn usage_errors_are_exit_code_2() {
    assent(&["run"]).expect(2).says("--request");
    assent(&["run", "x.wasm", "--request", "y", "-o", "xml"])
        .expect(2)
        .says("[possible values: text, json]");
    assent(&["fly"]).expect(2).says("unrecognized subcommand");
    assent(&["rollout", "status", "Not A Name"])
        .expect(2)
        .says("not the name of a policy");
    assent(&["--log-level", "a=b=c", "status"])
        .expect(2)
        .says("--log-level");
    let version = assent(&["--version"]);
    assert_eq!(
        version.expect(0).out,
        format!("assent {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn policy_that_reads_other_objects_is_not_evaluated() {
    let context = "  contextAwareResources: [{apiVersion: v1, kind: Namespace}]\n";
    let files = Files::new(&[
        ("pod.json", request(PRIVILEGED).to_string().as_bytes()),
        ("context.yaml", manifest(context).as_bytes()),
        ("plain.yaml", manifest("").as_bytes()),
        ("inventory.wasm", &gatekeeper("inventory")),
        ("msg.wasm", &gatekeeper("other")),
    ]);
    let run = |name: &str| assent(&["run", &files.path(name), "-r", &files.path("pod.json")]);
    run("context.yaml")
        .expect(2)
        .says("spec.contextAwareResources names Namespace (v1)");
    run("plain.yaml").expect(1);
    run("inventory.wasm")
        .expect(2)
        .says("the module reads data.inventory");
    // It is no policy, for other reasons.
    let other = run("msg.wasm");
    assert!(!other.err.contains("inventory"), "{other:?}");
}

/// A Gatekeeper module with one constant; nothing of it can be called.
fn gatekeeper(constant: &str) -> Vec<u8> {
    let functions = ["opa_json_parse", "opa_malloc", "opa_eval_ctx_new"];
    let functions: String = functions
        .map(|name| format!(r#"(func (export "{name}"))"#))
        .concat();
    let metadata = r#"{\"executionMode\":\"gatekeeper\"}"#;
    wat::parse_str(format!(
        r#"(module (@custom "io.kubewarden.metadata" "{metadata}") (import "env" "memory" (memory 2)) {functions}
           (data (i32.const 8) "{constant}\00"))"#
    ))
    .unwrap()
}
