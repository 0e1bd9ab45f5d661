//! An evaluator's side of the protocol: the announced and the loaded set, digests and
//! versions verified, refusals named, and a disk that outlives the process.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{
    Digest, Policy, PolicyKey, RevisionId, Route, RouteState, Version,
    session::{Answer, Failure, InitialRequest, Rejection, Stage, StreamKind},
    snapshot,
};

use crate::{
    rng::Rng,
    wire::{Claim, Down, Hello, Up},
};

/// One evaluator.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) kind: StreamKind,
    pub(crate) character: Character,
    pub(crate) up: bool,
    pub(crate) instance: u64,
    pub(crate) set: Set,
    disk: Option<Set>,
    pub(crate) stream: Option<Stream>,
    /// Counts what makes scheduled work void: connections, crashes.
    pub(crate) token: u64,
    /// How contents fare on this machine.
    fates: BTreeMap<Digest, Fate>,
    /// Generations that the webhook's path had here, by policy and uid.
    newest_active: BTreeMap<(PolicyKey, String), i64>,
}

/// How a client treats the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Character {
    Honest,
    /// Honest, and takes seconds to load.
    Slow,
    /// Acknowledges everything twice, loads nothing.
    Yes,
    /// Acknowledges with a version of its own.
    WrongVersion,
    /// Answers nonces that nobody issued.
    UnknownNonce,
    /// Refuses again and again, with more entries than may be.
    Flood,
    /// Acknowledges, refuses, acknowledges.
    Fickle,
    Silent,
}

/// What an evaluator has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub(crate) announced: BTreeMap<RevisionId, Arc<Policy>>,
    pub(crate) routes: BTreeMap<Arc<str>, Arc<Route>>,
    pub(crate) version: Option<Version>,
    pub(crate) loaded: BTreeSet<RevisionId>,
    pub(crate) rejected: BTreeMap<RevisionId, Rejection>,
}

