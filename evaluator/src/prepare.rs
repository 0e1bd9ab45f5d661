//! Prepares announced revisions: fetch, compile, link, validate settings, self-test. Compilation and guest code run on
//! threads that serve no requests.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Instant,
};

use arc_swap::ArcSwap;
use assent_core::{Digest, Policy, PolicyKey, RevisionId};
use assent_wasm::{Engine, HostServices, Module};
use futures::{Stream, StreamExt as _, stream};

use crate::{
    context::{ContextData, LiveReads, Subject, with_objects},
    failure::{Failure, Stage},
    store::Store,
    sync::machine::Timing,
};

pub(crate) mod fetch;
mod sandbox;

pub(crate) use fetch::Modules;
use fetch::{Artefact, Code, Fetched};

/// Prepares revisions and caches the results: equal content is prepared once.
#[derive(Clone)]
pub(crate) struct Preparer {
    engine: Engine,
    store: Option<Arc<Store>>,
    services: Arc<HostServices>,
    objects: Objects,
    cache: Arc<Mutex<Cache>>,
    /// One at a time: a marker then names the one that crashed the process, and compilation uses all cores by itself.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Objects of the cluster that policies read.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) data: Arc<ContextData>,
    pub(crate) live: Arc<dyn LiveReads>,
}

/// Results so far. The thread that compiles adds them, so that a stream that breaks during a long compilation does not
/// lose it.
#[derive(Default)]
struct Cache {
    sandboxes: HashMap<Key, Arc<assent_wasm::Policy>>,
    /// On whose behalf sandboxes ask the control plane: the newest loaded revision of that content.
    revisions: HashMap<Key, Arc<ArcSwap<String>>>,
    modules: HashMap<Digest, Module>,
}

/// The policy is part of it because the sandbox names it in log lines.
type Key = (PolicyKey, Digest);

/// One revision's outcome.
pub(crate) type Outcome = Result<Arc<assent_wasm::Policy>, Failure>;

/// Modules that are fetched at the same time: enough to hide round trips, little enough
/// that buffers stay small.
const FETCHES: usize = 4;

// === impl Preparer ===

impl Preparer {
    pub(crate) fn new(
        engine: Engine,
        store: Option<Arc<Store>>,
        services: Arc<HostServices>,
        objects: Objects,
    ) -> Self {
        Self {
            engine,
            store,
            services,
            objects,
            cache: Arc::default(),
            turn: Arc::default(),
        }
    }

    /// Prepares all of `policies`; a bad one never holds back the others. `from` is none while no control plane is
    /// reachable.
    pub(crate) async fn prepare(
        &self,
        policies: Vec<Arc<Policy>>,
        from: Option<Modules>,
    ) -> (BTreeMap<RevisionId, Outcome>, Timing) {
        let mut timing = Timing::default();
        let wanted = self.missing_modules(&policies);
        let (mut present, mut absent) = (Vec::new(), HashMap::<Digest, Vec<_>>::new());
        for policy in policies {
            let module = policy.content.module_digest;
            match wanted.contains(&module) {
                true => absent.entry(module).or_default().push(policy),
                false => present.push(policy),
            }
        }
        let mut outcomes = BTreeMap::new();
        for policy in present {
            let outcome = self.prepare_one(&policy, None, &from, &mut timing).await;
            outcomes.insert(policy.revision.clone(), outcome);
        }
        let mut fetched = self.fetch(wanted, from.clone()).await;
        let mut began = Instant::now();
        while let Some((digest, code)) = fetched.next().await {
            timing.fetch_us += micros(began);
            for policy in absent.remove(&digest).unwrap_or_default() {
                let outcome = self
                    .prepare_one(&policy, Some(code.clone()), &from, &mut timing)
                    .await;
                outcomes.insert(policy.revision.clone(), outcome);
            }
            began = Instant::now();
        }
        (outcomes, timing)
    }

