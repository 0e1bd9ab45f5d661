//! Evaluators: connected to the leader by real sessions, they load what they are sent, or reject it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_controller::{Kind, Object};
use assent_core::{
    Millis, PolicyKey, RevisionId, RouteState, Snapshot,
    fleet::Node,
    plane::StreamEvent,
    session::{
        self, Answer, Failure, InitialRequest, Rejection, Response, Session, Stage, StreamKind,
    },
};

use crate::{
    Verdict,
    jobs::is_of,
    world::{Content, Happening, World},
};

/// The evaluator of one pod.
pub(crate) struct Evaluator {
    /// The uid of the pod.
    pub(crate) uid: String,
    pub(crate) server: String,
    pub(crate) up: bool,
    /// Counts processes: another one has not said what it serves.
    pub(crate) instance: u64,
    /// What its version can do.
    pub(crate) features: Vec<String>,
    pub(crate) set: Option<Set>,
    pub(crate) disk: Option<Set>,
    pub(crate) link: Option<u64>,
    /// The newest generation that was active here, by policy and uid.
    newest: BTreeMap<(PolicyKey, Box<str>), i64>,
    /// Flaky contents that load by now.
    settled: BTreeSet<RevisionId>,
}

/// What an evaluator has.
#[derive(Clone)]
pub(crate) struct Set {
    snapshot: Arc<Snapshot>,
    loaded: BTreeSet<RevisionId>,
    rejected: BTreeMap<RevisionId, bool>,
}

/// One stream.
pub(crate) struct Link {
    pub(crate) pod: String,
    instance: u64,
    epoch: u64,
    number: u64,
    server: String,
    session: Session,
    answered: Option<String>,
    last: Millis,
}

// === impl Set ===

impl Set {
    /// Whether requests for a path are answered here, if only by an explained failure.
    pub(crate) fn answers(&self, path: &RevisionId) -> bool {
        self.snapshot.contains(path.as_str())
    }

    pub(crate) fn serves(&self, revision: &RevisionId) -> bool {
        self.loaded.contains(revision)
    }

    pub(crate) fn version(&self) -> assent_core::Version {
        self.snapshot.version()
    }
}

// === impl World ===

impl World {
    pub(crate) fn connect(&mut self, name: &str, instance: u64) -> Verdict {
        let known = self
            .evaluators
            .get(name)
            .filter(|e| e.up && e.instance == instance);
        let Some(evaluator) = known.filter(|e| e.link.is_none()) else {
            return Ok(());
        };
        let server = evaluator.server.clone();
        let apart = self
            .faults
            .partitioned
            .get(name)
            .is_some_and(|until| self.now < *until);
        let process = self
            .process
            .as_mut()
            .filter(|p| !apart && p.servers.contains(&server));
        let Some(process) = process else {
            let pod = name.to_owned();
            self.within(300, 2_000, Happening::Connect { pod, instance });
            return Ok(());
        };
        process.streams += 1;
        let (epoch, number) = (self.epoch, process.streams);
        let published = process.published.get(&server).cloned();
        let first = InitialRequest {
            version: evaluator
                .set
                .as_ref()
                .and_then(Set::whole)
                .unwrap_or_default(),
            held: evaluator.set.as_ref().map(Set::held).unwrap_or_default(),
        };
        let link = Link {
            pod: name.to_owned(),
            instance,
            epoch,
            number,
            server: server.clone(),
            session: Session::new(StreamKind::Delta, number, first),
            answered: None,
            last: self.now,
        };
        let id = self.next_link;
        self.next_link += 1;
        let identity = format!("pod {name} {}", evaluator.uid);
        let features = evaluator.features.clone();
        self.links.insert(id, link);
        self.evaluators.get_mut(name).unwrap().link = Some(id);
        let event = StreamEvent::Opened {
            node: Node {
                id: name.to_owned(),
                policy_server: server,
                instance_uid: instance.to_string(),
                features,
                ..Node::default()
            },
            identity,
            stream: number,
        };
        self.note(|| format!("{name} connects"));
        self.told(epoch, event)?;
        match published {
            Some(snapshot) => self.offer(id, &snapshot),
            None => Ok(()),
        }
    }