/// One connection, seen from the client.
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// What deltas refer to: first what was claimed, then what was taken.
    base: BTreeMap<RevisionId, Arc<Policy>>,
    base_routes: BTreeMap<Arc<str>, Arc<Route>>,
    applied: bool,
    /// It holds less than its version says.
    lost: bool,
    /// The newest response, as long as it is not taken.
    pub(crate) pending: Option<Down>,
    /// The newest nonce, once it was answered.
    pub(crate) answered: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Good,
    Permanent,
    Retryable,
    /// Fails some time after it was swapped in.
    Late,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(name: String, kind: StreamKind, character: Character) -> Self {
        Self {
            name,
            kind,
            character,
            up: false,
            instance: 0,
            set: Set::default(),
            disk: None,
            stream: None,
            token: 0,
            fates: BTreeMap::new(),
            newest_active: BTreeMap::new(),
        }
    }

    pub(crate) fn is_honest(&self) -> bool {
        matches!(self.character, Character::Honest | Character::Slow)
    }

    /// Another process under the same name.
    pub(crate) fn start(&mut self, keeps_disk: bool) {
        self.up = true;
        self.instance += 1;
        self.token += 1;
        self.disk = self.disk.take().filter(|_| keeps_disk);
        self.set = self.disk.clone().unwrap_or_default();
    }

    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.token += 1;
        self.stream = None;
        self.set = Set::default();
    }

    /// Opens a stream and says what it holds, one way or another.
    pub(crate) fn connect(&mut self, id: u64, rng: &mut Rng) -> Hello {
        self.token += 1;
        let whole = self.set.whole().map(|v| v.to_string());
        let mut held = self.set.held();
        // It may have lost a module and still remember the version: the map wins.
        let lost = self.kind == StreamKind::Delta && held.len() > 1 && rng.percent(10);
        if lost {
            held.pop_first();
        }
        let map = || {
            held.values()
                .map(|p| (p.revision.to_string(), p.content_digest))
                .collect()
        };
        let (version, map, base) = match (self.kind, rng.below(4)) {
            (StreamKind::StateOfTheWorld, 0) | (StreamKind::Delta, 0) => {
                (None, BTreeMap::new(), BTreeMap::new())
            }
            (StreamKind::StateOfTheWorld, _) => (whole, BTreeMap::new(), BTreeMap::new()),
            // More than a map may list.
            (StreamKind::Delta, 1) if whole.is_some() && !lost => {
                (whole, BTreeMap::new(), BTreeMap::new())
            }
            (StreamKind::Delta, 2) => (None, map(), held.clone()),
            (StreamKind::Delta, _) => (whole, map(), held.clone()),
        };
        self.stream = Some(Stream {
            id,
            base,
            base_routes: BTreeMap::new(),
            applied: false,
            lost,
            pending: None,
            answered: None,
        });
        Hello {
            first: InitialRequest {
                version: version.unwrap_or_default(),
                held: map,
            },
            instance: self.instance.to_string(),
            loaded: self.set.loaded.clone(),
        }
    }

    /// The set that a response leads to; an error if its content does not match its version.
    pub(crate) fn verify(&self, down: &Down) -> Result<Set, String> {
        let stream = self
            .stream
            .as_ref()
            .expect("who verifies must have a stream");
        let (announced, routes) = match (down.no_change, self.kind) {
            (true, _) if !stream.applied && stream.lost => {
                return Err("R3: the map does not win".into());
            }
            (true, _) if !stream.applied => (self.set.announced.clone(), self.set.routes.clone()),
            (true, _) => (stream.base.clone(), stream.base_routes.clone()),
            (false, StreamKind::StateOfTheWorld) => {
                (collect(&down.policies), collect_routes(&down.routes))
            }
            (false, StreamKind::Delta) => stream.apply(down)?,
        };
        for policy in announced.values() {
            if policy.content.digest() != policy.content_digest {
                return Err(format!("content of {} is not its digest", policy.revision));
            }
        }
        for route in routes.values() {
            if !route.revisions.iter().all(|r| announced.contains_key(r)) {
                return Err(format!("route {} names what is not there", route.path));
            }
        }
        let digests = announced
            .iter()
            .map(|(id, p)| (id.as_str(), p.content_digest));
        let digests: Vec<_> = digests.collect();
        let version = snapshot::version(digests.into_iter(), routes.values().map(AsRef::as_ref));
        if version != down.version {
            return Err(format!("version {version} instead of {}", down.version));
        }
        Ok(Set {
            announced,
            routes,
            version: Some(version),
            ..Set::default()
        })
    }

    /// Loads what can be loaded, swaps once and persists; returns the answer.
    pub(crate) fn take(
        &mut self,
        mut set: Set,
        shaky: &BTreeSet<Digest>,
        rng: &mut Rng,
    ) -> Result<(), String> {
        self.check_forward(&set)?;
        let announced: Vec<Arc<Policy>> = set.announced.values().cloned().collect();
        for policy in &announced {
            let known = self.set.announced.get(&policy.revision);
            let same = known.is_some_and(|p| p.content_digest == policy.content_digest);
            if same && self.set.loaded.contains(&policy.revision) {
                set.loaded.insert(policy.revision.clone());
                continue;
            }
            match self.set.rejected.get(&policy.revision).filter(|_| same) {
                Some(rejection) => {
                    set.rejected
                        .insert(policy.revision.clone(), rejection.clone());
                }
                None => set.load(policy, fate(&mut self.fates, policy, shaky, rng)),
            }
        }
        self.set = set;
        self.disk = Some(self.set.clone());
        if let Some(stream) = &mut self.stream {
            stream.base = self.set.announced.clone();
            stream.base_routes = self.set.routes.clone();
            stream.applied = true;
            stream.answered = stream.pending.take().map(|down| down.nonce);
        }
        Ok(())
    }

    /// I2: what the webhook's path is here never goes back.
    fn check_forward(&mut self, set: &Set) -> Result<(), String> {
        for route in set
            .routes
            .values()
            .filter(|r| r.state == RouteState::Active)
        {
            let policy = &set.announced[&route.revisions[0]];
            let uid = policy
                .revision
                .short()
                .rsplit('-')
                .next()
                .unwrap_or_default();
            let key = (policy.policy.clone(), uid.to_owned());
            let newest = self.newest_active.entry(key).or_insert(policy.generation);
            if *newest > policy.generation {
                return Err(format!("I2: {} goes back from {newest}", policy.revision));
            }
            *newest = policy.generation;
        }
        Ok(())
    }

    /// Something that was swapped in fails, or something that failed is tried again; true
    /// where that is worth an answer.
    pub(crate) fn second_thoughts(&mut self, healed: bool) -> bool {
        let before = (self.set.loaded.clone(), self.set.rejected.len());
        for policy in self.set.announced.values() {
            let fate = self.fates.get_mut(&policy.content_digest);
            let loaded = self.set.loaded.contains(&policy.revision);
            match fate {
                Some(fate) if *fate == Fate::Late && loaded && !healed => {
                    *fate = Fate::Retryable;
                    self.set.loaded.remove(&policy.revision);
                    let rejection = reject(policy, Stage::Runtime, true);
                    self.set.rejected.insert(policy.revision.clone(), rejection);
                }
                Some(Fate::Retryable | Fate::Late) if !loaded => {
                    self.set.rejected.remove(&policy.revision);
                    self.set.loaded.insert(policy.revision.clone());
                    self.fates.insert(policy.content_digest, Fate::Good);
                }
                _ => {}
            }
        }
        self.disk = self.disk.take().map(|_| self.set.clone());
        before != (self.set.loaded.clone(), self.set.rejected.len())
    }

    /// An honest answer to `nonce`: what is loaded and what is not.
    pub(crate) fn answer(&self, nonce: &str, rng: &mut Rng) -> Up {
        let rejected: Vec<Rejection> = self.set.rejected.values().cloned().collect();
        let version = self.set.whole().map(|v| v.to_string()).unwrap_or_default();
        Up {
            answer: Answer {
                nonce: nonce.into(),
                version: if rng.percent(50) {
                    version
                } else {
                    String::new()
                },
                error: rejected.first().map(|r| r.failure.clone()),
                rejected,
                truncated: false,
            },
            claim: Claim::Loaded(self.set.loaded.clone()),
        }
    }

    /// Nothing of the response was taken.
    pub(crate) fn refuse(&self, nonce: &str) -> Up {
        Up {
            answer: Answer {
                nonce: nonce.into(),
                error: Some(failure("no room on disk")),
                ..Answer::default()
            },
            claim: Claim::AsBefore,
        }
    }

    /// What a client says that does not keep to the protocol.
    pub(crate) fn lie(&self, down: &Down, rng: &mut Rng) -> Vec<Up> {
        let answer = |nonce: String| Answer {
            nonce,
            ..Answer::default()
        };
        let say = |answer, claim| Up { answer, claim };
        let ack = || say(answer(down.nonce.clone()), Claim::Anything);
        let nack = |count: usize| {
            let mut refusal = answer(down.nonce.clone());
            refusal.error = Some(failure("because"));
            let policies = down.policies.iter().cycle().take(count);
            refusal.rejected = policies.map(|p| reject(p, Stage::Compile, false)).collect();
            say(refusal, Claim::Anything)
        };
        match self.character {
            Character::Honest | Character::Slow | Character::Silent => Vec::new(),
            Character::Yes => vec![ack(), ack(), ack()],
            Character::WrongVersion => {
                let mut wrong = answer(down.nonce.clone());
                wrong.version = "e".repeat(64);
                vec![say(wrong, Claim::Nothing)]
            }
            Character::UnknownNonce => {
                let unknown = ["7-7".to_owned(), format!("{}0", down.nonce), "x".into()];
                unknown.map(|n| say(answer(n), Claim::Nothing)).into()
            }
            Character::Flood => (0..20).map(|_| nack(rng.below(100))).collect(),
            Character::Fickle => {
                let mut last = nack(0);
                last.claim = Claim::TakenBack;
                vec![ack(), nack(0), ack(), nack(1), last]
            }
        }
    }
}

