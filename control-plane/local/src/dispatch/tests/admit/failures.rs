//! Evaluators and policies that fail.

use super::*;

#[tokio::test]
async fn bad_patches_are_refused_whatever_the_failure_policy() {
    for (answer, operation, part) in [
        (
            json!({"allowed": true, "patch": [{"op": "remove", "path": "/nope"}]}),
            "CREATE",
            "does not fit the object",
        ),
        (
            json!({"allowed": true, "patch": [{"op": "frobnicate"}]}),
            "CREATE",
            "not a JSON patch",
        ),
        (
            json!({"allowed": true, "patch": [{"op": "add", "path": "/x", "value": 1}]}),
            "DELETE",
            "not supported for this operation",
        ),
    ] {
        let script = Script::new([("p", answer)]);
        let target = cluster("p", json!({"mutating": true, "failurePolicy": "Ignore"}));
        let response = admit(&script, vec![target], &review(operation).to_string()).await;
        assert_eq!(
            (&response["allowed"], &response["status"]["code"]),
            (&json!(false), &json!(500))
        );
        assert!(
            response["status"]["message"]
                .as_str()
                .unwrap()
                .contains(part),
            "{response}"
        );
    }
}

#[tokio::test]
async fn failures_follow_the_failure_policy() {
    for (answer, part) in [
        (
            json!({"raw": "busy", "code": 503}),
            "answered 503 Service Unavailable: busy",
        ),
        (json!({"raw": "not json"}), "failed to read the answer"),
        (
            json!({"raw": "{}"}),
            "expected an admission.k8s.io/v1 AdmissionReview",
        ),
        (
            json!({"allowed": true, "uid": "other"}),
            "expected response.uid \"u-1\", got \"other\"",
        ),
        (json!({"hang": true}), "no answer within 1 s"),
    ] {
        let script = Script::new([("p", answer)]);
        for (policy, allowed) in [("Fail", false), ("Ignore", true)] {
            let target = cluster("p", json!({"failurePolicy": policy, "timeoutSeconds": 1}));
            let response = admit(&script, vec![target], &review("CREATE").to_string()).await;
            assert_eq!(response["allowed"], allowed, "{part} {policy}");
            if !allowed {
                let message = response["status"]["message"].as_str().unwrap();
                assert!(
                    message.starts_with("Internal error occurred: failed calling webhook \"p\": "),
                    "{message}"
                );
                assert!(message.contains(part), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn conditions_that_fail_and_servers_without_evaluators() {
    let script = Script::new([]);
    let condition = json!([{"name": "c", "expression": "object.nope.nope"}]);
    let response = admit(
        &script,
        vec![cluster("p", json!({"matchConditions": condition}))],
        &review("CREATE").to_string(),
    )
    .await;
    assert_eq!(response["status"]["code"], 500);
    let response = admit(
        &script,
        vec![cluster("p", json!({"policyServer": "other"}))],
        &review("CREATE").to_string(),
    )
    .await;
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("no evaluator of PolicyServer other is there"),
        "{message}"
    );
    assert!(script.asked().is_empty());
}

/// An address where nobody listens: it was free a moment ago.
async fn dead_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn replicas_take_turns_and_stand_in_for_each_other() {
    let (one, two) = (Script::new([]), Script::new([]));
    let urls = vec![one.serve().await, dead_url().await, two.serve().await];
    let dispatcher = Dispatcher::new(Urls(urls));
    let table = Table::new([cluster("p", json!({}))]);
    for _ in 0..6 {
        let answer = dispatcher
            .admit(&table, review("CREATE").to_string().as_bytes())
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["response"]["allowed"], true);
    }
    // The dead one's turns go to the next.
    assert_eq!((one.asked().len(), two.asked().len()), (2, 4));
    let dead = Dispatcher::new(Urls(vec![dead_url().await]));
    let answer = dead
        .admit(&table, review("CREATE").to_string().as_bytes())
        .await
        .unwrap();
    assert!(
        String::from_utf8(answer.to_vec())
            .unwrap()
            .contains("failed to call http://127.0.0.1")
    );
}
