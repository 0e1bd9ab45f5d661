//! Faults. Each is injected and healed, and declares which requests may fail because of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Soak, history::What, rng::Rng};
use crate::{
    faults::{Cut, EVALUATOR, PLANE, node, signal_process_of},
    installation::{EVALUATORS, POLICY, SYSTEM, name},
    probe::{PODS, Request},
};
use assent_e2e::kube::api;
use rustix::process::Signal;

impl Soak {
    pub(super) async fn disturb(&self, seed: u64, end: Instant) {
        let mut rng = Rng::new(seed);
        while Instant::now() < end {
            rng.pause(3_000, 12_000).await;
            match rng.below(100) {
                0..=17 => self.kill_evaluator(&mut rng).await,
                18..=31 => self.delete_evaluator(&mut rng).await,
                32..=43 => self.delete_leader().await,
                44..=58 => self.kill_leader().await,
                59..=70 => self.cut_network(&mut rng).await,
                71..=82 => self.pause_leader(&mut rng).await,
                83..=94 => self.edit_webhook().await,
                _ => self.kill_all_evaluators().await,
            }
        }
    }

    fn begins(&self, fault: String, may_fail: &[Request]) {
        eprintln!("{:7.1} s  {fault}", self.history.now().as_secs_f32());
        self.history.add(What::Fault(fault, may_fail.to_vec()));
    }

    /// F6.
    async fn kill_evaluator(&self, rng: &mut Rng) {
        let pods = running(self.site.pods(EVALUATORS).await);
        if let Some(pod) = rng.pick(&pods) {
            self.begins(format!("kill the evaluator of {}", name(pod)), &PODS);
            signal_process_of(pod, EVALUATOR, Signal::KILL);
        }
    }

    /// F7: a pod with the same name and another uid.
    async fn delete_evaluator(&self, rng: &mut Rng) {
        let pods = running(self.site.pods(EVALUATORS).await);
        if let Some(pod) = rng.pick(&pods) {
            self.begins(format!("delete {}", name(pod)), &[]);
            self.delete_pod(pod, &[]).await;
        }
    }

    async fn delete_leader(&self) {
        if let Some(leader) = self.site.leader().await {
            self.begins(
                format!("delete the leader {}", name(&leader)),
                &[Request::Edit],
            );
            self.delete_pod(&leader, &[]).await;
        }
    }

    /// F1.
    async fn kill_leader(&self) {
        let Some(leader) = self.site.leader().await else {
            return;
        };
        if running(vec![leader.clone()]).is_empty() {
            return;
        }
        self.begins(
            format!("kill the leader {}", name(&leader)),
            &[Request::Edit],
        );
        signal_process_of(&leader, PLANE, Signal::KILL);
        self.delete_pod(&leader, &["--force", "--grace-period=0"])
            .await;
    }

    /// F8.
    async fn cut_network(&self, rng: &mut Rng) {
        let pods = self.site.pods(EVALUATORS).await;
        let Some(pod) = rng.pick(&pods) else { return };
        if node(pod).is_empty() {
            return;
        }
        self.begins(format!("cut {} off", node(pod)), &[]);
        let cut = Cut::start(&self.site, node(pod));
        rng.pause(5_000, 20_000).await;
        drop(cut);
        self.begins("the network is back".into(), &[]);
    }

    /// F2, F3: another process leads before this one resumes.
    async fn pause_leader(&self, rng: &mut Rng) {
        let Some(leader) = self.site.leader().await else {
            return;
        };
        if running(vec![leader.clone()]).is_empty() {
            return;
        }
        self.begins(
            format!("pause the leader {}", name(&leader)),
            &[Request::Edit],
        );
        signal_process_of(&leader, PLANE, Signal::STOP);
        rng.pause(8_000, 20_000).await;
        // Its probes may have ended it meanwhile.
        signal_process_of(&leader, PLANE, Signal::CONT);
        self.begins("the paused leader resumes".into(), &[Request::Edit]);
    }

    /// Somebody edits a webhook configuration, in a way that loosens nothing.
    async fn edit_webhook(&self) {
        self.begins("edit the webhook".into(), &[]);
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let path = format!("{path}/assent.cluster.{POLICY}");
        let edit = json!({"metadata": {"annotations": {
            assent_k8s::names::POLICY_ANNOTATION: "cluster/another",
        }}});
        let _ = api::try_ask(&self.site.client, "PATCH", &path, &edit).await;
    }

    /// F24: requests fail by the failure policy, and nothing is allowed.
    async fn kill_all_evaluators(&self) {
        let pods = running(self.site.pods(EVALUATORS).await);
        self.begins("kill all evaluators".into(), &PODS);
        for pod in &pods {
            signal_process_of(pod, EVALUATOR, Signal::KILL);
            self.delete_pod(pod, &["--force", "--grace-period=0"]).await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    async fn delete_pod(&self, pod: &Value, options: &[&str]) {
        let delete = ["delete", "pod", name(pod), "--wait=false"];
        let delete = [&delete[..], options].concat();
        // It may have gone by itself.
        let _ = self.site.kubectl.within(SYSTEM).attempt(&delete).await;
    }
}

/// Pods whose first container runs.
fn running(pods: Vec<Value>) -> Vec<Value> {
    let runs = |pod: &Value| {
        let state = &pod["status"]["containerStatuses"][0]["state"]["running"];
        state.is_object() && pod["metadata"]["deletionTimestamp"].is_null()
    };
    pods.into_iter().filter(runs).collect()
}
