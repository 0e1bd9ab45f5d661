//! What people, machines and networks do.

use std::sync::Arc;

use assent_core::{
    Digest, Millis, Policy, PolicyKey,
    plane::StreamEvent,
    policy::{Content, DEFAULT_SERVER},
    rollout::PolicyId,
};

use crate::{
    client::Character,
    network::Link,
    store::Object,
    wire::{Down, Up},
    world::{Happening, World},
};

type Verdict = Result<(), String>;

impl World {
    /// Somebody creates, changes, rolls back or deletes a policy.
    pub(crate) fn user(&mut self) {
        let living: Vec<PolicyId> = self.living().cloned().collect();
        let id = match self.rng.below(10) {
            _ if living.is_empty() => self.create(),
            0 | 1 if living.len() < 4 => self.create(),
            2 => {
                let id = self
                    .rng
                    .pick(&living)
                    .expect("a policy must be living")
                    .clone();
                self.note(|| format!("{} is deleted", id.key));
                let object = self
                    .store
                    .objects
                    .get_mut(&id)
                    .expect("a living policy must be there");
                object.deleting = true;
                id
            }
            n => {
                let id = self
                    .rng
                    .pick(&living)
                    .expect("a policy must be living")
                    .clone();
                self.edit(&id, n == 3);
                id
            }
        };
        self.watch(id);
        // People save twice; and the second time it is a fix.
        if !self.is_healed() && self.rng.percent(30) {
            let after = self.rng.millis(1, 1_500);
            self.after(after, Happening::User);
        }
    }

    fn living(&self) -> impl Iterator<Item = &PolicyId> {
        let objects = self.store.objects.iter();
        objects.filter(|(_, o)| !o.deleting).map(|(id, _)| id)
    }

    fn watch(&mut self, id: PolicyId) {
        let epoch = self.epoch;
        let after = self.rng.millis(1, 100);
        self.after(after, Happening::Observe { epoch, id });
    }

    /// A policy under one of few names, so that names come back with another uid.
    fn create(&mut self) -> PolicyId {
        let taken: Vec<PolicyKey> = self.living().map(|id| id.key.clone()).collect();
        let keys = (0..5).map(|n| PolicyKey::cluster(&format!("p{n}")));
        let free: Vec<PolicyKey> = keys.filter(|k| !taken.contains(k)).collect();
        let key = self.rng.pick(&free).expect("a name must be free").clone();
        let uid = format!("{:08x}-0000-4000-8000-000000000000", self.rng.next() >> 32);
        let content = self.content();
        let policy = Arc::new(Policy::new(key.clone(), 1, &uid, content, 8));
        let acceptable = self.rng.percent(90);
        self.note(|| format!("{} is created", policy.revision));
        let id = PolicyId {
            key,
            uid: uid.into(),
        };
        self.store
            .objects
            .insert(id.clone(), Object::new(policy, acceptable));
        id
    }

    fn edit(&mut self, id: &PolicyId, rollback: bool) {
        let acceptable = self.rng.percent(90);
        let fresh = self.content();
        let object = self
            .store
            .objects
            .get_mut(id)
            .expect("a living policy must be there");
        let old = self.rng.pick(&object.history).map(|p| p.content.clone());
        let content = old.filter(|_| rollback).unwrap_or(fresh);
        let generation = object.newest.generation + 1;
        let policy = Arc::new(Policy::new(id.key.clone(), generation, &id.uid, content, 8));
        object.newest = policy.clone();
        object.acceptable = acceptable || rollback;
        object.history.push(policy.clone());
        self.note(|| format!("{} is written", policy.revision));
    }

    fn content(&mut self) -> Content {
        self.contents += 1;
        let content = Content::new(
            Digest::of(&self.contents.to_be_bytes()),
            "wapc",
            b"{}".as_slice().into(),
        );
        if self.rng.percent(30) {
            self.shaky.insert(content.digest());
        }
        content
    }

