//! Policies that read other objects, which come from a directory.

use std::{fs, path::Path};

use assent_context::Cluster;
use assent_core::policy::ContextResource;
use assent_e2e::{
    Evaluator, Options, Up, eventually, http,
    manifest::Policy,
    module,
    process::{assent, text},
    up::condition,
};
use serde_json::{Value, json};

/// A directory of objects and an `assent up` that reads it.
struct Setup {
    up: Up,
    objects: tempfile::TempDir,
}

// === impl Setup ===

impl Setup {
    async fn start(options: Options, files: &[(&str, &str)]) -> Self {
        let objects = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(objects.path().join(name), content).unwrap();
        }
        let options = options.args(&["--objects", &objects.path().to_string_lossy()]);
        Self {
            up: Up::start(options).await,
            objects,
        }
    }

    /// Writes a file of objects, whole at once.
    fn write(&self, name: &str, content: &str) {
        let scratch = self.up.dir().join(name);
        fs::write(&scratch, content).unwrap();
        fs::copy(&scratch, self.objects.path().join(format!(".{name}"))).unwrap();
        let (from, to) = (format!(".{name}"), name);
        fs::rename(self.objects.path().join(from), self.objects.path().join(to)).unwrap();
    }
}

fn known_runtime_class() -> Policy {
    Policy::cluster("classes")
        .module("classes.wasm")
        .line("contextAwareResources: [{apiVersion: node.k8s.io/v1, kind: RuntimeClass, fields: [handler]}]")
}

fn mk_class(name: &str) -> String {
    format!(
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: x\n"
    )
}

fn mk_options() -> Options {
    Options::default().file("classes.wasm", module::example("known-runtime-class"))
}

/// A review of a pod with a runtime class.
fn mk_pod(class: &str) -> Value {
    let mut review = http::pod();
    review["request"]["object"]["spec"]["runtimeClassName"] = json!(class);
    review
}

async fn path_of(up: &Up, policy: &str) -> String {
    let routes = up.fetch("default").await.unwrap().routes;
    let own = routes.into_iter().find(|r| r.path.contains(policy));
    own.expect("the policy must have a route").path
}

/// What an evaluator answers about a pod with this runtime class: nothing if it is allowed.
async fn denial(evaluator: &Evaluator, path: &str, class: &str) -> Option<String> {
    let url = format!("http://{}/validate/{path}", evaluator.listen);
    let (code, answer) = http::review(&url, &mk_pod(class)).await.unwrap();
    assert_eq!(code, 200, "{answer}");
    let response = &answer["response"];
    match response["allowed"].as_bool().unwrap() {
        true => None,
        false => Some(response["status"]["message"].as_str().unwrap().to_owned()),
    }
}

async fn wait_denial(evaluators: &[Evaluator], path: &str, class: &str, expect: Option<&str>) {
    for (number, evaluator) in evaluators.iter().enumerate() {
        let what = format!("evaluator {number} answers {expect:?} about {class}");
        eventually(&what, async || {
            denial(evaluator, path, class).await.as_deref() == expect
        })
        .await;
    }
}

/// The digest of a state with one runtime class, which names the files of that state.
fn root_of(class: &str) -> String {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": class}, "handler": "x",
    });
    let declared = ContextResource {
        api_version: "node.k8s.io/v1".into(),
        kind: "RuntimeClass".into(),
        fields: vec!["handler".into()],
        ..ContextResource::default()
    };
    let cluster = Cluster::new([class]).unwrap();
    cluster.collection(&declared).unwrap().root().hex()
}

fn has_part(directory: &Path, root: &str) -> bool {
    let Ok(files) = fs::read_dir(directory) else {
        return false;
    };
    let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.any(|name| name.contains(&root[..16]))
}

