//! Whether the API server reaches the control plane: a policy is created as a dry run, which asks
//! the control plane's own webhooks and stores nothing.

use assent_api::ClusterAdmissionPolicy;
use kube::{Api, Client, api::PostParams};
use serde_json::json;

use super::{Area, Finding, Verdict};

/// Asks the control plane's own webhooks, through the API server.
pub(super) async fn own_webhook(client: &Client) -> Finding {
    let api: Api<ClusterAdmissionPolicy> = Api::all(client.clone());
    let policy = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": "assent-check"},
        "spec": {
            "module": "registry://assent.invalid/check:v1",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "operations": ["CREATE"],
            }],
        },
    });
    let policy = serde_json::from_value(policy).expect("it must be a policy");
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = api.create(&params, &policy).await;
    outcome(answer.map(drop))
}

/// What the answer says about the way to the control plane.
pub(super) fn outcome(answer: Result<(), kube::Error>) -> Finding {
    let text = "the API server reaches the control plane's own webhooks";
    let message = match answer {
        Ok(()) => return Finding::good(Area::Webhooks, text),
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => error.to_string(),
    };
    // Words of the API server: a webhook that answered has denied, one that did not has failed.
    if message.contains("failed calling webhook") {
        let remedy = "check the control plane's pods, its Service and network policies between API servers and port 9443";
        let text = format!("the API server does not reach the control plane: {message}");
        return Finding::new(Area::Webhooks, Verdict::Problem, text, remedy);
    }
    if message.contains("admission webhook") || message.contains("already exists") {
        return Finding::good(Area::Webhooks, text);
    }
    let text = format!("whether the API server reaches the control plane is not known: {message}");
    let remedy = "to check it, you need `create` of clusteradmissionpolicies; nothing is created";
    Finding::new(Area::Webhooks, Verdict::Unknown, text, remedy)
}