// === impl Set ===

impl Set {
    /// The version, if all of it is loaded.
    fn whole(&self) -> Option<Version> {
        self.version.filter(|_| self.rejected.is_empty())
    }

    fn held(&self) -> BTreeMap<RevisionId, Arc<Policy>> {
        let loaded = self
            .announced
            .iter()
            .filter(|(id, _)| self.loaded.contains(*id));
        loaded.map(|(id, p)| (id.clone(), p.clone())).collect()
    }

    fn load(&mut self, policy: &Arc<Policy>, fate: Fate) {
        let retryable = match fate {
            Fate::Good | Fate::Late => {
                self.loaded.insert(policy.revision.clone());
                return;
            }
            Fate::Permanent => false,
            Fate::Retryable => true,
        };
        let rejection = reject(policy, Stage::Compile, retryable);
        self.rejected.insert(policy.revision.clone(), rejection);
    }
}

// === impl Stream ===

impl Stream {
    /// The difference to what the control plane was told or saw taken.
    #[allow(clippy::type_complexity)]
    fn apply(
        &self,
        down: &Down,
    ) -> Result<
        (
            BTreeMap<RevisionId, Arc<Policy>>,
            BTreeMap<Arc<str>, Arc<Route>>,
        ),
        String,
    > {
        let mut policies = self.base.clone();
        for gone in &down.removed_revisions {
            if policies.remove(gone).is_none() {
                return Err(format!("removes {gone}, which is not there"));
            }
        }
        policies.extend(collect(&down.policies));
        // Until something of the stream was taken, its routes are complete.
        let mut routes = if self.applied {
            self.base_routes.clone()
        } else {
            BTreeMap::new()
        };
        for gone in &down.removed_routes {
            if routes.remove(gone).is_none() {
                return Err(format!("removes route {gone}, which is not there"));
            }
        }
        routes.extend(collect_routes(&down.routes));
        Ok((policies, routes))
    }
}

/// How a content fares on a machine is settled when it is first met there.
fn fate(
    fates: &mut BTreeMap<Digest, Fate>,
    policy: &Policy,
    shaky: &BTreeSet<Digest>,
    rng: &mut Rng,
) -> Fate {
    let roll = rng.below(6);
    *fates.entry(policy.content_digest).or_insert(match roll {
        _ if !shaky.contains(&policy.content_digest) => Fate::Good,
        0 => Fate::Permanent,
        1 | 2 => Fate::Retryable,
        3 => Fate::Late,
        _ => Fate::Good,
    })
}

fn reject(policy: &Policy, stage: Stage, retryable: bool) -> Rejection {
    Rejection {
        revision: policy.revision.clone(),
        stage,
        failure: failure("does not load here"),
        retryable,
    }
}

fn failure(message: &str) -> Failure {
    Failure {
        code: 13,
        message: message.into(),
    }
}

fn collect(policies: &[Arc<Policy>]) -> BTreeMap<RevisionId, Arc<Policy>> {
    policies
        .iter()
        .map(|p| (p.revision.clone(), p.clone()))
        .collect()
}

fn collect_routes(routes: &[Arc<Route>]) -> BTreeMap<Arc<str>, Arc<Route>> {
    routes.iter().map(|r| (r.path.clone(), r.clone())).collect()
}
