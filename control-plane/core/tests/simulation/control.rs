//! The control plane as its processes drive it: streams around one plane, actions done one
//! after the other, and an end at any moment.

use std::collections::{BTreeMap, VecDeque};

use assent_core::{
    plane::{Effect, Event, Plane},
    rollout::{Input, Output, PolicyId, Refusal, RefusalReason, StoredRevisions},
};

use crate::{
    check,
    world::{Control, GRACE, Happening, TIMING, World},
};

type Verdict = Result<(), String>;

impl World {
    /// A control plane starts and reads what is stored.
    pub(crate) fn plane_start(&mut self) -> Verdict {
        self.epoch += 1;
        self.note(|| "control plane starts".into());
        self.control = Some(Control {
            plane: Plane::new(GRACE),
            streams: 0,
            actions: VecDeque::new(),
            busy: false,
            unheard: false,
            wake: None,
            statuses: BTreeMap::new(),
            beliefs: BTreeMap::new(),
            relied_on: BTreeMap::new(),
        });
        let (server, counted) = (World::server(), self.counted);
        self.apply(Event::ServerAdded { server, counted })?;
        self.expect_replicas()?;
        let ids: Vec<PolicyId> = self.store.objects.keys().cloned().collect();
        for id in ids {
            self.observe(&id, true)?;
        }
        let epoch = self.epoch;
        let after = self.rng.millis(0, 3_000);
        self.after(after, Happening::PlaneSynced { epoch });
        Ok(())
    }

    pub(crate) fn expect_replicas(&mut self) -> Verdict {
        let (server, replicas) = (World::server(), self.expected());
        self.apply(Event::ReplicasExpected { server, replicas })
    }

    /// The process dies: streams, timers and actions that were not done die with it.
    pub(crate) fn plane_crash(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.history.restarts += 1;
        self.note(|| "control plane crashes".into());
        let ids: Vec<u64> = self.links.keys().copied().collect();
        for link in ids {
            let dead = self
                .links
                .get_mut(&link)
                .expect("a listed link must be there");
            dead.cut();
            dead.session = None;
            let after = self.rng.millis(1, 3_000);
            self.after(after, Happening::ClientCloses { link });
        }
        let after = self.rng.millis(100, 20_000);
        self.after(after, Happening::PlaneStart);
    }

    pub(crate) fn is_epoch(&self, epoch: u64) -> bool {
        self.control.is_some() && self.epoch == epoch
    }

    /// Feeds one event to the plane and does what follows.
    pub(crate) fn apply(&mut self, event: impl Into<Event>) -> Verdict {
        let now = self.now;
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        let mut effects = Vec::new();
        control.plane.apply(now, event.into(), &mut effects);
        self.perform(effects)?;
        self.settle()
    }

    pub(crate) fn settle(&mut self) -> Verdict {
        for round in 0.. {
            let now = self.now;
            let Some(control) = &mut self.control else {
                return Ok(());
            };
            let mut effects = Vec::new();
            control.plane.settle(now, &mut effects);
            if effects.is_empty() {
                break;
            }
            if round > 16 {
                return Err("the plane does not settle".into());
            }
            self.perform(effects)?;
        }
        self.schedule_wake()?;
        self.check_status()
    }

    fn schedule_wake(&mut self) -> Verdict {
        let (now, epoch) = (self.now, self.epoch);
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        let Some(deadline) = control.plane.deadline() else {
            return Ok(());
        };
        if deadline <= now {
            return Err(format!("the plane waits for the past: {deadline:?}"));
        }
        if control.wake.is_none_or(|at| at <= now || at > deadline) {
            control.wake = Some(deadline);
            self.at(deadline, Happening::Wake { epoch });
        }
        Ok(())
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Verdict {
        for effect in effects {
            match effect {
                Effect::Publish { snapshot, .. } => {
                    self.note(|| format!("publishes {}", &snapshot.version().to_string()[..8]));
                    self.check_publish(&snapshot)?;
                    let ids: Vec<u64> = self.links.keys().copied().collect();
                    for id in ids {
                        self.offer(id, &snapshot)?;
                    }
                }
                Effect::Rollout(id, output) => self.ask(id, output)?,
                Effect::AppliedEverywhere { .. } => {}
            }
        }
        Ok(())
    }

    fn ask(&mut self, id: PolicyId, output: Output) -> Verdict {
        if let Output::Flip { to, .. } = &output {
            self.check_flip(to)?;
        }
        // Stores are slow at times: what only leaves may come after what was asked later.
        if matches!(output, Output::Retire(_)) && !self.is_healed() && self.rng.percent(15) {
            let (epoch, action) = (self.epoch, Box::new((id, output)));
            let after = self.rng.millis(100, 20_000);
            self.after(after, Happening::PutOff { epoch, action });
            return Ok(());
        }
        self.queue_action(id, output);
        Ok(())
    }

    pub(crate) fn queue_action(&mut self, id: PolicyId, output: Output) {
        let control = self.control.as_mut().expect("who asks must be there");
        control.actions.push_back((id, output));
        self.next_deed();
    }

    fn next_deed(&mut self) {
        let epoch = self.epoch;
        let Some(control) = &mut self.control else {
            return;
        };
        if !control.busy && !control.actions.is_empty() {
            control.busy = true;
            let after = self.rng.millis(0, 400);
            self.after(after, Happening::Land { epoch });
        }
    }

    /// The oldest action is done; whoever asked may die before hearing of it.
    pub(crate) fn land(&mut self, epoch: u64) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let control = self.control.as_mut().expect("an epoch must have its plane");
        let (id, output) = control
            .actions
            .pop_front()
            .expect("a action must be waiting");
        control.unheard = true;
        let input = self.write(&id, &output)?;
        let after = self.rng.millis(0, 200);
        let event = match input {
            Some(input) => Event::Rollout(id, input),
            None => Event::Synced,
        };
        let event = Box::new(event);
        self.after(after, Happening::Landed { epoch, event });
        Ok(())
    }

