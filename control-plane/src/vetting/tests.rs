#![allow(clippy::unwrap_used)]

use std::{
    collections::{HashMap, HashSet},
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use assent_core::{PolicyKey, rollout::RefusalReason};
use assent_modules::vet::{Bounds, Refused, Stage, Vetter};
use assent_oci::verify::Rejected;
use axum::{Router, extract::State, http::StatusCode, http::Uri};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};

use super::{budget::ByteBudget, *};
use crate::metrics::Metrics;

mod crashes;
mod fairness;
mod settings;

const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";

/// A registry of modules, whose requests are counted.
#[derive(Clone, Default)]
struct Registry {
    manifests: Arc<AtomicUsize>,
    blobs: Arc<AtomicUsize>,
    /// By path.
    content: Arc<HashMap<String, Vec<u8>>>,
    /// Modules that were requested and not stored yet, at most.
    in_flight: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// At most.
    requests_at_once: Arc<AtomicUsize>,
    store: Option<Store>,
}

/// What a child says about the system.
const SYSTEM: &str = r#"{"confinement": {"landlock": "full", "seccomp": true,
    "no_new_privileges": true, "unprivileged": true}, "engine": "test"}"#;

/// Vetting with children that are shell scripts.
struct Harness {
    vetting: Vetting,
    outcomes: mpsc::Receiver<Report>,
    dir: TempDir,
    sources: Sources,
    _server: JoinSet<()>,
}

/// A module of about `size` bytes, different for each `seed`.
fn module(seed: u8, size: usize) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.resize(size.max(9), seed);
    module
}

// === impl Registry ===

