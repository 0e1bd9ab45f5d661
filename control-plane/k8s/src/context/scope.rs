//! One watch: of all namespaces, or of one.
//!
//! Written by hand instead of `kube::runtime::watcher`, which does not tell that an interrupted
//! watch goes on before the next object changes: until then nobody could say whether what is held
//! is current.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use assent_context::{Collection, CollectionSpec, Key, SyncState, feed::Change};
use assent_core::Digest;
use futures::StreamExt as _;
use kube::{
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::mpsc, time};
use tracing::{debug, warn};

use super::{Shared, merge::Found};

/// Objects of one page, as `kubectl` asks for them.
const PAGE: u32 = 500;

/// How long a watch lasts: the API server ends it, and it goes on with the next one.
const WATCH_SECONDS: u32 = 290;

/// API servers send a bookmark about every minute. Without any sign for longer than this the
/// connection counts as broken.
const SILENCE: Duration = Duration::from_secs(75);

/// The delay before a failed list or watch is tried again; doubled up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Changes that are taken together if they come together.
const BATCH: usize = 256;

/// One watch of a collection.
pub(super) struct Scope {
    pub(super) shared: Arc<Shared>,
    pub(super) spec: Arc<CollectionSpec>,
    /// Its number among the watches of its collection.
    pub(super) number: usize,
    /// The namespace; none for all.
    pub(super) namespace: Option<String>,
    pub(super) found: mpsc::Sender<(usize, Found, String)>,
}

/// A list as the API server sends it.
#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

/// How a list or watch ended.
enum End {
    /// It goes on from this version.
    At(String),
    /// The version is too old: everything is listed again.
    Expired,
    /// The API server does not stream lists.
    NotStreamed,
    /// Nobody listens.
    Over,
}

type Ended = Result<End, kube::Error>;

// === impl Scope ===

