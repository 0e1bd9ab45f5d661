//! The discovery port as people use it: by grpcurl and by the `assent` command, over TLS, each with
//! a token of a service account.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use assent_e2e::{
    eventually,
    kube::{AUDIENCE, Harness, harness::no_privileged},
    process::{program, text},
    tools::tool,
};
use serde_json::{Value, json};

const STATUS: &str = "assent.discovery.v1.ClientStatusService/FetchClientStatus";
const FETCH: &str = "assent.discovery.v1.PolicyDiscoveryService/FetchPolicies";
const UNDO: &str = "assent.discovery.v1.RolloutService/Undo";

/// A user of the discovery port.
struct Caller {
    token: Option<PathBuf>,
    ca: PathBuf,
    address: String,
}

// === impl Caller ===

impl Caller {
    fn grpcurl(&self, args: &[&str], method: &[&str]) -> Output {
        let mut command = Command::new(tool("ASSENT_GRPCURL"));
        command.arg("-cacert").arg(&self.ca).args(args);
        if let Some(token) = &self.token {
            let token = fs::read_to_string(token).unwrap();
            command.args(["-H", &format!("authorization: Bearer {token}")]);
        }
        command.arg(&self.address).args(method).output().unwrap()
    }

    fn call(&self, method: &str, request: &Value) -> Result<Value, String> {
        let output = self.grpcurl(&["-d", &request.to_string()], &[method]);
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
            false => Err(text(&output)),
        }
    }

    fn assent(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("assent"));
        command
            .args(args)
            .args(["--server", &format!("https://{}", self.address)])
            .arg("--ca")
            .arg(&self.ca);
        if let Some(token) = &self.token {
            command.arg("--token-file").arg(token);
        }
        command.output().unwrap()
    }
}

#[track_caller]
fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Makes service accounts and who may what: `reader` looks, `writer` goes back too, `nobody`
/// has no rights.
async fn make_accounts(harness: &Harness) {
    for (name, verbs) in [("reader", "get"), ("writer", "get,update"), ("nobody", "")] {
        let kubectl = &harness.kubectl;
        kubectl.run(&["create", "serviceaccount", name]).await;
        if verbs.is_empty() {
            continue;
        }
        let verbs = format!("--verb={verbs}");
        let resource = "--resource=policyservers.policies.assent.dev/discovery";
        kubectl
            .run(&["create", "clusterrole", name, &verbs, resource])
            .await;
        let account = format!("--serviceaccount=default:{name}");
        let role = format!("--clusterrole={name}");
        kubectl
            .run(&["create", "clusterrolebinding", name, &role, &account])
            .await;
    }
}

async fn caller(harness: &Harness, dir: &Path, account: &str, audience: &str) -> Caller {
    let create = ["create", "token", account, "--audience", audience];
    let token = harness.kubectl.run(&create).await;
    let file = dir.join(format!("{account}-{audience}"));
    fs::write(&file, token.trim()).unwrap();
    Caller {
        token: Some(file),
        ca: harness.ca().await,
        address: harness.planes[0].discovery.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_needs_permission() {
    let (harness, _) = Harness::enforcing(1).await;
    make_accounts(&harness).await;
    let dir = tempfile::tempdir().unwrap();
    let reader = caller(&harness, dir.path(), "reader", AUDIENCE).await;

    let listed = text(&reader.grpcurl(&[], &["list"]));
    for service in [
        "PolicyDiscoveryService",
        "ClientStatusService",
        "RolloutService",
    ] {
        let service = format!("assent.discovery.v1.{service}");
        assert!(listed.contains(&service), "{listed}");
    }
    let status = reader.call(STATUS, &json!({})).unwrap();
    assert_eq!(
        status["replicas"][0]["node"]["id"],
        "policy-server-default-0"
    );
    assert_eq!(status["replicas"][0]["state"], "REPLICA_STATE_CURRENT");
    assert_eq!(status["policies"][0]["policy"], "cluster/np");
    let fetched = reader.call(FETCH, &json!({})).unwrap();
    assert_eq!(fetched["versionInfo"], status["versionInfo"]);
    assert_eq!(fetched["policies"].as_array().map(Vec::len), Some(1));

    // Looking is not going back.
    let undo = json!({"policy": "cluster/np"});
    let refused = reader.call(UNDO, &undo).unwrap_err();
    assert!(refused.contains("PermissionDenied"), "{refused}");

    let nobody = caller(&harness, dir.path(), "nobody", AUDIENCE).await;
    let elsewhere = caller(&harness, dir.path(), "reader", "elsewhere").await;
    let without = Caller {
        token: None,
        ca: reader.ca.clone(),
        address: reader.address.clone(),
    };
    for method in [STATUS, FETCH] {
        for (who, code) in [
            (&nobody, "PermissionDenied"),
            (&elsewhere, "Unauthenticated"),
            (&without, "Unauthenticated"),
        ] {
            let refused = who.call(method, &json!({})).unwrap_err();
            assert!(refused.contains(code), "{method}: {refused}");
            assert!(!refused.contains("snapshot"), "{refused}");
        }
    }
    // An authority that did not sign the control plane's certificate.
    let other = tempfile::tempdir().unwrap();
    assent_e2e::tls::write_certificates(other.path());
    let deceived = Caller {
        token: None,
        ca: other.path().join("ca.pem"),
        address: reader.address.clone(),
    };
    let refused = deceived.call(STATUS, &json!({})).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cli_shows_state_and_rolls_back() {
    let (harness, module) = Harness::enforcing(1).await;
    harness
        .enforce(&no_privileged("np", &module, &["busybox:*"]))
        .await;
    harness.try_pod("a", true).await.expect("it is exempt");
    make_accounts(&harness).await;
    let dir = tempfile::tempdir().unwrap();
    let reader = caller(&harness, dir.path(), "reader", AUDIENCE).await;
    let writer = caller(&harness, dir.path(), "writer", AUDIENCE).await;
    let nobody = caller(&harness, dir.path(), "nobody", AUDIENCE).await;

    let status = answer(&reader.assent(&["status", "-o", "json"]));
    assert_eq!(
        status["policies"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    let one = reader.assent(&["status", "np"]);
    assert!(one.status.success(), "{}", text(&one));
    let replicas = text(&reader.assent(&["replicas"]));
    assert!(replicas.contains("policy-server-default-0"), "{replicas}");
    let history = answer(&reader.assent(&["rollout", "history", "np", "-o", "json"]));
    let history = history.to_string();
    assert!(history.contains("\"Active\""), "{history}");

    for (who, args) in [
        (&nobody, &["status"][..]),
        (&reader, &["rollout", "undo", "np"][..]),
    ] {
        let refused = who.assent(args);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        let refused = text(&refused);
        assert!(refused.contains("policyservers/discovery"), "{refused}");
    }

    let undone = answer(&writer.assent(&["rollout", "undo", "np", "-o", "json"]));
    assert_eq!(undone["fromGeneration"], 1, "{undone}");
    assert_eq!(undone["newGeneration"], 3, "{undone}");
    let followed = reader.assent(&["rollout", "status", "np"]);
    assert!(followed.status.success(), "{}", text(&followed));
    eventually("it is refused again", async || {
        harness.try_pod("a", true).await.is_err()
    })
    .await;
}