#[tokio::test]
async fn edited_object_changes_the_verdict_of_every_replica() {
    let mut setup = Setup::start(mk_options(), &[("classes.yaml", &mk_class("gvisor"))]).await;
    let url = setup.up.url();
    let mut evaluators = vec![
        Evaluator::start(&url, "one").await,
        Evaluator::start(&url, "two").await,
        Evaluator::start(&url, "three").await,
    ];
    setup.up.apply("classes", &known_runtime_class());
    setup.up.wait_enforced("classes", 1).await;
    let path = path_of(&setup.up, "classes").await;
    // It is enforced, so that every replica has the objects: nothing has to be waited for.
    for evaluator in &evaluators {
        assert_eq!(denial(evaluator, &path, "gvisor").await, None);
        let unknown = denial(evaluator, &path, "kata").await;
        let expect = "there is no RuntimeClass kata; there are: gvisor";
        assert_eq!(unknown.as_deref(), Some(expect));
    }

    setup.write(
        "classes.yaml",
        &format!("{}---\n{}", mk_class("kata"), mk_class("runc")),
    );
    let gone = "there is no RuntimeClass gvisor; there are: kata, runc";
    wait_denial(&evaluators, &path, "kata", None).await;
    wait_denial(&evaluators, &path, "gvisor", Some(gone)).await;

    // A file that cannot be read loses nothing.
    setup.write("classes.yaml", "kind: [");
    let logged = async || setup.up.log().contains("are not current: classes.yaml");
    eventually("the bad file is reported", logged).await;
    wait_denial(&evaluators, &path, "kata", None).await;
    setup.write("classes.yaml", &mk_class("runc"));
    let gone = "there is no RuntimeClass kata; there are: runc";
    wait_denial(&evaluators, &path, "kata", Some(gone)).await;

    // Without the control plane evaluators answer from what they have, after a restart too.
    for evaluator in &evaluators {
        evaluator.wait_kept("classes/1-").await;
        let kept = async || has_part(&evaluator.state().join("context"), &root_of("runc"));
        eventually("the objects are on disk", kept).await;
    }
    setup.up.process.kill();
    let kept = "there is no RuntimeClass kata; there are: runc";
    for evaluator in &mut evaluators {
        evaluator.restart().await;
        evaluator.wait_ready().await;
        assert_eq!(denial(evaluator, &path, "runc").await, None);
        assert_eq!(
            denial(evaluator, &path, "kata").await.as_deref(),
            Some(kept)
        );
    }
    // Objects that changed meanwhile arrive when it is back.
    setup.write("classes.yaml", &mk_class("kata"));
    setup.up.restart().await;
    wait_denial(&evaluators, &path, "kata", None).await;
    let gone = "there is no RuntimeClass runc; there are: kata";
    wait_denial(&evaluators, &path, "runc", Some(gone)).await;
}

#[tokio::test]
async fn policy_that_reads_objects_is_refused_without_objects() {
    let up = Up::start(mk_options()).await;
    up.apply("classes", &known_runtime_class());
    let policy = up.wait_accepted("classes", 1, "ContextUnavailable").await;
    let accepted = condition(&policy, "Accepted");
    assert_eq!(accepted["status"], "False");
    let message = accepted["message"].as_str().unwrap();
    assert!(message.contains("--objects"), "{message}");
}

const DEFINITION: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.fleet.example.com}
spec:
  group: fleet.example.com
  scope: Cluster
  names: {kind: Cluster, plural: clusters}
  versions: [{name: v1, served: true, storage: true}]
";

