//! Looks up kinds: whether the API server serves them, and whether they may be read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use assent_controller::contexts::{ContextEvent, KindRef, KindState};
use k8s_openapi::{
    api::authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    },
    apimachinery::pkg::apis::meta::v1::APIResource,
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::watch, time};
use tracing::warn;

use super::Shared;

/// How often kinds are looked up: a definition that was installed is found, and a permission
/// that was withdrawn is noticed, within this time. One request for each API version, and two
/// for each kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// What reading takes.
const VERBS: [&str; 2] = ["list", "watch"];

pub(super) async fn follow(shared: Arc<Shared>, mut wanted: watch::Receiver<Vec<KindRef>>) {
    let mut known: BTreeMap<KindRef, KindState> = BTreeMap::new();
    loop {
        let kinds: BTreeSet<KindRef> = wanted.borrow_and_update().iter().cloned().collect();
        known.retain(|kind, _| kinds.contains(kind));
        // Whoever asks may be another leader than the one that was told before.
        let mut reported = BTreeSet::new();
        loop {
            for (kind, state) in look_up(&shared.client, &kinds).await {
                let news = known.insert(kind.clone(), state.clone()).as_ref() != Some(&state);
                if news || reported.insert(kind.clone()) {
                    reported.insert(kind.clone());
                    let event = ContextEvent::Kind(kind, state);
                    if shared.events.send(event).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = shared.look_again.notified(), if !kinds.is_empty() => {
                    // Watches fail together; one look is enough for all of them.
                    time::sleep(Duration::from_millis(500)).await;
                }
                () = time::sleep(INTERVAL), if !kinds.is_empty() => {}
            }
        }
    }
}

/// The states of kinds. One that could not be looked up is left out: nothing is concluded from
/// an API server that does not answer.
async fn look_up(client: &Client, kinds: &BTreeSet<KindRef>) -> Vec<(KindRef, KindState)> {
    let mut states = Vec::with_capacity(kinds.len());
    let versions: BTreeSet<&str> = kinds.iter().map(|kind| kind.api_version.as_str()).collect();
    for version in versions {
        let resources = match resources(client, version).await {
            Ok(resources) => resources,
            Err(error) => {
                warn!(
                    api_version = version,
                    "failed to look up kinds; retrying: {error}"
                );
                continue;
            }
        };
        for kind in kinds.iter().filter(|kind| kind.api_version == version) {
            let found = resources.iter();
            let found = found.filter(|r| r.kind == kind.kind && !r.name.contains('/'));
            let state = match found.into_iter().next() {
                None => KindState::Absent,
                Some(resource) => match served(client, kind, resource).await {
                    Ok(state) => state,
                    Err(error) => {
                        warn!(kind = %kind, "failed to check permissions; retrying: {error}");
                        continue;
                    }
                },
            };
            states.push((kind.clone(), state));
        }
    }
    states
}

/// The resources of an API version; none if it is not served.
async fn resources(client: &Client, version: &str) -> kube::Result<Vec<APIResource>> {
    let listed = match version.contains('/') {
        true => client.list_api_group_resources(version).await,
        false => client.list_core_api_resources(version).await,
    };
    match listed {
        Ok(list) => Ok(list.resources),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn served(
    client: &Client,
    kind: &KindRef,
    resource: &APIResource,
) -> kube::Result<KindState> {
    let served = |forbidden| KindState::Served {
        plural: resource.name.clone(),
        namespaced: resource.namespaced,
        forbidden,
    };
    for verb in VERBS {
        if !resource.verbs.iter().any(|known| known == verb) {
            let why = format!("the API server does not {verb} {}", resource.name);
            return Ok(served(Some(why)));
        }
        if !may(client, verb, kind.group(), &resource.name).await? {
            let dot = if kind.group().is_empty() { "" } else { "." };
            let why = format!(
                "its service account lacks the permission to {verb} {}{dot}{}",
                resource.name,
                kind.group()
            );
            return Ok(served(Some(why)));
        }
    }
    Ok(served(None))
}

async fn may(client: &Client, verb: &str, group: &str, resource: &str) -> kube::Result<bool> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = api.create(&PostParams::default(), &review).await?;
    let status = answer.status.unwrap_or_default();
    Ok(status.allowed && status.denied != Some(true))
}

/// The plural name and scope of a kind, for whoever asks once.
pub(crate) async fn find(client: &Client, kind: &KindRef) -> kube::Result<Option<(String, bool)>> {
    let resources = resources(client, &kind.api_version).await?;
    let found = resources.into_iter();
    let mut found = found.filter(|r| r.kind == kind.kind && !r.name.contains('/'));
    Ok(found.next().map(|r| (r.name, r.namespaced)))
}