impl Scope {
    /// Lists and watches for as long as somebody listens.
    pub(super) async fn follow(self) {
        let projector = Collection::new(self.spec.clone());
        let (mut version, mut listed): (Option<String>, bool) = (None, false);
        let mut streams = true;
        let mut retry = FIRST_RETRY;
        loop {
            let ended = match (&version, streams) {
                (Some(from), _) => self.watch(&projector, from).await,
                (None, true) => self.stream_list(&projector, listed).await,
                (None, false) => self.list(&projector, listed).await,
            };
            match ended {
                Ok(End::Over) => return,
                Ok(End::At(at)) => {
                    (version, listed) = (Some(at), true);
                    retry = FIRST_RETRY;
                    continue;
                }
                Ok(End::NotStreamed) => {
                    debug!("the API server does not stream lists; listing in pages");
                    streams = false;
                    continue;
                }
                Ok(End::Expired) => {
                    debug!("the watch has expired; listing again");
                    version = None;
                    continue;
                }
                Err(error) => {
                    let (state, detail) = explain(&error);
                    warn!("failed to follow objects that policies read; retrying: {detail}");
                    if state != SyncState::Stale {
                        // What was there before the kind or the permission came back is not known.
                        version = None;
                        self.shared.look_again.notify_one();
                    }
                    if self.send(Found::State(state, detail), "").await.is_err() {
                        return;
                    }
                }
            }
            time::sleep(retry.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
            retry = (retry * 2).min(LONGEST_RETRY);
        }
    }

    /// Lists in pages, of one consistent version.
    async fn list(&self, projector: &Collection, again: bool) -> Ended {
        let mut params = ListParams {
            label_selector: self.selector(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut listing = Listing::new(again);
        loop {
            let request = self
                .request()
                .list(&params)
                .map_err(kube::Error::BuildRequest)?;
            let page: List = match self.shared.client.request(request).await {
                Err(kube::Error::Api(status)) if status.code == 410 => return Ok(End::Expired),
                page => page?,
            };
            for object in page.items.into_iter().flatten() {
                listing.add(self, projector, object);
            }
            if self.send_page(&mut listing).await.is_err() {
                return Ok(End::Over);
            }
            if page.metadata.r#continue.is_empty() {
                let version = page.metadata.resource_version;
                return Ok(self.finish(listing, version).await);
            }
            params.continue_token = Some(page.metadata.r#continue);
        }
    }

    /// Lists by a watch that begins with all objects.
    async fn stream_list(&self, projector: &Collection, again: bool) -> Ended {
        let params = WatchParams {
            label_selector: self.selector(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: true,
            ..WatchParams::default()
        };
        // An empty version asks for what the store has, not a cache.
        let request = self
            .request()
            .watch(&params, "")
            .map_err(kube::Error::BuildRequest)?;
        let events = match self.shared.client.request_events::<Value>(request).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                return Ok(End::NotStreamed);
            }
            events => events?,
        };
        let mut events = Box::pin(events);
        let mut listing = Listing::new(again);
        loop {
            let Ok(event) = time::timeout(SILENCE, events.next()).await else {
                // An older API server takes the request for a watch and never ends the list.
                return Ok(End::NotStreamed);
            };
            match event {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    listing.add(self, projector, object);
                    if listing.page.len() >= PAGE as usize
                        && self.send_page(&mut listing).await.is_err()
                    {
                        return Ok(End::Over);
                    }
                }
                Some(Ok(WatchEvent::Bookmark(mark))) => {
                    let ends = mark
                        .metadata
                        .annotations
                        .contains_key("k8s.io/initial-events-end");
                    if ends {
                        let version = mark.metadata.resource_version;
                        return Ok(self.finish(listing, version).await);
                    }
                }
                Some(Ok(WatchEvent::Deleted(_))) => {}
                Some(Ok(WatchEvent::Error(status))) if status.code == 410 => {
                    return Ok(End::Expired);
                }
                Some(Ok(WatchEvent::Error(status))) => return Err(kube::Error::Api(status)),
                Some(Err(error)) => return Err(error),
                None => return Ok(End::NotStreamed),
            }
        }
    }

    /// Watches from a version on until the watch ends.
    async fn watch(&self, projector: &Collection, from: &str) -> Ended {
        let params = WatchParams {
            label_selector: self.selector(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = self
            .request()
            .watch(&params, from)
            .map_err(kube::Error::BuildRequest)?;
        let events = match self.shared.client.request_events::<Value>(request).await {
            Err(kube::Error::Api(status)) if status.code == 410 => return Ok(End::Expired),
            events => events?,
        };
        let mut events = Box::pin(events.ready_chunks(BATCH));
        let mut version = from.to_owned();
        let alive = Found::State(SyncState::Synced, String::new());
        if self.send(alive, &version).await.is_err() {
            return Ok(End::Over);
        }
        loop {
            let Ok(batch) = time::timeout(SILENCE, events.next()).await else {
                debug!("the API server is silent; watching again");
                return Ok(End::At(version));
            };
            let Some(batch) = batch else {
                return Ok(End::At(version));
            };
            let mut changes = Vec::with_capacity(batch.len());
            let mut failed = None;
            for event in batch {
                match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                        note_version(&object, &mut version);
                        changes.extend(project(projector, object));
                    }
                    Ok(WatchEvent::Deleted(object)) => {
                        note_version(&object, &mut version);
                        changes.extend(key(&object).map(|key| (key, None)));
                    }
                    Ok(WatchEvent::Bookmark(mark)) => version = mark.metadata.resource_version,
                    Ok(WatchEvent::Error(status)) if status.code == 410 => {
                        failed = Some(Ok(End::Expired))
                    }
                    Ok(WatchEvent::Error(status)) => failed = Some(Err(kube::Error::Api(status))),
                    Err(error) => failed = Some(Err(error)),
                }
            }
            if !changes.is_empty() && self.send(Found::Changed(changes), &version).await.is_err() {
                return Ok(End::Over);
            }
            if let Some(failed) = failed {
                return failed;
            }
        }
    }

    async fn finish(&self, listing: Listing, version: String) -> End {
        let Listing { page, keys, .. } = listing;
        match self.send(Found::Listed(page, keys), &version).await {
            Ok(()) => End::At(version),
            Err(()) => End::Over,
        }
    }

    /// A first list goes out page by page; nobody reads it before it is complete.
    async fn send_page(&self, listing: &mut Listing) -> Result<(), ()> {
        if listing.again || listing.page.is_empty() {
            return Ok(());
        }
        let page = std::mem::take(&mut listing.page);
        self.send(Found::Page(page), "").await
    }

    async fn send(&self, found: Found, version: &str) -> Result<(), ()> {
        let sent = self.found.send((self.number, found, version.to_owned()));
        sent.await.map_err(|_| ())
    }

    fn request(&self) -> Request {
        let spec = &self.spec;
        let group = match spec.api_version().contains('/') {
            true => "apis",
            false => "api",
        };
        let place = self.namespace.as_ref();
        let place = place.map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
        Request::new(format!(
            "/{group}/{}{place}/{}",
            spec.api_version(),
            spec.plural()
        ))
    }

    fn selector(&self) -> Option<String> {
        let selector = &self.spec.declared().label_selector;
        (!selector.is_empty()).then(|| selector.clone())
    }
}

/// A list that is being read.
struct Listing {
    /// Whether it is not the first one: what is held is not sent again.
    again: bool,
    page: Vec<Change>,
    keys: BTreeSet<Key>,
}

// === impl Listing ===

impl Listing {
    fn new(again: bool) -> Self {
        Self {
            again,
            page: Vec::new(),
            keys: BTreeSet::new(),
        }
    }

    /// Nothing of a list is seen before it is complete, so that readers see no mixture of the
    /// list and what was there before. Only what differs is kept until then.
    fn add(&mut self, scope: &Scope, projector: &Collection, object: Value) {
        let Some((key, Some(json))) = project(projector, object) else {
            return;
        };
        self.keys.insert(key.clone());
        let held = |digest| scope.shared.sink.holds(&scope.spec.id(), &key, digest);
        if !held(Digest::of(&json)) {
            self.page.push((key, Some(json)));
        }
    }
}

/// The key of an object and its projected form. One that cannot be projected is left out, which
/// is reported: etcd takes no object that is too large, so that it does not occur.
fn project(projector: &Collection, object: Value) -> Option<Change> {
    match projector.project(object) {
        Ok(projected) => projected,
        Err(error) => {
            warn!("an object is left out: {error}");
            None
        }
    }
}

fn key(object: &Value) -> Option<Key> {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

fn note_version(object: &Value, version: &mut String) {
    if let Some(at) = object["metadata"]["resourceVersion"].as_str() {
        at.clone_into(version);
    }
}

/// What an error means for the collection.
fn explain(error: &kube::Error) -> (SyncState, String) {
    let state = match error {
        kube::Error::Api(status) if status.code == 403 => SyncState::Forbidden,
        kube::Error::Api(status) if matches!(status.code, 404 | 405) => SyncState::Absent,
        _ => SyncState::Stale,
    };
    let detail = match (state, error) {
        (SyncState::Forbidden, kube::Error::Api(status)) => {
            format!(
                "the control plane may no longer read these objects: {}",
                status.message
            )
        }
        (SyncState::Absent, _) => "the API server does not serve this kind".to_owned(),
        _ => error.to_string(),
    };
    (state, detail)
}
