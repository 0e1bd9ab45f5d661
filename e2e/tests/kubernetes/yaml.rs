//! The table of `assent-yaml` holds what kubectl makes of YAML: kubectl is asked again.

use assent_e2e::kube::Kubectl;
use serde_json::Value;

const TABLE: &str = include_str!("../../../yaml/tests/kubectl.tsv");

/// An object with the fields of a document. kubectl prints it without asking a server.
fn mk_object(fields: &str) -> String {
    let fields: String = fields.lines().map(|line| format!("  {line}\n")).collect();
    format!("apiVersion: example.com/v1\nkind: Example\nmetadata: {{name: a}}\nspec:\n{fields}")
}

async fn read(text: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.yaml");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let kubectl = Kubectl::new(std::path::Path::new("/dev/null"));
    let args = ["annotate", "--local", "-f", file, "-o", "json", "a=b"];
    kubectl.attempt(&args).await
}

#[tokio::test]
async fn kubectl_agrees_with_the_table() {
    let cases = TABLE.lines().filter(|line| !line.starts_with('#'));
    let cases = cases.map(|line| line.split_once('\t').unwrap());
    let (mut objects, mut expected) = (Vec::new(), Vec::new());
    for (document, expect) in cases {
        let document: String = serde_json::from_str(document).unwrap();
        let object = mk_object(&document);
        if expect == "error" {
            read(&object).await.unwrap_err();
            continue;
        }
        objects.push(object);
        expected.push((document, serde_json::from_str::<Value>(expect).unwrap()));
    }
    let printed = read(&objects.join("---\n")).await.unwrap();
    let printed = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
    let printed: Vec<Value> = printed.collect::<Result<_, _>>().unwrap();
    assert_eq!(printed.len(), expected.len());
    for (object, (document, expect)) in printed.iter().zip(expected) {
        assert_eq!(object["spec"], expect, "{document}");
    }
}
