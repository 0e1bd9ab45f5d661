#![allow(clippy::unwrap_used)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::*;
use crate::testing::{Recorded, failure, scripted};

const PATH: &str = "/apis/policies.assent.dev/v1alpha1/clusteradmissionpolicies/a";

fn mk_policy(uid: &str, version: u64, generation: i64) -> (u16, Value) {
    let policy = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {
            "name": "a", "uid": uid, "resourceVersion": version.to_string(),
            "generation": generation,
            "annotations": { assent_api::ROLLBACK_ANNOTATION: "previous", "theirs": "stays" },
        },
        "spec": { "module": "new" },
    });
    (200, policy)
}

/// Rolls the policy as it was at generation 7 back against an API server with these answers.
async fn roll_back_against(
    answers: impl IntoIterator<Item = (u16, Value)>,
) -> (Result<DynamicObject, Error>, Vec<Recorded>) {
    let answers: VecDeque<(u16, Value)> = answers.into_iter().collect();
    let answers = Arc::new(Mutex::new(answers));
    let (client, requests) = scripted(move |_| {
        let answer = answers.lock().unwrap().pop_front();
        answer.expect("no further request is expected")
    });
    let meta = Meta {
        name: "a".into(),
        uid: "u".into(),
        resource_version: "10".into(),
        generation: 7,
        ..Meta::default()
    };
    let spec = json!({ "module": "old" });
    let result = super::roll_back(&client, Kind::ClusterPolicies, &meta, Some(&spec)).await;
    (result, requests.take_all())
}

fn lines(requests: &[Recorded]) -> Vec<&str> {
    let lines = requests.iter().map(|r| r.line.as_str());
    lines.map(|line| line.strip_suffix(PATH).unwrap()).collect()
}

#[tokio::test]
async fn rollback_survives_a_concurrent_status_write() {
    let answers = [
        mk_policy("u", 10, 7),
        failure(409, "Conflict"),
        mk_policy("u", 11, 7),
        mk_policy("u", 12, 8),
    ];
    let (result, requests) = roll_back_against(answers).await;
    assert_eq!(result.unwrap().metadata.generation, Some(8));
    assert_eq!(lines(&requests), ["GET ", "PUT ", "GET ", "PUT "]);
    let written = &requests[3].body;
    assert_eq!(written["metadata"]["resourceVersion"], "11");
    assert_eq!(written["spec"]["module"], "old");
    let annotations = written["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["theirs"]);
}

#[tokio::test]
async fn rollback_survives_an_error_of_the_api_server() {
    let answers = [
        failure(503, "ServiceUnavailable"),
        mk_policy("u", 10, 7),
        mk_policy("u", 11, 8),
    ];
    let (result, _) = roll_back_against(answers).await;
    assert!(result.is_ok());
}

#[tokio::test]
async fn rollback_fails_if_the_spec_changed() {
    let answers = [
        mk_policy("u", 10, 7),
        failure(409, "Conflict"),
        mk_policy("u", 11, 8),
    ];
    let (result, requests) = roll_back_against(answers).await;
    assert!(matches!(result, Err(Error::Changed { found: 8, .. })));
    assert_eq!(lines(&requests), ["GET ", "PUT ", "GET "]);
}

#[tokio::test]
async fn rollback_fails_if_the_policy_was_created_again() {
    let (result, requests) = roll_back_against([mk_policy("other", 11, 7)]).await;
    assert!(matches!(result, Err(Error::Replaced)));
    assert_eq!(lines(&requests), ["GET "]);
}

#[tokio::test]
async fn rollback_fails_if_the_api_server_refuses_the_spec() {
    let answers = [mk_policy("u", 10, 7), failure(422, "Invalid")];
    let (result, _) = roll_back_against(answers).await;
    assert!(result.is_err());
}