    /// Removes results that no loaded revision needs.
    pub(crate) fn retain<'a>(&self, loaded: impl Iterator<Item = &'a Arc<Policy>> + Clone) {
        let keys: HashSet<Key> = loaded.clone().map(|policy| key(policy)).collect();
        self.name_revisions(loaded.clone());
        let modules: HashSet<Digest> = loaded.map(|policy| policy.content.module_digest).collect();
        let mut cache = self.cache();
        cache.sandboxes.retain(|key, _| keys.contains(key));
        cache.revisions.retain(|key, _| keys.contains(key));
        cache.modules.retain(|digest, _| modules.contains(digest));
    }

    fn name_revisions<'a>(&self, loaded: impl Iterator<Item = &'a Arc<Policy>>) {
        let mut newest: HashMap<Key, &Arc<Policy>> = HashMap::new();
        for policy in loaded {
            let known = newest.entry(key(policy)).or_insert(policy);
            if known.generation < policy.generation {
                *known = policy;
            }
        }
        let cache = self.cache();
        for (key, policy) in newest {
            if let Some(name) = cache.revisions.get(&key) {
                name.store(Arc::new(policy.revision.to_string()));
            }
        }
    }

    /// The services of one policy.
    fn services(&self, policy: &Policy) -> Arc<HostServices> {
        let name = Arc::new(ArcSwap::from_pointee(policy.revision.to_string()));
        self.cache().revisions.insert(key(policy), name.clone());
        let subject = Subject {
            policy: policy.policy.clone(),
            revision: name,
            declared: policy.content.context_resources.clone(),
            capabilities: policy.content.host_capabilities.clone(),
        };
        let Objects { data, live } = &self.objects;
        Arc::new(with_objects(&self.services, subject, data, live))
    }

    fn missing_modules(&self, policies: &[Arc<Policy>]) -> HashSet<Digest> {
        let cache = self.cache();
        let missing = policies.iter().filter(|policy| {
            let module = &policy.content.module_digest;
            !cache.sandboxes.contains_key(&key(policy)) && !cache.modules.contains_key(module)
        });
        missing.map(|policy| policy.content.module_digest).collect()
    }

    /// A few at a time, so that the bytes of a large set are never in memory at once.
    async fn fetch(
        &self,
        wanted: HashSet<Digest>,
        from: Option<Modules>,
    ) -> impl Stream<Item = (Digest, Fetched)> + Unpin {
        let digests: Vec<Digest> = wanted.into_iter().collect();
        let artefacts = match &from {
            Some(modules) if !digests.is_empty() => {
                modules.artefacts(&digests, self.engine.fingerprint()).await
            }
            _ => HashMap::new(),
        };
        let this = self.clone();
        let one = move |digest: Digest| {
            let (this, from) = (this.clone(), from.clone());
            let artefact = artefacts.get(&digest).copied();
            async move { (digest, this.obtain(digest, artefact, from).await) }
        };
        Box::pin(stream::iter(digests).map(one).buffer_unordered(FETCHES))
    }

    async fn obtain(
        &self,
        module: Digest,
        artefact: Option<Artefact>,
        from: Option<Modules>,
    ) -> Fetched {
        let engine = self.engine.fingerprint();
        fetch::obtain(module, artefact, engine, from, self.store.clone()).await
    }

    async fn prepare_one(
        &self,
        policy: &Arc<Policy>,
        code: Option<Fetched>,
        from: &Option<Modules>,
        timing: &mut Timing,
    ) -> Outcome {
        let code = code.transpose()?;
        let artefact = matches!(code, Some(Code::Artefact(..)));
        let outcome = self.try_prepare(policy, code, timing).await;
        match outcome {
            // The portable module may load even if its artefact does not.
            Err(failure) if artefact && failure.stage == Stage::Compile => {
                tracing::warn!(revision = %policy.revision, why = failure.message, "failed to use an artefact; falling back to the portable module");
                let portable = self
                    .obtain(policy.content.module_digest, None, from.clone())
                    .await?;
                self.try_prepare(policy, Some(portable), timing).await
            }
            outcome => outcome,
        }
    }

    async fn try_prepare(
        &self,
        policy: &Arc<Policy>,
        code: Option<Code>,
        timing: &mut Timing,
    ) -> Outcome {
        let turn = self.turn.clone().lock_owned().await;
        let (this, policy) = (self.clone(), policy.clone());
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            this.prepare_blocking(&policy, code)
        });
        let (outcome, compile_us, self_test_us) = match made.await {
            Ok(made) => made,
            Err(error) => (
                Err(Failure::permanent(Stage::Compile, error.to_string())),
                0,
                0,
            ),
        };
        timing.compile_us += compile_us;
        timing.self_test_us += self_test_us;
        outcome
    }

    /// Compiles, links and tests under attempt markers.
    fn prepare_blocking(&self, policy: &Arc<Policy>, code: Option<Code>) -> (Outcome, u64, u64) {
        // An earlier turn may have prepared equal content.
        if let Some(sandbox) = self.cache().sandboxes.get(&key(policy)) {
            return (Ok(sandbox.clone()), 0, 0);
        }
        let began = Instant::now();
        let module = self.module(policy, code);
        let compile_us = micros(began);
        let began = Instant::now();
        let outcome = module.and_then(|module| self.sandbox(policy, &module));
        if let Ok(sandbox) = &outcome {
            sandbox.connect(self.services(policy));
            self.cache().sandboxes.insert(key(policy), sandbox.clone());
        }
        (outcome, compile_us, micros(began))
    }

    /// Until the module gets its settings, a crash does not depend on them: the marker names the module, so that it is
    /// not tried with other settings.
    fn sandbox(&self, policy: &Arc<Policy>, module: &Module) -> Outcome {
        let sandbox = {
            let _marker = self.mark(&policy.content.module_digest, policy, Stage::Instantiate);
            sandbox::link(&self.engine, module, policy)?
        };
        let _marker = self.mark(&policy.content_digest, policy, Stage::SelfTest);
        sandbox::test(&sandbox)?;
        Ok(Arc::new(sandbox))
    }

    fn module(&self, policy: &Arc<Policy>, code: Option<Code>) -> Result<Module, Failure> {
        let digest = policy.content.module_digest;
        if let Some(module) = self.cache().modules.get(&digest) {
            return Ok(module.clone());
        }
        let Some(code) = code else {
            return Err(Failure::transient(
                Stage::Fetch,
                format!("the module {digest} is not available"),
            ));
        };
        let _marker = self.mark(&digest, policy, Stage::Compile);
        let module = sandbox::compile(&self.engine, &code)?;
        self.cache().modules.insert(digest, module.clone());
        Ok(module)
    }

    fn mark(&self, what: &Digest, policy: &Policy, stage: Stage) -> Option<crate::store::Attempt> {
        let store = self.store.as_ref()?;
        Some(store.attempt(what, &policy.revision, stage))
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache
            .lock()
            .expect("the cache's lock must not be poisoned")
    }
}

fn key(policy: &Policy) -> Key {
    (policy.policy.clone(), policy.content_digest)
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
