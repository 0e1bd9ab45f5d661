//! A directory of manifests with its state store.

use std::{collections::BTreeMap, time::Duration};

use assent_api::{API_VERSION, parse};
use assent_controller::{Action, Config, Controller, Now};
use assent_local::{
    Document, KINDS, LocalApi, LocalBackend, Scan, StateStore, api, directory, state::PolicyRecord,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::mk_spec,
    world::{Changes, QUOTA, World, policy_key},
};

pub(crate) struct StandaloneWorld {
    state: TempDir,
    /// `None` only while a process ends and the next one starts.
    api: Option<LocalApi>,
    /// Manifests by the name of their file.
    manifests: BTreeMap<String, Value>,
}

impl World for StandaloneWorld {
    type Backend = LocalBackend;

    const STORES_STATUSES: bool = false;

    /// The server `default` needs no manifest, and replicas count as soon as they connect.
    fn with_replicas(_replicas: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        Self {
            api: Some(open(&state)),
            state,
            manifests: BTreeMap::new(),
        }
    }

    fn backend(&self) -> LocalBackend {
        LocalBackend
    }

    fn config(&self) -> Config {
        Config {
            parse: parse_options(),
            kinds: KINDS.to_vec(),
            drain: Some(Duration::ZERO),
            grace: Duration::from_secs(60),
            sync_deadline: Duration::from_secs(30),
            max_policies_per_namespace: Some(QUOTA),
            no_context: None,
        }
    }

    fn list(&mut self) -> Changes<Self> {
        assert!(!self.api().is_read(), "a process lists once");
        self.scan()
    }

    fn restart(mut self) -> Self {
        self.stop();
        self.api = Some(open(&self.state));
        self
    }

    fn put_policy(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self> {
        self.put(kind_of(name), name, mk_spec(), edit)
    }

    fn delete_policy(&mut self, name: &str) -> Changes<Self> {
        self.remove(kind_of(name), name)
    }

    fn put_server(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self> {
        self.put("PolicyServer", name, json!({}), edit)
    }

    fn delete_server(&mut self, name: &str) -> Changes<Self> {
        self.remove("PolicyServer", name)
    }

    fn perform(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
        action: Action<LocalBackend>,
    ) {
        let left = self.api_mut().perform(controller, now, action);
        assert!(
            left.is_none(),
            "only modules and streams are left: {left:?}"
        );
        self.api_mut().forget_replaced(controller, now);
    }

    fn publish(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
    ) -> Vec<Action<LocalBackend>> {
        self.api_mut().publish(controller, now).unwrap()
    }

    fn spec(&self, policy: &str) -> Option<Value> {
        let spec = self.record(policy)?.effective_spec();
        Some(serde_json::from_str(spec).unwrap())
    }

    fn generation(&self, policy: &str) -> Option<i64> {
        self.record(policy).map(|r| r.generation)
    }

    fn uid(&self, policy: &str) -> String {
        let uid = self.record(policy).map(|r| r.uid.to_string());
        uid.unwrap_or_default()
    }

    fn routed(&self, policy: &str) -> Option<i64> {
        let key = policy_key(policy);
        let all = self.api().store().records().filter(|r| r.key() == key);
        let mut routed = all.filter_map(|r| Some(r.active_revision()?.generation));
        let generation = routed.next();
        assert_eq!(routed.next(), None, "two routes name {policy}");
        generation
    }

    fn lose_route(&mut self, policy: &str) {
        let uid = self.record(policy).unwrap().uid;
        self.stop();
        let (mut store, _) = StateStore::open(self.state.path()).unwrap();
        store.set_active(uid, None, created_at());
        store.commit().unwrap();
        drop(store);
        self.api = Some(open(&self.state));
    }

    fn phases(&self, policy: &str) -> Vec<String> {
        let revisions = self.record(policy).into_iter().flat_map(|r| &r.revisions);
        let mut phases: Vec<(i64, String)> = revisions
            .map(|r| (r.generation, format!("{} {:?}", r.generation, r.phase)))
            .collect();
        phases.sort();
        phases.into_iter().map(|(_, phase)| phase).collect()
    }
}

impl StandaloneWorld {
    fn api(&self) -> &LocalApi {
        self.api.as_ref().expect("the process must run")
    }

    fn api_mut(&mut self) -> &mut LocalApi {
        self.api.as_mut().expect("the process must run")
    }

    fn record(&self, policy: &str) -> Option<&PolicyRecord> {
        self.api().store().get(&policy_key(policy))
    }

    /// Ends the process, with everything written that it has done.
    fn stop(&mut self) {
        // Publishing writes the state first; nobody listens to what a new controller publishes.
        let mut nobody = Controller::new(LocalBackend, self.config(), [].into());
        let now = Now {
            at: assent_core::Millis(0),
            date: created_at(),
        };
        self.publish(&mut nobody, now);
        // The lock of the state goes with it.
        self.api = None;
    }

    fn put(
        &mut self,
        kind: &str,
        name: &str,
        spec: Value,
        edit: &dyn Fn(&mut Value),
    ) -> Changes<Self> {
        let manifest = self.manifests.entry(file(kind, name)).or_insert_with(|| {
            let key = policy_key(name);
            json!({
                "apiVersion": API_VERSION, "kind": kind,
                "metadata": { "name": key.name(), "namespace": key.namespace() }, "spec": spec,
            })
        });
        edit(&mut manifest["spec"]);
        self.scan()
    }

    fn remove(&mut self, kind: &str, name: &str) -> Changes<Self> {
        self.manifests.remove(&file(kind, name)).unwrap();
        self.scan()
    }

    fn scan(&mut self) -> Changes<Self> {
        let documents = self.manifests.iter().map(|(file, manifest)| Document {
            file: file.clone(),
            number: 1,
            line: 1,
            object: parse::identify(manifest, &parse_options()),
            result: parse::manifest(manifest, &parse_options()).map_err(directory::Error::from),
            module: None,
        });
        let scan = Scan {
            documents: documents.collect(),
            ..Scan::default()
        };
        self.api_mut().apply_scan(created_at(), &scan)
    }
}

fn open(state: &TempDir) -> LocalApi {
    let (store, damaged) = StateStore::open(state.path()).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let options = api::Options {
        parse: parse_options(),
        allow_mass_removal: false,
    };
    LocalApi::new(store, options)
}

fn parse_options() -> parse::Options {
    parse::Options {
        standalone: true,
        ..parse::Options::default()
    }
}

fn created_at() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn file(kind: &str, name: &str) -> String {
    format!("{kind}-{}.yaml", name.replace('/', "."))
}

fn kind_of(policy: &str) -> &'static str {
    match policy_key(policy).namespace() {
        Some(_) => "AdmissionPolicy",
        None => "ClusterAdmissionPolicy",
    }
}
