//! The control plane's ends of streams: sessions, and what they tell the plane.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use assent_core::{
    Snapshot,
    fleet::{Connection, Name, Node},
    plane::StreamEvent,
    session::{self, Report, Session, StreamKind},
};

use crate::{
    network::Link,
    wire::{Claim, Down, Up},
    world::{Happening, World},
};

type Verdict = Result<(), String>;

impl World {
    /// A first message arrives.
    pub(crate) fn arrive(&mut self, id: u64) -> Verdict {
        let epoch = self.epoch;
        let Some(link) = self.links.get_mut(&id).filter(|l| !l.up_cut) else {
            return Ok(());
        };
        let Some(control) = &mut self.control else {
            self.after(
                Duration::from_millis(5),
                Happening::ClientCloses { link: id },
            );
            return Ok(());
        };
        control.streams += 1;
        link.epoch = epoch;
        link.number = control.streams;
        let client = &self.clients[link.client];
        link.session = Some(Session::new(
            client.kind,
            link.number,
            link.hello.first.clone(),
        ));
        let node = Node {
            id: client.name.clone(),
            policy_server: World::server().to_string(),
            instance_uid: link.hello.instance.clone(),
            ..Node::default()
        };
        let (identity, stream, who) = (client.name.clone(), link.number, link.client);
        let name: Name = client.name.as_str().into();
        let known = control
            .beliefs
            .get(&name)
            .is_some_and(|(i, _)| *i == node.instance_uid);
        if !known {
            control
                .beliefs
                .insert(name.clone(), (node.instance_uid.clone(), Claim::Nothing));
        }
        link.believed = control.beliefs[&name].1.clone();
        self.apply(StreamEvent::Opened {
            node,
            identity,
            stream,
        })?;
        self.supersede(id, who);
        let published = self
            .control
            .as_ref()
            .and_then(|c| c.plane.server("default")?.published().cloned());
        match published {
            Some(snapshot) => self.offer(id, &snapshot),
            None => Ok(()),
        }
    }

    /// R28: the older stream is closed; what it still says comes late.
    fn supersede(&mut self, id: u64, who: usize) {
        let older = self
            .links
            .iter()
            .filter(|(n, l)| **n != id && l.client == who && l.session.is_some());
        let older: Vec<u64> = older.map(|(n, _)| *n).collect();
        for link in older {
            let after = self.rng.millis(0, 2_000);
            self.after(after, Happening::PlaneCloses { link });
            self.after(after, Happening::ClientCloses { link });
        }
    }

    pub(crate) fn offer(&mut self, id: u64, snapshot: &Arc<Snapshot>) -> Verdict {
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        let Some(session) = &mut link.session else {
            return Ok(());
        };
        link.sent.offered += 1;
        let mut out = Vec::new();
        session.step(session::Input::Publish(snapshot.clone()), &mut out);
        let sends = out.iter().any(|o| matches!(o, session::Output::Send(_)));
        // A state-of-the-world client that named this version is taken at its word.
        let says = link.hello.first.version == snapshot.version().to_string();
        let silent = self.clients[link.client].kind == StreamKind::StateOfTheWorld && !sends;
        if silent && says && link.sent.newest.is_none() {
            link.claim = Claim::Loaded(link.hello.loaded.clone());
        }
        self.emit(id, out)
    }

    /// A message of a client arrives.
    pub(crate) fn up(&mut self, id: u64, up: Up) -> Verdict {
        let Some(link) = self.links.get_mut(&id).filter(|l| !l.up_cut) else {
            return Ok(());
        };
        let Some(session) = &mut link.session else {
            return Ok(());
        };
        if link.sent.is_newest(&up.answer.nonce) && !matches!(up.claim, Claim::Nothing) {
            link.sent.answered = true;
            link.claim = match (up.claim, std::mem::take(&mut link.claim)) {
                (Claim::AsBefore, Claim::Nothing) => Claim::AsBefore,
                (Claim::AsBefore, before) => before,
                (Claim::TakenBack, _) if !matches!(link.settled, Claim::Nothing) => {
                    link.settled.clone()
                }
                (said, _) => said,
            };
        }
        let mut out = Vec::new();
        session.step(session::Input::Answer(up.answer), &mut out);
        let report = session.report();
        if report
            .applied
            .is_some_and(|t| t.rejected.len() > session::MAX_REJECTED)
        {
            return Err("I10: a session keeps more rejections than it may".into());
        }
        self.emit(id, out)
    }

    fn emit(&mut self, id: u64, out: Vec<session::Output>) -> Verdict {
        for output in out {
            match output {
                session::Output::Count(_) => {}
                session::Output::Report(report) => self.tell(id, Some(report)),
                session::Output::Send(response) => {
                    self.check_send(id, &response)?;
                    let down = Box::new(Down::of(&response));
                    let after = self.rng.millis(1, 150);
                    let now = self.now;
                    let link = self.links.get_mut(&id).expect("who sends must have a link");
                    if matches!(link.claim, Claim::Loaded(_) | Claim::Anything) {
                        link.settled = link.claim.clone();
                    }
                    link.last_down = (now + after).max(link.last_down);
                    let at = link.last_down;
                    self.at(at, Happening::Down { link: id, down });
                }
            }
        }
        Ok(())
    }

    /// Queues what a stream has to say, in its order; none is its end.
    fn tell(&mut self, id: u64, report: Option<Report>) {
        let after = self.rng.millis(0, 30);
        let now = self.now;
        let link = self.links.get_mut(&id).expect("who tells must have a link");
        link.last_report = (now + after).max(link.last_report);
        let (at, claim) = (link.last_report, link.claim.clone());
        let report = report.map(Box::new);
        self.at(
            at,
            Happening::Report {
                link: id,
                report,
                claim,
            },
        );
    }

    pub(crate) fn plane_closes(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if link.session.take().is_some() {
            self.tell(id, None);
        }
    }

    pub(crate) fn report(&mut self, id: u64, report: Option<Report>, claim: Claim) -> Verdict {
        let Some(link) = self.links.get(&id) else {
            return Ok(());
        };
        let (epoch, stream) = (link.epoch, link.number);
        if !self.is_epoch(epoch) {
            return Ok(());
        }
        let replica: Name = self.clients[link.client].name.as_str().into();
        let server = World::server();
        let Some(report) = report else {
            return self.apply(StreamEvent::Closed {
                server,
                replica,
                stream,
            });
        };
        let control = self.control.as_mut().expect("an epoch must have its plane");
        let fleet = &control
            .plane
            .server("default")
            .expect("the server must be there")
            .fleet;
        let heard =
            fleet.replica(&replica).map(|r| r.connection) == Some(Connection::Open { stream });
        if heard && !matches!(claim, Claim::Nothing) {
            let known = control.beliefs.get_mut(&replica);
            let belief = &mut known.expect("who opened must be known").1;
            *belief = match (claim, std::mem::take(belief)) {
                (Claim::TakenBack, _) => or_nothing(link.believed.clone()),
                (Claim::AsBefore, before) => or_nothing(before),
                (said, _) => said,
            };
        }
        self.apply(StreamEvent::Reported {
            server,
            replica,
            stream,
            report,
        })
    }
}

impl Link {
    pub(crate) fn is_open(&self) -> bool {
        self.session.is_some() && !self.up_cut && !self.down_cut
    }
}

/// Who answered and has nothing from before has nothing.
fn or_nothing(claim: Claim) -> Claim {
    match claim {
        Claim::Nothing => Claim::Loaded(BTreeSet::new()),
        known => known,
    }
}
