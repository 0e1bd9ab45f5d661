//! The review port over plain HTTP.

use std::time::Duration;

use assent_core::{Mode, RouteState::*};
use assent_evaluator::Handle;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::{
    guests,
    http::{Client, get, pod, post, post_bytes, revision},
    peer::{Peer, Stream},
    set::{Revision, delta, full, snapshot},
    start_with,
};

/// An evaluator that serves `revisions`, all active.
async fn serving(revisions: &[&Revision]) -> (Handle, Client, Peer, Stream) {
    let mut peer = Peer::start().await;
    for revision in revisions {
        peer.serve(revision);
    }
    let evaluator = start_with(&peer, |_| {}).await;
    let mut stream = peer.stream().await;
    let all: Vec<_> = revisions
        .iter()
        .map(|revision| (*revision, Active))
        .collect();
    stream.applied(full(&snapshot(&all), "n1")).await;
    let client = Client::plain(evaluator.listen_addr()).await;
    (evaluator, client, peer, stream)
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_verdict_becomes_an_admission_review() {
    let one = Revision::new("a", 1, &guests::deny("not today"));
    let (_evaluator, mut client, _peer, _stream) = serving(&[&one]).await;
    let (status, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!(
        (&response["uid"], &response["allowed"]),
        (&json!("u-1"), &json!(false))
    );
    assert_eq!(response["status"]["message"], "not today");
    assert_eq!(response["auditAnnotations"]["revision"], one.path());
    assert_eq!(revision(&answer), one.path());
}

#[tokio::test]
async fn a_message_replaces_the_policys_which_becomes_a_cause() {
    let mut one = Revision::new("a", 1, &guests::deny("technical words"));
    one.message = "ask the platform team";
    let (_evaluator, mut client, _peer, _stream) = serving(&[&one]).await;
    let (_, answer) = client.review(&format!("/validate/{}", one.path())).await;
    let status = &answer["response"]["status"];
    assert_eq!(status["message"], "ask the platform team");
    assert_eq!(status["details"]["causes"][0]["message"], "technical words");
}

#[tokio::test]
async fn a_mutation_is_a_patch() {
    let mut one = Revision::new("a", 1, &guests::mutate());
    one.mutating = true;
    let two = Revision::new("b", 1, &guests::mutate());
    let (_evaluator, mut client, _peer, _stream) = serving(&[&one, &two]).await;
    let (_, answer) = client.review(&format!("/validate/{}", one.path())).await;
    let response = &answer["response"];
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&json!(true), &json!("JSONPatch"))
    );
    let patch = BASE64_STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(
        patch,
        json!([{"op": "add", "path": "/labelled", "value": true}])
    );
    // Who may not mutate denies instead.
    let (_, answer) = client.review(&format!("/validate/{}", two.path())).await;
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(answer["response"]["patch"], Value::Null);
}