    pub(crate) fn landed(&mut self, epoch: u64, event: Event) -> Verdict {
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let control = self.control.as_mut().expect("an epoch must have its plane");
        control.busy = false;
        control.unheard = false;
        // What is not about a policy only makes room for the next action.
        if matches!(event, Event::Rollout(..)) {
            self.apply(event)?;
        }
        self.next_deed();
        Ok(())
    }

    fn write(&mut self, id: &PolicyId, output: &Output) -> Result<Option<Input>, String> {
        let (now, fails) = (self.now, !self.is_healed() && self.rng.percent(15));
        self.note(|| format!("{} {}", id.key, check::show(output)));
        let Some(object) = self.store.objects.get_mut(id) else {
            return match output {
                // An action that was delayed may have become pointless.
                Output::Retire(_) | Output::Enforced(_) | Output::Release => Ok(None),
                // A watch reported the object once more after the plane had released it, so
                // that its deletion was observed twice. The second one finds nothing.
                Output::RemoveWebhook => Ok(Some(Input::WebhookRemoved)),
                Output::Flip { .. } => Err(format!("{id:?} is gone before {output:?}")),
            };
        };
        Ok(match output {
            Output::Flip { .. } if fails => Some(Input::FlipFailed),
            Output::Flip { from, to } => {
                object.flip(now, from.as_ref(), to)?;
                self.history.flips += 1;
                self.check_flipped(from.as_ref(), to)?;
                Some(Input::Flipped(to.revision.clone()))
            }
            Output::Retire(revision) => {
                let drain = u64::try_from(TIMING.drain.as_millis()).unwrap_or(u64::MAX);
                object.retire(now, revision, drain)?;
                self.history.asked.remove(revision);
                Some(Input::Retired(revision.clone()))
            }
            Output::RemoveWebhook => {
                if let Some(webhook) = &object.webhook {
                    self.history.asked.insert(webhook.revision.clone(), now);
                }
                object.unroute(now);
                Some(Input::WebhookRemoved)
            }
            Output::Release => {
                self.release(id)?;
                None
            }
            Output::Enforced(_) => None,
        })
    }

    fn release(&mut self, id: &PolicyId) -> Verdict {
        let object = self
            .store
            .objects
            .remove(id)
            .expect("a released object must be there");
        if object.webhook.is_some() || !object.deleting {
            return Err(format!("I5: {id:?} is released with its webhook"));
        }
        for policy in object.revisions.values() {
            self.history.asked.remove(&policy.revision);
        }
        self.store.released.insert(id.clone());
        Ok(())
    }

    /// The plane sees an object as it is now.
    pub(crate) fn observe(&mut self, id: &PolicyId, starts: bool) -> Verdict {
        let Some(object) = self.store.objects.get(id) else {
            return Ok(());
        };
        let generation = object.newest.generation;
        let (deleting, vet) = (object.deleting, object.accepted < generation);
        let event = Event::PolicyObserved {
            id: id.clone(),
            server: World::server(),
            generation,
            timing: TIMING,
            stored: if starts {
                object.stored()
            } else {
                StoredRevisions::default()
            },
        };
        self.apply(event)?;
        if deleting {
            return self.apply(Event::Rollout(id.clone(), Input::Deleted));
        }
        if vet {
            let (epoch, id) = (self.epoch, id.clone());
            let after = self.rng.millis(10, 3_000);
            self.after(
                after,
                Happening::Vetted {
                    epoch,
                    id,
                    generation,
                },
            );
        }
        Ok(())
    }

    pub(crate) fn vetted(&mut self, epoch: u64, id: PolicyId, generation: i64) -> Verdict {
        let Some(object) = self
            .store
            .objects
            .get_mut(&id)
            .filter(|_| self.control.is_some() && self.epoch == epoch)
        else {
            return Ok(());
        };
        if object.newest.generation != generation
            || object.deleting
            || object.accepted >= generation
        {
            return Ok(());
        }
        if !object.acceptable {
            let refusal = Refusal {
                reason: RefusalReason::Invalid,
                message: "does not compile".into(),
            };
            return self.apply(Event::refused(id, generation, refusal));
        }
        let policy = object.newest.clone();
        object.accepted = generation;
        object.revisions.insert(generation, policy.clone());
        // The end may come between the revision and the news of it.
        if !self.is_healed() && self.rng.percent(3) {
            self.plane_crash();
            return Ok(());
        }
        self.apply(Event::ready(id, policy))
    }
}
