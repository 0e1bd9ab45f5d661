//! One leader: the controller, its watches, and its loop.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use assent_api::parse;
use assent_controller::{
    Action, Change, Config, Controller, Kind, Outcome,
    action::{StatusTarget, StatusUpdate},
};
use assent_core::{Millis, RevisionId, Snapshot, plane::StreamEvent, rollout::PolicyId};

use crate::{
    Verdict,
    backend::{Cluster, Webhook},
    jobs::PhaseWrite,
    world::{DRAIN, GRACE, Happening, RESYNC, World},
};

/// What a leader watches.
pub(crate) const KINDS: [Kind; 8] = [
    Kind::ClusterPolicies,
    Kind::Policies,
    Kind::Servers,
    Kind::Revisions,
    Kind::Validating,
    Kind::Mutating,
    Kind::Pods,
    Kind::Sets,
];

/// One leadership.
pub(crate) struct Process {
    pub(crate) controller: Controller<Cluster>,
    pub(crate) since: Millis,
    /// For each kind that was listed: the first event after the list, and when the last one was reported.
    watches: BTreeMap<Kind, (usize, Millis)>,
    wake: Option<Millis>,
    /// Servers whose streams are accepted.
    pub(crate) servers: BTreeSet<String>,
    pub(crate) published: BTreeMap<String, Arc<Snapshot>>,
    pub(crate) streams: u64,
    /// Phases of one policy are written in order.
    pub(crate) phases: BTreeMap<PolicyId, VecDeque<PhaseWrite>>,
    /// The newest status of each object that is not written yet.
    pub(crate) statuses: BTreeMap<StatusTarget, StatusUpdate>,
    pub(crate) vetting: BTreeMap<PolicyId, i64>,
    /// What each replica said that it has loaded, by the name of its pod.
    pub(crate) beliefs: BTreeMap<String, BTreeSet<RevisionId>>,
    /// Their processes.
    pub(crate) instances: BTreeMap<String, String>,
    /// When the last action was asked for, and what.
    pub(crate) last_action: Option<(Millis, String)>,
}

// === impl World ===

impl World {
    /// A process begins to lead. It may lack modules that the one before it had.
    pub(crate) fn lead(&mut self) -> Verdict {
        if self.process.is_some() {
            return Ok(());
        }
        self.epoch += 1;
        let epoch = self.epoch;
        let which = usize::from(epoch.is_multiple_of(2));
        let modules = self.modules[which].clone();
        let config = Config {
            parse: parse::Options::default(),
            kinds: KINDS.to_vec(),
            drain: Some(DRAIN),
            grace: GRACE,
            sync_deadline: Duration::from_secs(30),
            max_policies_per_namespace: None,
            no_context: None,
        };
        self.note(|| format!("=== leader {epoch}"));
        self.process = Some(Process {
            controller: Controller::new(Cluster, config, modules),
            since: self.now,
            watches: BTreeMap::new(),
            wake: None,
            servers: BTreeSet::new(),
            published: BTreeMap::new(),
            streams: 0,
            phases: BTreeMap::new(),
            statuses: BTreeMap::new(),
            vetting: BTreeMap::new(),
            beliefs: BTreeMap::new(),
            instances: BTreeMap::new(),
            last_action: None,
        });
        for kind in KINDS {
            self.within(5, 400, Happening::List { epoch, kind });
        }
        if self.resyncs {
            self.at(self.now + RESYNC, Happening::Resync { epoch });
        }
        Ok(())
    }

    /// The leader ends, whatever it was doing. What it had sent may still be performed.
    pub(crate) fn crash(&mut self) {
        if self.process.take().is_none() {
            return;
        }
        self.history.seen.fail_overs += 1;
        let epoch = self.epoch;
        self.note(|| format!("leader {epoch} ends"));
        let links: Vec<u64> = self.links.keys().copied().collect();
        for link in links {
            self.within(0, 500, Happening::Close { link });
        }
        self.within(10, 6_000, Happening::Lead);
    }

    pub(crate) fn is_epoch(&self, epoch: u64) -> bool {
        self.process.is_some() && self.epoch == epoch
    }