#[tokio::test]
async fn change_that_was_undone_is_a_denial() {
    let mut one = Revision::new("a", 1, &guests::mutate());
    one.mutating = true;
    let (_evaluator, mut client, peer, mut stream) = serving(&[&one]).await;
    let (_, answer) = client.review(&format!("/confirm/{}", one.path())).await;
    let response = &answer["response"];
    assert_eq!(
        (&response["allowed"], &response["patch"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(response["status"]["code"], 403);
    let message = response["status"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "policy cluster/a (revision cluster/a/1-5f2a9c1e) would change the object once more (add /labelled): something changed it after the policy"
    );
    assert_eq!(revision(&answer), one.path());
    // What is as the policy wants it passes.
    let mut labelled = pod("CREATE");
    labelled["request"]["object"] = json!({"kind": "Pod", "labelled": true});
    let confirm = post(&format!("/confirm/{}", one.path()), &labelled);
    let (_, answer) = client.send(confirm).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    // The object may have been changed by another revision, which would not change it again.
    let mut two = Revision::new("a", 2, &guests::accept());
    two.mutating = true;
    peer.serve(&two);
    let before = snapshot(&[(&one, Active)]);
    let both = snapshot(&[(&one, Active), (&two, Active)]);
    stream.applied(delta(&before, &both, "n2")).await;
    let (_, answer) = client.review(&format!("/confirm/{}", one.path())).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    let after = snapshot(&[(&one, Active)]);
    stream.applied(delta(&both, &after, "n3")).await;
    let (_, answer) = client.review(&format!("/confirm/{}", one.path())).await;
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
}

#[tokio::test]
async fn confirming_denies_what_the_policy_denies() {
    let mut deny = Revision::new("a", 1, &guests::deny("no"));
    deny.mutating = true;
    let mut monitor = Revision::new("b", 1, &guests::mutate());
    (monitor.mode, monitor.mutating) = (Mode::Monitor, true);
    let (_evaluator, mut client, _peer, _stream) = serving(&[&deny, &monitor]).await;
    let (_, answer) = client.review(&format!("/confirm/{}", deny.path())).await;
    assert_eq!(answer["response"]["status"]["message"], "no");
    let (_, answer) = client.review(&format!("/confirm/{}", monitor.path())).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
}

#[tokio::test]
async fn monitor_mode_allows_and_audit_reports_the_verdict() {
    let mut deny = Revision::new("a", 1, &guests::deny("no"));
    deny.mode = Mode::Monitor;
    let mut mutate = Revision::new("b", 1, &guests::mutate());
    (mutate.mode, mutate.mutating) = (Mode::Monitor, true);
    let mut crash = Revision::new("c", 1, &guests::crash_later());
    crash.mode = Mode::Monitor;
    let (evaluator, mut client, _peer, _stream) = serving(&[&deny, &mutate, &crash]).await;
    for one in [&deny, &mutate, &crash] {
        let (_, answer) = client.review(&format!("/validate/{}", one.path())).await;
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["patch"], Value::Null);
        assert_eq!(revision(&answer), one.path());
    }
    let (_, answer) = client.review(&format!("/audit/{}", deny.path())).await;
    assert_eq!(answer["response"]["allowed"], false);
    let (_, answer) = client.review(&format!("/audit/{}", mutate.path())).await;
    assert!(answer["response"]["patch"].is_string());
    let (_, answer) = client.review(&format!("/audit/{}", crash.path())).await;
    assert_eq!(answer["response"]["status"]["code"], 500);
    let mut admin = Client::plain(evaluator.admin_addr().unwrap()).await;
    let (_, text) = admin.send(get("/metrics")).await;
    let counted =
        r#"assent_evaluations_total{policy="cluster/a",mode="monitor",verdict="denied"} 2"#;
    assert!(
        text.as_str().unwrap().lines().any(|line| line == counted),
        "{text}"
    );
}

#[tokio::test]
async fn a_policy_that_does_not_end_fails_only_its_own_request() {
    let mut slow = Revision::new("slow", 1, &guests::loop_later());
    slow.timeout_ms = 100;
    let fast = Revision::new("fast", 1, &guests::accept());
    let (evaluator, mut client, _peer, _stream) = serving(&[&slow, &fast]).await;
    let path = format!("/validate/{}", slow.path());
    let hogs: Vec<_> = (0..64)
        .map(|_| {
            let (addr, path) = (evaluator.listen_addr(), path.clone());
            tokio::spawn(async move { Client::plain(addr).await.review(&path).await })
        })
        .collect();
    for _ in 0..20 {
        let (status, answer) = client.review(&format!("/validate/{}", fast.path())).await;
        assert_eq!(
            (status.as_u16(), &answer["response"]["allowed"]),
            (200, &json!(true))
        );
    }
    for hog in hogs {
        let (status, answer) = hog.await.unwrap();
        assert_eq!(status.as_u16(), 200);
        assert_eq!(answer["response"]["status"]["code"], 500);
    }
}

#[tokio::test]
async fn policies_that_become_slow_leave_threads_for_others() {
    const THREADS: usize = 2;
    let slow = ["one", "two", "three"].map(|name| {
        let mut slow = Revision::new(name, 1, &guests::loop_later());
        slow.timeout_ms = 6_000;
        slow
    });
    let fast = Revision::new("fast", 1, &guests::accept());
    let paths = slow
        .each_ref()
        .map(|slow| format!("/validate/{}", slow.path()));
    let fast_path = format!("/validate/{}", fast.path());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let [one, two, three] = slow;
    let served = runtime.spawn(async move { serving(&[&one, &two, &three, &fast]).await });
    let (evaluator, _, _peer, _stream) = served.await.unwrap();
    let small = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": { "uid": "u-1" } });
    let mut client = Client::plain(evaluator.listen_addr()).await;
    for path in paths.iter().chain([&fast_path]) {
        for _ in 0..10 {
            let (_, answer) = client.send(post(path, &small)).await;
            assert_eq!(answer["response"]["allowed"], true, "{answer}");
        }
    }
    let hogs = paths.map(|path| {
        let addr = evaluator.listen_addr();
        tokio::spawn(async move { Client::plain(addr).await.review(&path).await })
    });
    // Time to begin; if they have not, less is tested.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..20 {
        let (_, answer) = client.review(&fast_path).await;
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
    assert!(hogs.iter().all(|hog| !hog.is_finished()));
    for hog in hogs {
        let (status, answer) = hog.await.unwrap();
        assert_eq!(status.as_u16(), 200);
        assert_eq!(answer["response"]["status"]["code"], 500);
    }
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_request_that_would_wait_past_its_deadline_is_refused() {
    let mut slow = Revision::new("slow", 1, &guests::loop_later());
    slow.timeout_ms = 500;
    let (evaluator, mut client, _peer, _stream) = serving(&[&slow]).await;
    let path = format!("/validate/{}", slow.path());
    // More than may run at once, again and again: some of them wait.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let hog = || {
        let (addr, path) = (evaluator.listen_addr(), format!("{path}?timeout=30s"));
        tokio::spawn(async move {
            let mut client = Client::plain(addr).await;
            loop {
                client.review(&path).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    };
    let hogs: Vec<_> = (0..4 * cores + 16).map(|_| hog()).collect();
    let refused = loop {
        let (status, answer) = client.review(&format!("{path}?timeout=0.1s")).await;
        // A request that was not queued is evaluated, and times out.
        if status == StatusCode::SERVICE_UNAVAILABLE {
            break answer;
        }
    };
    assert!(error(&refused).contains("past its deadline"), "{refused}");
    for hog in hogs {
        hog.abort();
    }
}

#[tokio::test]
async fn a_policy_without_a_verdict_denies_with_policy_and_reason() {
    let one = Revision::new("a", 1, &guests::crash_later());
    let (_evaluator, mut client, _peer, _stream) = serving(&[&one]).await;
    let (status, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status, StatusCode::OK);
    let response = &answer["response"];
    assert_eq!(
        (&response["allowed"], &response["uid"]),
        (&json!(false), &json!("u-1"))
    );
    assert_eq!(response["status"]["code"], 500);
    let message = response["status"]["message"].as_str().unwrap();
    for part in ["cluster/a", &one.path(), "trap"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(revision(&answer), one.path());
}

#[tokio::test]
async fn an_invalid_review_gets_a_clear_error() {
    let one = Revision::new("a", 1, &guests::accept());
    let (evaluator, _, _peer, _stream) = serving(&[&one]).await;
    let path = format!("/validate/{}", one.path());
    let with = |change: fn(&mut Value)| {
        let mut review = pod("CREATE");
        change(&mut review);
        post(&path, &review)
    };
    let no_type = Request::post(&path)
        .header("host", "l")
        .body(Full::default())
        .unwrap();
    let text = Request::post(&path)
        .header("host", "l")
        .header("content-type", "text/plain");
    let deep = format!(r#"{{"request":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let cases = [
        (get(&path), 405, "POST"),
        (post("/elsewhere", &pod("CREATE")), 404, "no such endpoint"),
        (post("/validate/", &pod("CREATE")), 404, "no such endpoint"),
        (no_type, 415, "application/json"),
        (text.body(Full::default()).unwrap(), 415, "text/plain"),
        (post_bytes(&path, "{".into()), 400, "failed to parse"),
        (post_bytes(&path, "".into()), 400, "failed to parse"),
        (
            post_bytes(&path, "\u{0}\u{1}".into()),
            400,
            "failed to parse",
        ),
        (post_bytes(&path, deep.into()), 400, "nests deeper"),
        (
            post_bytes(&path, vec![b' '; (7 << 20) + 1].into()),
            413,
            "larger than",
        ),
        (
            with(|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            400,
            "v1beta1",
        ),
        (with(|r| r["kind"] = json!("Pod")), 400, "AdmissionReview"),
        (with(|r| r["request"] = Value::Null), 400, "no request"),
        (with(|r| r["request"]["uid"] = json!("")), 400, "no uid"),
        (
            with(|r| drop(r["request"].as_object_mut().unwrap().remove("uid"))),
            400,
            "no uid",
        ),
        (
            with(|r| drop(r.as_object_mut().unwrap().remove("request"))),
            400,
            "no request",
        ),
        (with(|r| r["request"] = json!([1])), 400, "failed to parse"),
    ];
    for (request, status, words) in cases {
        let mut client = Client::plain(evaluator.listen_addr()).await;
        let (found, answer) = client.send(request).await;
        assert_eq!(found.as_u16(), status, "{words}: {answer}");
        assert!(error(&answer).contains(words), "{words}: {answer}");
    }
}

#[tokio::test]
async fn unloaded_paths_get_503_and_unknown_paths_404() {
    let five = Revision::new("a", 5, &guests::deny("five"));
    let (_evaluator, mut client, peer, mut stream) = serving(&[&five]).await;
    // Older: answered by the active revision.
    let (status, answer) = client.review("/validate/cluster/a/3-5f2a9c1e").await;
    assert_eq!(
        (status.as_u16(), revision(&answer)),
        (200, five.path().as_str())
    );
    // Newer: not loaded yet.
    let (status, answer) = client.review("/validate/cluster/a/6-5f2a9c1e").await;
    assert_eq!(status.as_u16(), 503, "{answer}");
    // Another object of that name, another policy, no name at all: not known.
    for path in [
        "cluster/a/3-00000000",
        "cluster/b/1-5f2a9c1e",
        "a",
        "cluster/a/x",
        "../a",
    ] {
        let (status, answer) = client.review(&format!("/validate/{path}")).await;
        assert_eq!(status.as_u16(), 404, "{path}: {answer}");
        assert!(error(&answer).contains("no policy answers"), "{answer}");
    }
    // Never across a change of `mutating`.
    let mut six = Revision::new("a", 6, &guests::mutate());
    six.mutating = true;
    peer.serve(&six);
    let (before, after) = (snapshot(&[(&five, Active)]), snapshot(&[(&six, Active)]));
    stream.applied(delta(&before, &after, "n2")).await;
    let (status, answer) = client.review("/validate/cluster/a/3-5f2a9c1e").await;
    assert_eq!(status.as_u16(), 503);
    assert!(error(&answer).contains("mutates"), "{answer}");
}

#[tokio::test]
async fn raw_documents_are_evaluated() {
    let one = Revision::new("a", 1, &guests::accept());
    let (_evaluator, mut client, _peer, _stream) = serving(&[&one]).await;
    let path = format!("/validate_raw/{}", one.path());
    let (status, answer) = client
        .send(post(&path, &json!({"request": {"uid": "r", "any": 1}})))
        .await;
    assert_eq!(status.as_u16(), 200);
    assert_eq!(answer["response"]["uid"], "r");
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer.get("kind"), None);
    let (status, _) = client.send(post(&path, &json!({"no": "request"}))).await;
    assert_eq!(status.as_u16(), 400);
}

#[tokio::test]
async fn a_draining_evaluator_answers_with_connection_close() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let drain =
        |config: &mut assent_evaluator::Config| config.timings.drain = Duration::from_secs(2);
    let evaluator = start_with(&peer, drain).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    let (addr, admin) = (evaluator.listen_addr(), evaluator.admin_addr().unwrap());
    let shutdown = tokio::spawn(evaluator.shutdown());
    crate::eventually("not ready", async || {
        let mut admin = Client::plain(admin).await;
        admin.send(get("/readyz")).await.0 == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    // New connections are answered, and closed.
    let mut client = Client::plain(addr).await;
    let path = format!("/validate/{}", one.path());
    let response = client.exchange(post(&path, &pod("CREATE"))).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["connection"], "close");
    // The stream is kept meanwhile.
    stream
        .applied(delta(
            &snapshot(&[(&one, Active)]),
            &snapshot(&[(&one, Retired)]),
            "n2",
        ))
        .await;
    shutdown.await.unwrap();
    stream.ended().await;
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
}
