//! `assent run -f`: plain objects.

use serde_json::json;

use crate::support::{Files, assent, assent_with_input, module, policy};

const PODS: &str = "apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop}
spec: {containers: [{name: a, image: nginx}]}
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec: {containers: [{name: a, image: nginx, securityContext: {privileged: true}}]}
";

const CONFIG: &str = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"c\"}}";

fn manifest() -> String {
    let path = policy("no-privileged").join("manifest.yaml");
    path.to_str().unwrap().to_owned()
}

#[test]
fn objects_of_files_directories_and_stdin_are_evaluated() {
    let files = Files::new(&[("pods.yaml", PODS.as_bytes())]);
    let module = module("no-privileged");
    let done = assent(&["run", &module, "-f", &files.path("pods.yaml")]);
    let text = &done.expect(1).out;
    assert!(
        text.starts_with("Pod shop/plain: allowed\nPod default/root: denied: "),
        "{text}"
    );
    let done = assent_with_input(&["run", &module, "-f", "-", "-n", "ops"], CONFIG.as_bytes());
    assert_eq!(done.expect(0).out, "ConfigMap ops/c: allowed\n");
    files.add("more/config.json", CONFIG.as_bytes());
    let names = |args: &[&str]| {
        let dir = files.path("");
        let done = assent(&[&["run", &module, "-f", &dir, "-o", "json"], args].concat());
        let rows = done.expect(1).json();
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["object"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["Pod shop/plain", "Pod default/root"]);
    assert_eq!(
        names(&["-R"]),
        ["ConfigMap default/c", "Pod shop/plain", "Pod default/root"]
    );
}

#[test]
fn objects_that_no_rule_matches_are_skipped() {
    let files = Files::new(&[
        ("pods.yaml", PODS.as_bytes()),
        ("config.json", CONFIG.as_bytes()),
    ]);
    let (pods, config) = (files.path("pods.yaml"), files.path("config.json"));
    let manifest = manifest();
    let done = assent(&["run", &manifest, "-f", &pods, "-f", &config, "-o", "json"]);
    let rows = done.expect(1).json();
    let results: Vec<_> = (0..3).map(|n| rows[n]["result"].clone()).collect();
    assert_eq!(results, ["allowed", "denied", "skipped"]);
    assert_eq!(rows[2]["reason"], "no rule of the policy matches");
    let alone = assent(&["run", &manifest, "-f", &config]);
    alone.expect(2).says("--ignore-rules");
    assent(&["run", &manifest, "-f", &config, "--ignore-rules"]).expect(0);
    // The manifest has no rule for DELETE.
    assent(&["run", &manifest, "-f", &pods, "--operation", "DELETE"]).expect(2);
}

#[test]
fn flags_describe_the_request() {
    // The policy denies everything with the request as its message.
    let old = PODS.replace("image: nginx", "image: httpd");
    let files = Files::new(&[("new.yaml", PODS.as_bytes()), ("old.yaml", old.as_bytes())]);
    let settings = files.add("settings.yaml", b"exemptNamespaces: [shop, default]");
    let run = |args: &[&str]| {
        let common = [
            "run",
            &module("no-privileged"),
            "-f",
            &files.path("new.yaml"),
            "-s",
            &settings,
        ];
        assent(&[&common[..], args].concat())
    };
    let old = files.path("old.yaml");
    run(&[
        "--old-object",
        &old,
        "--user",
        "alice",
        "--group",
        "staff",
        "--dry-run",
    ])
    .expect(0);
    run(&["--operation", "UPDATE"])
        .expect(2)
        .says("as it was before");
    run(&["--operation", "CREATE", "--old-object", &old])
        .expect(2)
        .says("has no old object");
    run(&["--operation", "CONNECT"])
        .expect(2)
        .says("[possible values: CREATE, UPDATE, DELETE]");
    run(&["-n", "ops"])
        .expect(2)
        .says("\"shop\"")
        .says("new.yaml");
    let other = files.add("other.yaml", CONFIG.as_bytes());
    run(&["--old-object", &other])
        .expect(2)
        .says("--old-object has no Pod shop/plain");
}

#[test]
fn reviews_requests_and_lists_are_recognised() {
    let request = crate::support::case("no-privileged", "pod-privileged")["request"].clone();
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, review, request]});
    let files = Files::new(&[("list.json", list.to_string().as_bytes())]);
    let done = assent(&[
        "run",
        &manifest(),
        "-f",
        &files.path("list.json"),
        "-o",
        "json",
    ]);
    let rows = done.expect(1).json();
    assert_eq!(rows[0]["result"], "allowed");
    for row in [&rows[1], &rows[2]] {
        assert_eq!(row["result"], "denied", "{row}");
        assert_eq!(row["response"]["uid"], request["uid"]);
    }
}

#[test]
fn bad_input_is_reported_with_its_place() {
    let files = Files::new(&[
        ("bad.yaml", b"a: 1\n---\nb: [\n".as_slice()),
        ("text.yaml", b"hello\n"),
        ("empty.yaml", b"---\n"),
    ]);
    let run = |name: &str| assent(&["run", &module("no-privileged"), "-f", &files.path(name)]);
    run("bad.yaml").expect(2).says("bad.yaml").says("line");
    run("text.yaml").expect(2).says("it has no apiVersion");
    run("empty.yaml").expect(2).says("nothing to evaluate");
    run("lost.yaml").expect(2).says("lost.yaml");
    let both = ["run", "x.wasm", "-f", "a", "--request", "b"];
    assent(&both).expect(2).says("cannot be used with");
}