    pub(crate) fn publish(&mut self, server: &str, snapshot: Arc<Snapshot>) -> Verdict {
        self.check_published(server, &snapshot)?;
        let process = self.process.as_mut().unwrap();
        process
            .published
            .insert(server.to_owned(), snapshot.clone());
        let own = self
            .links
            .iter()
            .filter(|(_, l)| l.server == server && l.epoch == self.epoch);
        let own: Vec<u64> = own.map(|(id, _)| *id).collect();
        own.into_iter().try_for_each(|id| self.offer(id, &snapshot))
    }

    pub(crate) fn end_streams(&mut self, server: &str) {
        let process = self.process.as_mut().unwrap();
        process.servers.remove(server);
        process.published.remove(server);
        let own = self.links.iter().filter(|(_, l)| l.server == server);
        let own: Vec<u64> = own.map(|(id, _)| *id).collect();
        for link in own {
            self.within(0, 300, Happening::Close { link });
        }
    }

    fn offer(&mut self, id: u64, snapshot: &Arc<Snapshot>) -> Verdict {
        if let Some(link) = self.links.get_mut(&id) {
            let mut out = Vec::new();
            link.session
                .step(session::Input::Publish(snapshot.clone()), &mut out);
            self.emit(id, out);
        }
        Ok(())
    }

    pub(crate) fn answered(&mut self, id: u64, answer: Answer) {
        if let Some(link) = self.links.get_mut(&id) {
            let mut out = Vec::new();
            link.session.step(session::Input::Answer(answer), &mut out);
            self.emit(id, out);
        }
    }

    fn emit(&mut self, id: u64, out: Vec<session::Output>) {
        for output in out {
            match output {
                session::Output::Count(_) => {}
                session::Output::Report(report) => {
                    let link = &self.links[&id];
                    let event = StreamEvent::Reported {
                        server: link.server.as_str().into(),
                        replica: link.pod.as_str().into(),
                        stream: link.number,
                        report,
                    };
                    self.tell(id, event);
                }
                session::Output::Send(response) => {
                    let response = Box::new(response);
                    self.within(1, 100, Happening::Send { link: id, response });
                }
            }
        }
    }

    /// Queues what a stream has to say, in its order.
    fn tell(&mut self, id: u64, event: StreamEvent) {
        let after = self.rng.millis(0, 20);
        let link = self.links.get_mut(&id).unwrap();
        link.last = (self.now + after).max(link.last);
        let (at, epoch, event) = (link.last, link.epoch, Box::new(event));
        self.at(at, Happening::Told { epoch, event });
    }

    pub(crate) fn close(&mut self, id: u64) {
        let Some(link) = self.links.get(&id) else {
            return;
        };
        let event = StreamEvent::Closed {
            server: link.server.as_str().into(),
            replica: link.pod.as_str().into(),
            stream: link.number,
        };
        let (pod, instance) = (link.pod.clone(), link.instance);
        self.tell(id, event);
        self.links.remove(&id);
        if let Some(evaluator) = self.evaluators.get_mut(&pod)
            && evaluator.link == Some(id)
        {
            evaluator.link = None;
            self.within(100, 2_000, Happening::Connect { pod, instance });
        }
    }

    pub(crate) fn receive(&mut self, link: u64, response: Response) {
        let response = Box::new(response);
        self.within(1, 400, Happening::Loaded { link, response });
    }

