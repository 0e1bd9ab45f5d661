//! Users: edits, rollbacks, scaling, and a second policy that comes, breaks and goes.

use std::time::Instant;

use assent_e2e::kube::{api, harness::no_privileged};
use serde_json::{Value, json};

use super::{
    Soak,
    history::{What, exempt},
    rng::Rng,
};
use crate::installation::{Installation, POLICY, exempting, module, policy_path};

/// A policy that is not under load.
pub(super) const SECOND: &str = "second";

/// Edits in a burst; ten within a moment, of which most are superseded at once.
const BURST: usize = 10;

impl Soak {
    pub(super) async fn people(&self, seed: u64, end: Instant) {
        let mut rng = Rng::new(seed ^ 0x7065_6f70_6c65);
        while Instant::now() < end {
            rng.pause(500, 4_000).await;
            let done = match rng.below(100) {
                0..=54 => self.site.soak_edit().await,
                55..=64 => {
                    for _ in 0..BURST {
                        self.site.soak_edit().await;
                    }
                    "edits ten times".into()
                }
                65..=76 => self.roll_back().await,
                77..=84 => self.put_second(&module()).await,
                85..=89 => {
                    self.put_second("http://modules.shop.svc.cluster.local/none")
                        .await
                }
                90..=93 => self.delete_second().await,
                _ => {
                    let replicas = 2 + rng.below(3);
                    self.site.scale(replicas).await;
                    format!("scales to {replicas}")
                }
            };
            self.history.add(What::User(done));
        }
    }

    async fn roll_back(&self) -> String {
        let to = json!({"metadata": {"annotations": {
            assent_api::ROLLBACK_ANNOTATION: "previous",
        }}});
        // The control plane may be away; the annotation is answered later or refused now.
        let answer = api::try_ask(&self.site.client, "PATCH", &policy_path(), &to).await;
        format!("rolls {POLICY} back: {:?}", answer.map(|(code, _)| code))
    }

    async fn put_second(&self, module: &str) -> String {
        let mut policy = no_privileged(SECOND, module, &[]);
        // It must not decide about the pods of the load.
        let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}});
        policy["spec"]["namespaceSelector"] = selector;
        let applied = self.site.kubectl.try_apply(&policy.to_string()).await;
        format!("applies {SECOND} with {module}: {}", applied.is_ok())
    }

    async fn delete_second(&self) -> String {
        let delete = [
            "delete",
            "cap",
            SECOND,
            "--ignore-not-found",
            "--wait=false",
        ];
        let deleted = self.site.kubectl.attempt(&delete).await;
        format!("deletes {SECOND}: {}", deleted.is_ok())
    }
}

impl Installation {
    /// Makes a content of the policy that no earlier edit made.
    pub(super) async fn soak_edit(&self) -> String {
        let content = self.next_content();
        let edit = exempting(&exempt(content));
        let answer = api::try_ask(&self.client, "PATCH", &policy_path(), &edit).await;
        let generation = match &answer {
            Ok((200, object)) => object["metadata"]["generation"].clone(),
            _ => Value::Null,
        };
        format!("edits: content {content}, generation {generation}")
    }

    pub(super) async fn scale(&self, replicas: u64) {
        let scale = json!({"spec": {"replicas": replicas}});
        let path = "/apis/policies.assent.dev/v1alpha1/policyservers/default";
        // Refused only while nobody answers the webhook of the control plane.
        for _ in 0..60 {
            let answer = api::try_ask(&self.client, "PATCH", path, &scale).await;
            if matches!(answer, Ok((200, _))) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        panic!("the PolicyServer cannot be scaled");
    }
}
