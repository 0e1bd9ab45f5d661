//! Replicas that lag, reject or leave: how they are reported, and what waits for them.

use assent_e2e::{
    client::{self, Delta},
    eventually,
    kube::{
        Harness,
        harness::{condition, no_privileged, pod_name},
    },
};
use serde_json::Value;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

fn row<'a>(policy: &'a Value, name: &str) -> &'a Value {
    let rows = policy["status"]["replicas"].as_array();
    let mut rows = rows.into_iter().flatten();
    rows.find(|row| row["name"] == name).unwrap_or(&Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_replica_is_named_and_blocks_the_flip() {
    let (harness, module) = Harness::enforcing(3).await;

    let last = pod_name(2);
    harness.evaluators[2].process.signal(19);
    harness
        .eventually_apply(&no_privileged("np", &module, &["busybox:*"]))
        .await;
    let waiting = |object: &Value| {
        object["metadata"]["generation"] == condition(object, "Programmed")["observedGeneration"]
            && object["status"]["rollout"]["applied"] == 2
            && condition(object, "Programmed")["reason"] == "Reconciling"
    };
    let policy = harness
        .kubectl
        .wait(&["cap", "np"], "waiting for one", waiting)
        .await;
    assert_eq!(policy["status"]["active"]["generation"], 1);
    assert_eq!(condition(&policy, "Enforced")["status"], "False");
    let message = condition(&policy, "Programmed")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains(&last), "{message}");
    assert_eq!(row(&policy, &last)["generation"], 1);
    assert_eq!(row(&policy, &pod_name(0))["generation"], 2);

    harness.evaluators[2].process.signal(18);
    let policy = harness.enforced("np").await;
    assert_eq!(policy["status"]["active"]["generation"], 2);
    harness.try_pod("a", true).await.expect("it is exempt now");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejecting_replica_reports_the_reason_and_blocks_the_flip() {
    let mut harness = Harness::start(2).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    let scale = ["scale", "policyserver", "default", "--replicas=3"];
    harness.kubectl.run(&scale).await;

    // The third replica is a scripted client.
    let pod = pod_name(2);
    harness.system.wait_there(&["pod", &pod]).await;
    let token = harness.system.create_token(&pod).await;
    let ca = std::fs::read_to_string(harness.ca().await).expect("the bundle must be there");
    let url = format!("https://{}", harness.planes[0].discovery);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ca))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(url).expect("it must be a URL");
    let endpoint = endpoint.tls_config(tls).expect("it must be a bundle");
    let channel = endpoint.connect().await.expect("it must answer");
    let first = client::first(client::node_of("default", &pod));
    let mut replica = Delta::open_as(channel, first, Some(&token.token))
        .await
        .expect("a pod of the server must be let in");
    let empty = replica.next().await;
    replica.ack(&empty).await;
    harness.system.pod_ready(&pod, [127, 0, 0, 1].into()).await;

    harness
        .eventually_apply(&no_privileged("np", &module, &[]))
        .await;
    let offer = replica.next().await;
    let revision = offer.policies[0].revision.clone();
    replica.reject(&offer, &[&revision]).await;
    let refused = |object: &Value| {
        condition(object, "Programmed")["reason"] == "Rejected"
            && object["status"]["rollout"]["applied"] == 2
    };
    let policy = harness
        .kubectl
        .wait(&["cap", "np"], "rejected by one", refused)
        .await;
    assert_eq!(policy["status"]["rollout"]["rejected"], 1);
    assert_eq!(policy["status"]["active"], Value::Null);
    let ready = &row(&policy, &pod)["conditions"][0];
    assert_eq!(ready["status"], "False");
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(message.contains("no such setting"), "{message}");
    assert_eq!(
        row(&policy, &pod_name(0))["conditions"][0]["status"],
        "True"
    );

    // It thinks better of it: the newest nonce may be answered again.
    replica.ack(&offer).await;
    let flip = replica.next().await;
    replica.ack(&flip).await;
    let policy = harness.enforced("np").await;
    assert_eq!(policy["status"]["rollout"]["applied"], 3);
    drop(replica);
    harness.evaluators.truncate(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_pod_does_not_block_the_flip() {
    let (mut harness, module) = Harness::enforcing(2).await;
    drop(harness.evaluators.pop());
    harness.balance();
    let scale = ["scale", "policyserver", "default", "--replicas=1"];
    harness.kubectl.run(&scale).await;
    harness.system.wait_gone(&["pod", &pod_name(1)]).await;
    let policy = harness
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    eventually("one replica is wanted", async || {
        let policy = harness.kubectl.get(&["cap", "np"]).await;
        policy["status"]["rollout"]["desired"] == 1
    })
    .await;
    assert_eq!(policy["status"]["active"]["generation"], 2);
    // The last one can't be scaled away while policies protect.
    let zero = ["scale", "policyserver", "default", "--replicas=0"];
    let refused = harness
        .kubectl
        .attempt(&zero)
        .await
        .expect_err("it must be refused");
    assert!(refused.contains("np"), "{refused}");
    let delete = ["delete", "policyserver", "default"];
    harness
        .kubectl
        .attempt(&delete)
        .await
        .expect_err("the default server stays");
}