    /// An evaluator has tried to load what it was sent, and serves what it could.
    pub(crate) fn loaded(&mut self, id: u64, response: &Response) -> Verdict {
        let Some(link) = self.links.get(&id) else {
            return Ok(());
        };
        let (pod, instance) = (link.pod.clone(), link.instance);
        // The process may have ended before the end of its stream is noticed.
        let process = self.evaluators.get(&pod);
        if process.is_none_or(|e| !e.up || e.instance != instance) {
            return Ok(());
        }
        let nonce = response.nonce.to_string();
        if !self.is_healed() && self.rng.percent(2) {
            let answer = Answer {
                nonce,
                error: Some(failure("no room on disk")),
                ..Answer::default()
            };
            self.send_answer(id, answer);
            // One that took nothing asks again.
            self.within(2_000, 8_000, Happening::Close { link: id });
            return Ok(());
        }
        let fates: Vec<(RevisionId, Content)> = response
            .to
            .policies()
            .filter(|p| p.has_content())
            .map(|p| {
                (
                    p.revision.clone(),
                    self.content_of(&p.content.settings_json),
                )
            })
            .collect();
        let (healed, flaky) = (self.is_healed(), self.rng.percent(50));
        let evaluator = self
            .evaluators
            .get_mut(&pod)
            .expect("who has a stream must be there");
        let destroyed = &self.history.destroyed;
        let set = evaluator.load(&response.to, &fates, destroyed, flaky && !healed)?;
        evaluator.set = Some(set.clone());
        evaluator.disk = Some(set.clone());
        if set.rejected.values().any(|retryable| *retryable) {
            self.within(
                500,
                8_000,
                Happening::Retry {
                    pod: pod.clone(),
                    instance,
                },
            );
        }
        self.links.get_mut(&id).unwrap().answered = Some(nonce.clone());
        self.send_answer(id, set.answer(nonce));
        self.within(
            50,
            1_000,
            Happening::Ready {
                pod,
                instance,
                ready: true,
            },
        );
        Ok(())
    }

    /// What could not be loaded is tried again, and loads.
    pub(crate) fn retry(&mut self, name: &str, instance: u64) {
        let known = self.evaluators.get_mut(name);
        let Some(evaluator) = known.filter(|e| e.up && e.instance == instance) else {
            return;
        };
        let Some(set) = &mut evaluator.set else {
            return;
        };
        let again: Vec<RevisionId> = set
            .rejected
            .iter()
            .filter(|(_, r)| **r)
            .map(|(r, _)| r.clone())
            .collect();
        for revision in again {
            set.rejected.remove(&revision);
            evaluator.settled.insert(revision.clone());
            set.loaded.insert(revision);
        }
        evaluator.disk = Some(set.clone());
        let set = set.clone();
        let link = evaluator
            .link
            .and_then(|id| Some((id, self.links.get(&id)?.answered.clone()?)));
        if let Some((id, nonce)) = link {
            self.send_answer(id, set.answer(nonce));
        }
    }

    fn send_answer(&mut self, link: u64, answer: Answer) {
        let answer = Box::new(answer);
        self.within(1, 100, Happening::Answer { link, answer });
    }

    /// Pods of a server that are endpoints of its Service, with their evaluators.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (&str, &Evaluator)> {
        let pods = self.api.list(Kind::Pods).filter_map(|object| match object {
            Object::Pod(pod) if pod.ready => Some(pod.meta.name.as_str()),
            _ => None,
        });
        pods.filter_map(|name| Some((name, self.evaluators.get(name)?)))
            .filter(|(_, evaluator)| evaluator.up)
    }

    /// Pods of a server that are endpoints or connected: name and process.
    pub(crate) fn counted(&self, server: &str) -> BTreeSet<(String, u64)> {
        let pods = self.api.list(Kind::Pods).filter(|o| is_of(o, server));
        let pods = pods.filter_map(|object| {
            let Object::Pod(pod) = object else {
                return None;
            };
            let evaluator = self.evaluators.get(&pod.meta.name)?;
            let connected = evaluator
                .link
                .is_some_and(|id| self.links[&id].epoch == self.epoch);
            (pod.ready || connected).then(|| (pod.meta.name.clone(), evaluator.instance))
        });
        pods.collect()
    }

    /// Ends everything that keeps evaluators apart.
    pub(crate) fn heal_evaluators(&mut self) {
        self.faults.partitioned.clear();
        let names: Vec<String> = self.evaluators.keys().cloned().collect();
        for name in names {
            let instance = self.evaluators[&name].instance;
            self.within(
                10,
                500,
                Happening::Retry {
                    pod: name,
                    instance,
                },
            );
        }
    }
}

