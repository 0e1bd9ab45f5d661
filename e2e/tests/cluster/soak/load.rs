//! Requests without pause: those that every revision decides alike, and those by which the
//! revision that decided is known.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{
    Soak,
    history::{What, image},
};
use crate::{
    installation::{SHOP, WORDS, pod},
    probe::Request,
};
use assent_e2e::kube::api;

/// Between two requests of one kind.
const PAUSE: Duration = Duration::from_millis(100);

/// How many of the newest contents are asked for in turn.
const RECENT: u64 = 3;

impl Soak {
    pub(super) fn load(&self) -> Vec<JoinHandle<()>> {
        let kinds = [Request::Privileged, Request::Compliant, Request::Edit];
        let mut tasks: Vec<JoinHandle<()>> = kinds
            .into_iter()
            .map(|kind| tokio::spawn(self.clone().send(kind)))
            .collect();
        tasks.push(tokio::spawn(self.clone().ask_who_decides()));
        tasks
    }

    async fn send(self, request: Request) {
        for number in 0_u32.. {
            if self.is_over() {
                return;
            }
            let sent = self.history.now();
            let response = request.send(&self.site.client, number).await;
            self.history.add(What::Response(sent, request, response));
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A privileged pod whose image only one content of the policy exempts.
    async fn ask_who_decides(self) {
        for number in 0_u64.. {
            if self.is_over() {
                return;
            }
            let newest = self.site.contents();
            let content = newest.saturating_sub(number % RECENT);
            let pod = pod("probe", &image(content), true);
            let path = format!("/api/v1/namespaces/{SHOP}/pods?dryRun=All");
            let sent = self.history.now();
            let response = api::try_ask(&self.site.client, "POST", &path, &pod).await;
            let accepted = match response {
                Ok((201, _)) => Some(true),
                Ok((_, status)) if status["message"].to_string().contains(WORDS) => Some(false),
                _ => None,
            };
            self.history.add(What::Decision(sent, content, accepted));
            tokio::time::sleep(PAUSE).await;
        }
    }
}