    pub(crate) fn fault(&mut self) -> Verdict {
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, l)| l.is_open())
            .map(|(id, _)| *id)
            .collect();
        let link = self.rng.pick(&links).copied();
        match (self.rng.below(10), link) {
            (0 | 1, _) => self.plane_crash(),
            (2 | 3, Some(link)) => self.reset(link),
            (4, Some(link)) => self.cut(link, true, false),
            (5, Some(link)) => self.cut(link, false, true),
            (6, Some(link)) => self.partition(link),
            (7, _) => self.client_crash(),
            (8, _) => self.requests()?,
            (_, Some(link)) => self.reconnect_early(link),
            _ => {}
        }
        Ok(())
    }

    /// Both ends learn of it soon, not at once.
    fn reset(&mut self, link: u64) {
        self.note(|| format!("stream {link} is reset"));
        self.links
            .get_mut(&link)
            .expect("an open link must be there")
            .cut();
        let (client, plane) = (self.rng.millis(0, 500), self.rng.millis(0, 500));
        self.after(client, Happening::ClientCloses { link });
        self.after(plane, Happening::PlaneCloses { link });
    }

    /// One or both directions go silent; keepalive notices in the end.
    fn cut(&mut self, link: u64, down: bool, up: bool) {
        self.note(|| format!("stream {link} is cut, down {down}, up {up}"));
        let cut = self
            .links
            .get_mut(&link)
            .expect("an open link must be there");
        cut.down_cut |= down;
        cut.up_cut |= up;
        let (client, plane) = (
            self.rng.millis(5_000, 20_000),
            self.rng.millis(5_000, 20_000),
        );
        self.after(client, Happening::ClientCloses { link });
        self.after(plane, Happening::PlaneCloses { link });
    }

    fn partition(&mut self, link: u64) {
        let who = self.links[&link].client;
        let until = self.now + self.rng.millis(1_000, 60_000);
        self.partitioned.insert(who, until);
        self.cut(link, true, true);
    }

    pub(crate) fn is_partitioned(&self, who: usize) -> bool {
        self.partitioned
            .get(&who)
            .is_some_and(|until| *until > self.now)
    }

    fn client_crash(&mut self) {
        let who = self.rng.below(self.clients.len());
        if !self.clients[who].up {
            return;
        }
        self.note(|| format!("client {who} crashes"));
        let stream = self.clients[who].stream.as_ref().map(|s| s.id);
        self.clients[who].crash();
        if let Some(link) = stream {
            // The kernel closes the connection for it; news still travel.
            let after = self.rng.millis(0, 500);
            self.after(after, Happening::PlaneCloses { link });
            self.links
                .get_mut(&link)
                .expect("a stream must have its link")
                .down_cut = true;
        }
        let after = self.rng.millis(100, 40_000);
        self.after(after, Happening::Start { client: who });
    }

    /// Somebody still asks for what a webhook named before.
    fn requests(&mut self) -> Verdict {
        let asked: Vec<_> = self.history.asked.keys().cloned().collect();
        match self.rng.pick(&asked).cloned() {
            Some(path) => self.apply(StreamEvent::RetiredRequests {
                server: DEFAULT_SERVER.into(),
                replica: "any".into(),
                path,
                requests: 1,
            }),
            None => Ok(()),
        }
    }

    /// The client connects again before anybody noticed the end of its stream.
    fn reconnect_early(&mut self, link: u64) {
        let client = self.links[&link].client;
        if self.clients[client]
            .stream
            .as_ref()
            .is_some_and(|s| s.id == link)
        {
            self.client_closes(link);
        }
    }

    pub(crate) fn start(&mut self, who: usize) {
        let keeps = self.rng.percent(70);
        let client = &mut self.clients[who];
        if client.up || (!client.is_honest() && self.now >= crate::world::HEALED) {
            return;
        }
        client.start(keeps);
        self.excuse_all(who);
        self.connect_soon(who, 1, 300);
    }

    fn connect_soon(&mut self, client: usize, from: u64, to: u64) {
        let token = self.clients[client].token;
        let after = self.rng.millis(from, to);
        self.after(after, Happening::Connect { client, token });
    }

    pub(crate) fn connect(&mut self, who: usize, token: u64) {
        let client = &self.clients[who];
        if !client.up || client.token != token || client.stream.is_some() {
            return;
        }
        if self.is_partitioned(who) || self.control.is_none() {
            return self.connect_soon(who, 500, 3_000);
        }
        let id = self.next_link;
        self.next_link += 1;
        let hello = self.clients[who].connect(id, &mut self.rng);
        let claims = hello.first.held.len();
        self.note(|| format!("client {who} opens stream {id}, claims {claims}"));
        self.links.insert(id, Link::new(who, self.epoch, 0, hello));
        let after = self.rng.millis(1, 100);
        self.after(after, Happening::Arrive { link: id });
    }

    pub(crate) fn client_closes(&mut self, id: u64) {
        let who = self.links[&id].client;
        let client = &mut self.clients[who];
        if client.stream.take_if(|s| s.id == id).is_none() {
            return;
        }
        client.token += 1;
        self.links
            .get_mut(&id)
            .expect("a stream must have its link")
            .down_cut = true;
        let after = self.rng.millis(0, 1_000);
        self.after(after, Happening::PlaneCloses { link: id });
        self.connect_soon(who, 100, 3_000);
    }

    /// A response reaches its client.
    pub(crate) fn down(&mut self, id: u64, down: Down) {
        let Some(link) = self.links.get(&id).filter(|l| !l.down_cut) else {
            return;
        };
        let who = link.client;
        let Some(stream) = self.clients[who].stream.as_mut().filter(|s| s.id == id) else {
            return;
        };
        let nonce = down.nonce.clone();
        stream.answered = None;
        stream.pending = Some(down.clone());
        if !self.clients[who].is_honest() {
            let lies = self.clients[who].lie(&down, &mut self.rng);
            return lies.into_iter().for_each(|up| self.send_up(id, up));
        }
        let slow = self.clients[who].character == Character::Slow;
        let after = if slow {
            self.rng.millis(1_000, 8_000)
        } else {
            self.rng.millis(1, 400)
        };
        let token = self.clients[who].token;
        self.after(
            after,
            Happening::Loaded {
                client: who,
                token,
                nonce,
            },
        );
    }

    /// A client has tried to load what it was sent.
    pub(crate) fn loaded(&mut self, who: usize, token: u64, nonce: &str) -> Verdict {
        let client = &self.clients[who];
        let stream = client.stream.as_ref().filter(|_| client.token == token);
        let Some((id, down)) = stream.and_then(|s| Some((s.id, s.pending.clone()?))) else {
            return Ok(());
        };
        if down.nonce != nonce {
            return Ok(());
        }
        let set = client
            .verify(&down)
            .map_err(|e| format!("{} cannot verify: {e}", client.name))?;
        if !self.is_healed() && self.rng.percent(4) {
            let up = self.clients[who].refuse(nonce);
            self.note(|| format!("client {who} refuses {nonce}"));
            self.send_up(id, up);
            // A client that took nothing asks again, unless something newer comes first.
            let after = self.rng.millis(2_000, 8_000);
            self.after(after, Happening::ClientCloses { link: id });
            return Ok(());
        }
        self.clients[who].take(set, &self.shaky, &mut self.rng)?;
        self.check_client(who)?;
        self.note(|| format!("client {who} takes {nonce}"));
        let up = self.clients[who].answer(nonce, &mut self.rng);
        self.send_up(id, up);
        self.think_again(who);
        Ok(())
    }

    fn think_again(&mut self, client: usize) {
        let token = self.clients[client].token;
        let after = self.rng.millis(200, 5_000);
        self.after(after, Happening::SecondThoughts { client, token });
    }

    pub(crate) fn second_thoughts(&mut self, who: usize, token: u64) -> Verdict {
        let healed = self.is_healed();
        let client = &mut self.clients[who];
        if client.token != token || !client.up {
            return Ok(());
        }
        let changed = client.second_thoughts(healed);
        let stream = client.stream.as_ref();
        let answered = stream.and_then(|s| Some((s.id, s.answered.clone()?)));
        if let Some((id, nonce)) = answered.filter(|_| changed) {
            self.note(|| format!("client {who} answers {nonce} again"));
            let up = self.clients[who].answer(&nonce, &mut self.rng);
            self.send_up(id, up);
        }
        if !self.clients[who].set.rejected.is_empty() && self.rng.percent(70) {
            self.think_again(who);
        }
        Ok(())
    }

    /// A client's message, and now and then the same once more.
    fn send_up(&mut self, id: u64, up: Up) {
        let again = 1 + usize::from(self.rng.percent(20));
        for _ in 0..again {
            let after = self.rng.millis(1, 150);
            let now: Millis = self.now;
            let link = self.links.get_mut(&id).expect("who sends must have a link");
            link.last_up = (now + after).max(link.last_up);
            let (at, up) = (link.last_up, Box::new(up.clone()));
            self.at(at, Happening::Up { link: id, up });
        }
    }

    /// From now on everything works, and whoever lied is gone.
    pub(crate) fn heal(&mut self) -> Verdict {
        self.note(|| "everything heals".into());
        self.partitioned.clear();
        for who in 0..self.clients.len() {
            let stream = self.clients[who].stream.as_ref().map(|s| s.id);
            if self.clients[who].is_honest() {
                self.think_again(who);
                continue;
            }
            self.clients[who].crash();
            if let Some(link) = stream {
                self.after(
                    std::time::Duration::from_millis(100),
                    Happening::PlaneCloses { link },
                );
            }
        }
        self.expect_replicas()
    }
}