impl Registry {
    /// Serves each module under a repository of that name, with the tag `v1`.
    fn new(modules: &[(&str, Vec<u8>)]) -> Self {
        let mut content = HashMap::new();
        for (name, module) in modules {
            let (digest, size) = (Digest::of(module), module.len());
            let layer = format!(r#"{{"mediaType":"{LAYER}","digest":"{digest}","size":{size}}}"#);
            let manifest = format!(r#"{{"schemaVersion":2,"layers":[{layer}]}}"#);
            content.insert(format!("/v2/{name}/manifests/v1"), manifest.into_bytes());
            content.insert(format!("/v2/{name}/blobs/{digest}"), module.clone());
        }
        Self {
            content: Arc::new(content),
            ..Self::default()
        }
    }

    async fn get(State(registry): State<Self>, uri: Uri) -> Result<Vec<u8>, StatusCode> {
        let requests = registry.requests.fetch_add(1, Ordering::SeqCst) + 1;
        registry
            .requests_at_once
            .fetch_max(requests, Ordering::SeqCst);
        // Those who come at the same time are seen together.
        tokio::time::sleep(Duration::from_millis(5)).await;
        if uri.path().contains("/manifests/") {
            registry.manifests.fetch_add(1, Ordering::SeqCst);
        } else {
            let begun = registry.blobs.fetch_add(1, Ordering::SeqCst) + 1;
            if let Some(store) = &registry.store {
                let stored = store.list().await.unwrap().len();
                let in_flight = begun.saturating_sub(stored);
                registry.in_flight.fetch_max(in_flight, Ordering::SeqCst);
            }
        }
        let found = registry.content.get(uri.path()).cloned();
        registry.requests.fetch_sub(1, Ordering::SeqCst);
        found.ok_or(StatusCode::NOT_FOUND)
    }
}

// === impl Harness ===

impl Harness {
    async fn start(mut registry: Registry) -> Self {
        let dir = TempDir::new().unwrap();
        // Children of root are another user.
        make_public(dir.path());
        let store = Store::open(&dir.path().join("store")).unwrap();
        registry.store = Some(store.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(Registry::get).with_state(registry);
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });
        std::fs::create_dir(dir.path().join("orders")).unwrap();
        make_public(&dir.path().join("orders"));
        std::fs::write(dir.path().join("report"), report()).unwrap();
        std::fs::write(dir.path().join("system"), SYSTEM).unwrap();
        let (sender, outcomes) = mpsc::channel(1000);
        let vetter = vetter(dir.path());
        let compiler = Compiler::open(dir.path(), store, vetter, Metrics::default()).unwrap();
        let artefacts = Artefacts::new(compiler);
        Self {
            vetting: Vetting::new(artefacts, sender),
            outcomes,
            dir,
            sources: Sources {
                insecure: vec![address.to_string()],
                ..Sources::default()
            },
            _server: server,
        }
    }

    /// Another process with the same directories.
    fn restart(&mut self) {
        let store = self.vetting.artefacts.store().clone();
        let vetter = vetter(self.dir.path());
        let compiler = Compiler::open(self.dir.path(), store, vetter, Metrics::default());
        let (sender, outcomes) = mpsc::channel(1000);
        self.vetting = Vetting::new(Artefacts::new(compiler.unwrap()), sender);
        self.outcomes = outcomes;
    }

    fn url(&self, name: &str) -> String {
        format!("registry://{}/{name}:v1", self.sources.insecure[0])
    }

    fn start_job(&self, job: Job) {
        let sources = DeclaredSources::Given(Box::new(self.sources.clone()));
        let cancelled = CancellationToken::new();
        self.vetting.start(job, sources, cancelled);
    }

    async fn outcome(&mut self) -> Outcome {
        match self.outcomes.recv().await.unwrap() {
            Report::Vetted(outcome) => outcome,
            report => panic!("a module must be vetted: {report:?}"),
        }
    }

    /// The policies in the order of their outcomes, which must all be good.
    async fn accepted(&mut self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..count {
            let outcome = self.outcome().await;
            outcome.result.unwrap();
            names.push(outcome.id.key.to_string());
        }
        names
    }

    /// Children that compiled, and children that did not.
    fn children(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for order in std::fs::read_dir(self.dir.path().join("orders")).unwrap() {
            let order = std::fs::read(order.unwrap().path()).unwrap();
            let order = String::from_utf8_lossy(&order);
            match order.contains(r#"{"Vet":"#) {
                true => counts.0 += 1,
                false => counts.1 += 1,
            }
        }
        counts
    }
}

fn make_public(dir: &Path) {
    std::fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
}

/// Children keep their orders in a directory, wait for a file if there is one called `wait`,
/// and accept every module.
fn vetter(dir: &Path) -> Vetter {
    let dir = dir.display();
    let script = format!(
        "if [ \"$0\" = --report ]; then cat {dir}/system; exit; fi; \
         cat > \"$(mktemp {dir}/orders/XXXXXXXX)\"; \
         while [ -e {dir}/wait ]; do sleep 0.02; done; cat {dir}/report"
    );
    Vetter::new("/bin/sh".into(), vec!["-c".to_owned(), script]).with_bounds(Bounds::default())
}

/// What a child says about a module that it accepts.
fn report() -> Vec<u8> {
    report_with(r#"{"abi":"wapc","metadata":null,"size":9,"engine":"test"}"#)
}

fn report_with(facts: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, content) in [(b'F', facts), (b'A', "code"), (b'R', r#"{"Ok":null}"#)] {
        bytes.push(tag);
        bytes.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
        bytes.extend(content.as_bytes());
    }
    bytes
}

fn mk_job(namespace: &str, name: &str, url: String) -> Job {
    Job {
        id: PolicyId {
            key: PolicyKey::namespaced(namespace, name),
            uid: "uid".into(),
        },
        generation: 1,
        url,
        pinned: None,
        files: None,
        addresses: AddressPolicy::PUBLIC,
        verification: Vec::new(),
        settings: Arc::from(format!(r#"{{"name":"{name}"}}"#).into_bytes()),
        settings_from: Vec::new(),
        secret_settings: None,
        settings_access: None,
        entrypoint: String::new(),
        mutating: false,
        check: false,
        limits: Limits::default(),
        granted_capabilities: Vec::new(),
        declares_context: false,
    }
}

/// A job whose module is in the store.
fn pinned(name: &str, digest: Digest) -> Job {
    Job {
        pinned: Some(digest),
        ..mk_job("ns", name, "registry://r.io/p:v1".to_owned())
    }
}

#[tokio::test]
async fn module_of_many_policies_is_pulled_and_compiled_once() {
    let registry = Registry::new(&[("org/p", module(1, 100))]);
    let mut harness = Harness::start(registry.clone()).await;
    for n in 0..20 {
        let job = mk_job("ns", &format!("p-{n}"), harness.url("org/p"));
        harness.start_job(job);
    }
    harness.accepted(20).await;
    assert_eq!(registry.manifests.load(Ordering::SeqCst), 1);
    assert_eq!(registry.blobs.load(Ordering::SeqCst), 1);
    assert_eq!(harness.children(), (1, 19));
    // A policy that comes later asks where the tag is now, and downloads nothing.
    harness.start_job(mk_job("ns", "later", harness.url("org/p")));
    harness.accepted(1).await;
    assert_eq!(registry.manifests.load(Ordering::SeqCst), 2);
    assert_eq!(registry.blobs.load(Ordering::SeqCst), 1);
    assert_eq!(harness.children(), (1, 20));
}

/// Vets one module whose child reports this metadata.
async fn vet_with(metadata: &str, granted: &[&str]) -> Result<Module, Failure> {
    let mut harness = Harness::start(Registry::default()).await;
    let facts = format!(r#"{{"abi":"wapc","metadata":{metadata},"size":9,"engine":"test"}}"#);
    std::fs::write(harness.dir.path().join("report"), report_with(&facts)).unwrap();
    let stored = harness
        .vetting
        .artefacts
        .store()
        .put(module(1, 100).into())
        .await;
    harness.start_job(Job {
        pinned: Some(stored.unwrap()),
        granted_capabilities: granted.iter().map(|one| (*one).to_owned()).collect(),
        declares_context: false,
        ..mk_job("ns", "p", "registry://r.io/p:v1".to_owned())
    });
    let result = harness.outcome().await.result;
    let orders = std::fs::read_dir(harness.dir.path().join("orders")).unwrap();
    for order in orders {
        let order = std::fs::read(order.unwrap().path()).unwrap();
        let granted = serde_json::to_string(granted).unwrap();
        let order = String::from_utf8_lossy(&order);
        assert!(order.contains(&granted), "{granted} in {order}");
    }
    result
}

#[tokio::test]
async fn module_gets_what_the_server_grants_and_its_list_allows() {
    for (metadata, granted, expected) in [
        ("null", &["oci/*", "net/*"][..], &["net/*", "oci/*"][..]),
        ("{}", &["oci/*"], &["oci/*"]),
        (
            r#"{"hostCapabilities":["net/*","oci/v1/verify"]}"#,
            &["oci/*"],
            &["oci/v1/verify"],
        ),
        (r#"{"hostCapabilities":["*"]}"#, &[], &[]),
    ] {
        let module = vet_with(metadata, granted).await.unwrap();
        assert_eq!(module.host_capabilities, expected, "{metadata}");
    }
}

#[tokio::test]
async fn module_that_needs_other_objects_is_refused() {
    let metadata = r#"null,"required_context":"the module reads data.inventory""#;
    let failed = vet_with(metadata, &[]).await.unwrap_err();
    assert_eq!(failed.refusal.reason, RefusalReason::ContextUnavailable);
    let message = &failed.refusal.message;
    let start = "spec.contextAwareResources: the module reads data.inventory, and";
    assert!(message.starts_with(start), "{message}");
    assert!(!failed.retryable);
}

/// The key of the checks below, and its fingerprint.
const KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
-----END PUBLIC KEY-----
";

async fn check_signature(
    harness: &mut Harness,
    url: &str,
    signer: Option<String>,
) -> SignatureReport {
    let job = SignatureJob {
        id: mk_job("ns", "p", String::new()).id,
        revision: assent_core::RevisionId::from_wire("namespaced/ns/p/1-u"),
        url: url.to_owned(),
        signer,
        keys: vec![KEY.to_owned()],
        files: None,
        addresses: AddressPolicy::PUBLIC,
    };
    let sources = DeclaredSources::Given(Box::new(harness.sources.clone()));
    let stopped = CancellationToken::new();
    harness.vetting.check_signature(job, sources, stopped);
    match harness.outcomes.recv().await.unwrap() {
        Report::Signature(report) => report,
        report => panic!("a signature must be checked: {report:?}"),
    }
}

#[tokio::test]
async fn signature_is_looked_up_unless_the_signer_is_known() {
    let registry = Registry::new(&[("org/p", module(1, 100))]);
    let mut harness = Harness::start(registry.clone()).await;
    let url = harness.url("org/p");
    let report = check_signature(&mut harness, &url, None).await;
    let why = report.result.unwrap_err();
    assert!(why.contains("it has no signature"), "{why}");
    assert_eq!(report.keys, [KEY]);
    let asked = registry.manifests.load(Ordering::SeqCst);
    assert!(asked > 0);
    // The recorded signer is one of the keys: no registry has to be asked.
    let keys = assent_oci::verify::Keys::any_of(&[KEY]).unwrap();
    let signer = keys.fingerprints().next().map(|key| key.to_string());
    let report = check_signature(&mut harness, &url, signer).await;
    assert_eq!(report.result, Ok(()));
    assert_eq!(registry.manifests.load(Ordering::SeqCst), asked);
    // It is not, and what was signed by others does not count.
    let other = Some("0123456789abcdef".to_owned());
    assert!(
        check_signature(&mut harness, &url, other)
            .await
            .result
            .is_err()
    );
}

#[tokio::test]
async fn module_under_several_names_is_downloaded_once() {
    let names = ["a", "b", "c", "d"];
    let modules = names.map(|name| (name, module(1, 100)));
    let registry = Registry::new(&modules);
    let mut harness = Harness::start(registry.clone()).await;
    for name in names {
        harness.start_job(mk_job("ns", name, harness.url(name)));
    }
    harness.accepted(names.len()).await;
    assert_eq!(registry.manifests.load(Ordering::SeqCst), names.len());
    assert_eq!(registry.blobs.load(Ordering::SeqCst), 1);
    assert_eq!(harness.children(), (1, names.len() - 1));
}

#[tokio::test]
async fn pulled_bytes_stay_within_the_budget() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let modules = names.map(|name| (name, module(name.as_bytes()[0], 60 << 10)));
    let registry = Registry::new(&modules);
    let mut harness = Harness::start(registry.clone()).await;
    // Room for one module, not for two.
    let fetcher = harness.vetting.fetcher.clone();
    harness.vetting.fetcher = fetcher.with_budget(ByteBudget::new(100 << 10));
    for name in names {
        harness.start_job(mk_job("ns", name, harness.url(name)));
    }
    harness.accepted(names.len()).await;
    assert_eq!(registry.blobs.load(Ordering::SeqCst), names.len());
    assert_eq!(registry.in_flight.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn mass_apply_pulls_few_modules_at_once() {
    let names: Vec<String> = (0..60).map(|n| format!("p-{n}")).collect();
    let modules: Vec<_> = (0..)
        .zip(&names)
        .map(|(seed, name)| (name.as_str(), module(seed, 100)))
        .collect();
    let registry = Registry::new(&modules);
    let mut harness = Harness::start(registry.clone()).await;
    for name in &names {
        harness.start_job(mk_job("ns", name, harness.url(name)));
    }
    harness.accepted(names.len()).await;
    assert_eq!(registry.blobs.load(Ordering::SeqCst), names.len());
    let most = registry.requests_at_once.load(Ordering::SeqCst);
    assert!((1..=4).contains(&most), "{most}");
}

/// The same for what has to be waited for.
async fn until_async(test: impl AsyncFn() -> bool) {
    while !test().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for something that happens unless the code is broken.
async fn until(test: impl Fn() -> bool) {
    while !test() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[track_caller]
fn check(error: assent_oci::Error, reason: RefusalReason, retryable: bool) {
    let failed = failure::pulling(error);
    assert_eq!(
        (failed.refusal.reason, failed.retryable),
        (reason, retryable)
    );
}

#[test]
fn missing_signature_is_distinguished_from_an_unreachable_registry() {
    let url = || "registry://r.io/p:v1".to_owned();
    let rejected = assent_oci::Error::SignatureRejected {
        url: url(),
        why: Rejected::Unsigned,
        keys: String::new(),
    };
    check(rejected, RefusalReason::SignatureRejected, false);
    let away = assent_oci::Error::Network {
        url: url(),
        why: String::new(),
    };
    check(away, RefusalReason::PullError, true);
    let no_module = assent_oci::Error::NotWasm {
        url: url(),
        why: "",
    };
    check(no_module, RefusalReason::Invalid, false);
}

#[test]
fn slow_or_crashed_vetting_is_tried_again() {
    for (stage, retryable) in [
        (Stage::Crashed, true),
        (Stage::TimedOut, true),
        (Stage::Compile, false),
        (Stage::Settings, false),
    ] {
        let refused = Refused {
            stage,
            message: String::new(),
        };
        let failed = failure::vetted(refused, &VetRequest::new("{}"));
        assert_eq!(failed.retryable, retryable, "{stage:?}");
        assert_eq!(failed.refusal.reason, RefusalReason::Invalid);
    }
}
