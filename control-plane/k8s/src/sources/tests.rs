#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::testing::{failure, not_found, scripted};

fn mk_reader(answer: Option<Value>) -> SourceReader {
    let (client, _) = scripted(move |_| answer.clone().map_or_else(not_found, |a| (200, a)));
    SourceReader::new(client, "assent-system")
}

fn text(config: &[u8]) -> Result<String, std::string::FromUtf8Error> {
    String::from_utf8(config.to_vec())
}

#[tokio::test]
async fn reader_finds_credentials_in_both_formats() {
    for key in [".dockerconfigjson", ".dockercfg"] {
        let reader = mk_reader(Some(json!({ "data": { key: "e30=" } })));
        assert_eq!(reader.pull_secret("regcred", text).await.unwrap(), "{}");
    }
}

#[tokio::test]
async fn errors_name_the_object_and_the_remedy() {
    let reader = mk_reader(None);
    let error = reader.pull_secret("regcred", text).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the policy server's imagePullSecret regcred in namespace assent-system: there is no such Secret"
    );
    let error = reader.certificate("certs", "ca.crt").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the policy server's source certificate: there is no ConfigMap certs in namespace assent-system"
    );
    let reader = mk_reader(Some(json!({ "data": { "other": "eA==" } })));
    let error = reader.pull_secret("regcred", text).await.unwrap_err();
    let remedy = "kubectl create secret docker-registry";
    assert!(error.to_string().contains(remedy), "{error}");
    let error = reader.certificate("certs", "ca.crt").await.unwrap_err();
    assert!(error.to_string().contains("has no key ca.crt"), "{error}");
}

#[tokio::test]
async fn unreadable_pull_secret_names_the_value_of_the_chart() {
    let (client, _) = scripted(|_| failure(403, "Forbidden"));
    let reader = SourceReader::new(client, "assent-system");
    let error = reader.pull_secret("regcred", text).await.unwrap_err();
    assert!(error.to_string().contains("registrySecrets"), "{error}");
}
