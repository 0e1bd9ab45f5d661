//! An evaluator beside the containers of somebody else's pod.

use assent_e2e::{http, kube::api};
use serde_json::{Value, json};

use crate::{
    installation::{
        EVALUATORS, Installation, POLICY, SHOP, is_current, items, name, within_patience,
    },
    probe::Probe,
};

/// It asked by a label, got its evaluator first of all, and is answered by it; it follows edits,
/// is named, and never waited for.
pub(crate) async fn beside_a_container_of_a_user(site: &Installation, probe: &Probe) {
    let what = "an evaluator runs beside a container";
    probe.through(what, &[], serve(site)).await;
}

async fn serve(site: &Installation) {
    site.kubectl.apply(&deployment().to_string()).await;
    let path = format!("/apis/apps/v1/namespaces/{SHOP}/deployments/web");
    let available = |object: &Value| object["status"]["availableReplicas"] == 1;
    site.wait(&path, "available", available).await;

    let path = format!("/api/v1/namespaces/{SHOP}/pods?labelSelector=app%3Dweb");
    let pods = api::get(&site.client, &path).await;
    let [pod] = items(&pods) else {
        panic!("there must be one pod: {pods:#}");
    };
    let first = &pod["spec"]["initContainers"][0];
    assert_eq!(first["name"], "evaluator", "{pod:#}");
    assert_eq!(first["restartPolicy"], "Always");
    assert_eq!(first["image"], "localhost/assent-evaluator:dev");

    let other = "localhost/busybox:1";
    let refusal = review(site, pod, other, true).await;
    let refusal = refusal.expect("it must answer");
    assert_eq!(refusal["allowed"], false, "{refusal}");
    let words = refusal["status"]["message"].to_string();
    assert!(
        words.contains("privileged containers are not allowed"),
        "{words}"
    );
    let taken = review(site, pod, other, false).await;
    let taken = taken.expect("it must answer");
    assert_eq!(taken["allowed"], true, "{taken}");

    site.edit("example.com/beside:*").await;
    let policy = site.enforced().await;
    let own = site.pods(EVALUATORS).await.len();
    assert_eq!(policy["status"]["rollout"]["desired"], own);
    let follows = async || {
        let answer = review(site, pod, "example.com/beside:1", true).await;
        answer.is_ok_and(|answer| answer["allowed"] == true)
    };
    within_patience("it follows the edit", follows).await;
    let name = format!("{}.{SHOP}", name(pod));
    let listed = async || is_current(&site.server().await, &name);
    within_patience("its row says that it follows", listed).await;
    let server = site.server().await;
    assert_eq!(selected(site, &server).await, own);
}

/// How many pods an autoscaler of the PolicyServer counts.
async fn selected(site: &Installation, server: &Value) -> usize {
    let selector = server["status"]["selector"].as_str();
    let selector = selector.expect("it must have a selector");
    let selector = selector.replace('/', "%2F").replace('=', "%3D");
    let path = format!("/api/v1/pods?labelSelector={selector}");
    items(&api::get(&site.client, &path).await).len()
}

fn deployment() -> Value {
    let labels = json!({"app": "web", "policies.assent.dev/policy-server": "default"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "web",
                        "image": "localhost/busybox:1",
                        "imagePullPolicy": "Never",
                        "args": ["-c", "exec sleep infinity"],
                    }],
                },
            },
        },
    })
}

/// Asks the pod itself, at the path that the webhook names. It may not be there yet with what
/// the others have.
async fn review(
    site: &Installation,
    pod: &Value,
    image: &str,
    privileged: bool,
) -> Result<Value, String> {
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hook = api::get(&site.client, &format!("{hooks}/assent.cluster.{POLICY}")).await;
    let path = hook.pointer("/webhooks/0/clientConfig/service/path");
    let path = path.and_then(Value::as_str).expect("it must have a path");
    let mut review = http::pod();
    review["request"]["object"]["spec"]["containers"] = json!([{
        "name": "c", "image": image, "securityContext": {"privileged": privileged},
    }]);
    let proxy = format!(
        "/api/v1/namespaces/{SHOP}/pods/https:{}:8443/proxy",
        name(pod)
    );
    match api::ask(&site.client, "POST", &format!("{proxy}{path}"), &review).await {
        (200, answer) => Ok(answer["response"].clone()),
        (code, words) => Err(format!("{code} {words}")),
    }
}