#[tokio::test]
async fn absent_kind_heals_when_it_is_defined() {
    let payload = r#"{"api_version":"fleet.example.com/v1","kind":"Cluster"}"#;
    let options =
        Options::replicas(2).file("ask.wasm", module::asking("list_resources_all", payload));
    let setup = Setup::start(options, &[]).await;
    let declared = "contextAwareResources: [{apiVersion: fleet.example.com/v1, kind: Cluster}]";
    let policy = Policy::cluster("ask").module("ask.wasm").line(declared);
    setup.up.apply("ask", &policy);
    let refused = setup.up.wait_accepted("ask", 1, "ContextAbsent").await;
    let message = condition(&refused, "Accepted")["message"].to_string();
    assert!(
        message.contains("Cluster (fleet.example.com/v1)"),
        "{message}"
    );
    let cluster = "apiVersion: fleet.example.com/v1\nkind: Cluster\nmetadata: {name: berlin}\n";
    setup.write("fleet.yaml", &format!("{DEFINITION}---\n{cluster}"));
    setup.up.wait_enforced("ask", 1).await;
    let answer = setup.up.admit().await.to_string();
    assert!(
        answer.contains("ClusterList") && answer.contains("berlin"),
        "{answer}"
    );

    // Removed again: an error, never an empty list.
    fs::remove_file(setup.objects.path().join("fleet.yaml")).unwrap();
    eventually("the kind is gone", async || {
        let answer = setup.up.admit().await.to_string();
        answer.contains("does not serve Cluster")
    })
    .await;
    let policy = setup.up.wait_accepted("ask", 1, "ContextAbsent").await;
    assert_eq!(
        condition(&policy, "Enforced")["status"],
        "True",
        "{policy:#}"
    );
}

async fn check_access(args: &[&str], expect: &str) {
    let payload = json!({
        "subject_access_review": {
            "groups": null,
            "resource_attributes": {
                "group": null, "name": "s", "namespace": "shop", "resource": "secrets",
                "subresource": null, "verb": "get", "version": "v1",
            },
            "user": "alice",
        },
        "disable_cache": true,
    });
    let options = Options::replicas(1).args(args);
    let guest = module::asking("can_i", &payload.to_string());
    let up = Up::start(options.file("ask.wasm", guest)).await;
    up.apply("ask", &Policy::cluster("ask").module("ask.wasm"));
    up.wait_enforced("ask", 1).await;
    let answer = up.admit().await.to_string();
    assert!(answer.contains(expect), "{answer}");
}

#[tokio::test]
async fn access_reviews_are_denied_unless_a_flag_allows_them() {
    check_access(&[], r#"\"allowed\":false"#).await;
    check_access(&["--allow-all-access"], r#"\"allowed\":true"#).await;
}

#[tokio::test]
async fn objects_that_exceed_the_limit_are_refused_with_their_size() {
    let large = |n: usize| {
        mk_class(&format!("class-{n}"))
            .replace("handler: x", &format!("handler: {}", "x".repeat(8 << 10)))
    };
    let classes: Vec<String> = (0..200).map(large).collect();
    let setup = Setup::start(mk_options(), &[("classes.yaml", &classes.join("---\n"))]).await;
    let server = "apiVersion: policies.assent.dev/v1alpha1\nkind: PolicyServer\nmetadata: {name: default}\n\
                  spec: {context: {memoryLimit: 1Mi}}\n";
    setup.up.write("server.yaml", server);
    setup.up.apply("classes", &known_runtime_class());
    let refused = setup
        .up
        .wait_accepted("classes", 1, "ContextTooLarge")
        .await;
    let message = condition(&refused, "Accepted")["message"].to_string();
    assert!(message.contains("200 objects of RuntimeClass"), "{message}");
    // It heals when the objects fit.
    setup.write("classes.yaml", &mk_class("gvisor"));
    setup.up.write("server.yaml", server.replace("1Mi", "2Mi"));
    let _evaluator = Evaluator::start(&setup.up.url(), "one").await;
    setup.up.wait_enforced("classes", 1).await;
}

#[tokio::test]
async fn directory_that_does_not_exist_is_an_error() {
    let missing = Path::new("/nonexistent/objects").display().to_string();
    let output = assent(&["up", "--objects", &missing]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(
        said.contains("--objects /nonexistent/objects is not a directory"),
        "{said}"
    );
}