// === impl Evaluator ===

impl Evaluator {
    pub(crate) fn new(uid: &str, server: &str) -> Self {
        Self {
            uid: uid.into(),
            server: server.into(),
            up: false,
            instance: 0,
            features: Vec::new(),
            set: None,
            disk: None,
            link: None,
            newest: BTreeMap::new(),
            settled: BTreeSet::new(),
        }
    }

    /// Loads what can be loaded. I2: what is active here never goes back, unless it was destroyed: then the last revision
    /// that exists protects better than none.
    fn load(
        &mut self,
        to: &Arc<Snapshot>,
        fates: &[(RevisionId, Content)],
        destroyed: &BTreeSet<RevisionId>,
        flaky: bool,
    ) -> Result<Set, String> {
        for route in to.routes().filter(|r| r.state == RouteState::Active) {
            let parts = route.revisions[0].parts().unwrap();
            let key = (parts.policy.clone(), parts.uid8.clone());
            let newest = self.newest.entry(key).or_insert(parts.generation);
            let last = RevisionId::new(&parts.policy, *newest, &parts.uid8);
            if *newest > parts.generation && !destroyed.contains(&last) {
                return Err(format!("I2: {} goes back from {newest}", route.path));
            }
            *newest = parts.generation;
        }
        let mut set = Set {
            snapshot: to.clone(),
            loaded: BTreeSet::new(),
            rejected: BTreeMap::new(),
        };
        for policy in to.policies() {
            let revision = policy.revision.clone();
            let had = self.set.as_ref().filter(|s| {
                let known = s.snapshot.get(revision.as_str());
                s.serves(&revision)
                    && known.is_some_and(|p| p.content_digest == policy.content_digest)
            });
            let fate = fates
                .iter()
                .find(|(r, _)| *r == revision)
                .map(|(_, fate)| *fate);
            let loads = match fate {
                _ if had.is_some() => Ok(()),
                // Only its name is known.
                None => Err(false),
                Some(Content::Rejected | Content::Invalid) => Err(false),
                Some(Content::Flaky) if flaky && !self.settled.contains(&revision) => Err(true),
                Some(Content::Flaky | Content::Good) => Ok(()),
            };
            match loads {
                Ok(()) => drop(set.loaded.insert(revision)),
                Err(retryable) => drop(set.rejected.insert(revision, retryable)),
            }
        }
        Ok(set)
    }
}

impl Set {
    fn whole(&self) -> Option<String> {
        self.rejected
            .is_empty()
            .then(|| self.snapshot.version().to_string())
    }

    fn held(&self) -> BTreeMap<String, assent_core::Digest> {
        let held = self
            .snapshot
            .policies()
            .filter(|p| self.serves(&p.revision));
        held.map(|p| (p.revision.to_string(), p.content_digest))
            .collect()
    }

    fn answer(&self, nonce: String) -> Answer {
        let rejected = self.rejected.iter().map(|(revision, retryable)| Rejection {
            revision: revision.clone(),
            stage: Stage::Compile,
            failure: failure("does not load"),
            retryable: *retryable,
        });
        let rejected: Vec<Rejection> = rejected.collect();
        Answer {
            nonce,
            version: self.whole().unwrap_or_default(),
            error: rejected.first().map(|r| r.failure.clone()),
            rejected,
            truncated: false,
        }
    }
}

fn failure(message: &str) -> Failure {
    Failure {
        code: 13,
        message: message.into(),
    }
}