    /// Everything of a kind is listed; what is older than the list is not reported any more.
    pub(crate) fn list(&mut self, epoch: u64, kind: Kind) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        if self.now < self.faults.api && self.rng.percent(50) {
            self.within(500, 2_000, Happening::List { epoch, kind });
            return Ok(());
        }
        let objects = self.api.list(kind).cloned().collect();
        let (index, at) = (self.api.log.len(), self.now + self.rng.millis(1, 100));
        let process = self.process.as_mut().unwrap();
        process.watches.insert(kind, (index, at));
        let change = Box::new(Change::Listed(kind, objects));
        self.at(
            at,
            Happening::Report {
                epoch,
                kind,
                index,
                change,
            },
        );
        Ok(())
    }

    /// Queues what the API server has to report, in order for each kind.
    pub(crate) fn report_changes(&mut self) {
        for index in self.reported..self.api.log.len() {
            let (kind, change) = self.api.log[index].clone();
            let lags = self
                .faults
                .lag
                .get(&kind)
                .is_some_and(|until| self.now < *until);
            let delay = if lags {
                self.rng.millis(100, 15_000)
            } else {
                self.rng.millis(1, 80)
            };
            let (epoch, now) = (self.epoch, self.now);
            let Some(process) = &mut self.process else {
                continue;
            };
            let Some((from, last)) = process.watches.get_mut(&kind) else {
                continue;
            };
            if index < *from {
                continue;
            }
            *last = (now + delay).max(*last);
            let (at, change) = (*last, Box::new(change));
            self.at(
                at,
                Happening::Report {
                    epoch,
                    kind,
                    index,
                    change,
                },
            );
        }
        self.reported = self.api.log.len();
    }

    pub(crate) fn report(
        &mut self,
        epoch: u64,
        kind: Kind,
        index: usize,
        change: Change<Webhook>,
    ) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let now = self.clock();
        let process = self.process.as_mut().unwrap();
        // Another list has been made since.
        if process
            .watches
            .get(&kind)
            .is_some_and(|(from, _)| index < *from)
        {
            return Ok(());
        }
        process.controller.change(now, change);
        self.settle()
    }

    pub(crate) fn wake(&mut self, epoch: u64) -> Verdict {
        match self.is_epoch(epoch) {
            true => self.settle(),
            false => Ok(()),
        }
    }

    pub(crate) fn resync(&mut self, epoch: u64) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let now = self.clock();
        self.process.as_mut().unwrap().controller.resync(now);
        self.at(self.now + RESYNC, Happening::Resync { epoch });
        self.settle()
    }

    pub(crate) fn outcome(&mut self, epoch: u64, outcome: Outcome<Cluster>) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let now = self.clock();
        let process = self.process.as_mut().unwrap();
        if let Outcome::Vetted {
            id,
            generation,
            result,
        } = &outcome
        {
            // A job that was cancelled reports nothing.
            if process.vetting.get(id) != Some(generation) {
                return Ok(());
            }
            process.vetting.remove(id);
            if let Ok(module) = result {
                self.modules[usize::from(epoch.is_multiple_of(2))].insert(module.digest);
            }
        }
        if let Outcome::PhaseSet(id, ..) | Outcome::Retired(id, _) = &outcome {
            self.phase_written(id);
        }
        let process = self.process.as_mut().unwrap();
        process.controller.outcome(now, outcome);
        self.settle()
    }

    /// A stream reported something.
    pub(crate) fn told(&mut self, epoch: u64, event: StreamEvent) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let now = self.clock();
        self.believe(&event);
        self.process.as_mut().unwrap().controller.stream(now, event);
        self.settle()
    }

    /// Decides on everything that came in, and begins what follows from it.
    pub(crate) fn settle(&mut self) -> Verdict {
        let (now, epoch) = (self.clock(), self.epoch);
        let process = self.process.as_mut().expect("who settles must lead");
        let actions: Vec<Action<Cluster>> = process.controller.settle(now);
        for action in actions {
            self.perform(action)?;
        }
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let Some(deadline) = process.controller.deadline() else {
            return Ok(());
        };
        if deadline <= now.at {
            return Err(format!(
                "F21: the controller waits for the past: {deadline:?}"
            ));
        }
        if process.wake.is_none_or(|at| at <= now.at || at > deadline) {
            process.wake = Some(deadline);
            self.at(deadline, Happening::Wake { epoch });
        }
        Ok(())
    }
}
