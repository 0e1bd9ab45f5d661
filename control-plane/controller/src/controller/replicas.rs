//! Replicas that a rollout waits for, and pods that must be replaced.

use std::sync::Arc;

use assent_core::{
    Millis,
    fleet::{Connection, CountedReplicas, Name, Replica},
    plane::Event,
};

use super::Controller;
use crate::{
    action::Action,
    backend::Backend,
    objects::{Meta, PodObject},
    view::Now,
};

impl<B: Backend> Controller<B> {
    /// Reports which replicas must serve a new revision, for servers whose replicas may have
    /// changed. Without a change to pods or streams only time changes it: the end of a
    /// replica's grace period, which is a deadline of the plane.
    pub(super) fn expect_dirty(&mut self, now: Now) {
        if self.backend.counted_replicas() == CountedReplicas::All {
            self.dirty.replicas.clear();
            return;
        }
        let mut servers = std::mem::take(&mut self.dirty.replicas);
        for (name, server) in self.plane.servers() {
            if server.fleet.deadline().is_some_and(|at| at <= now.at) {
                servers.insert(name.to_string());
            }
        }
        for server in servers {
            self.expect(now, &server);
        }
    }

    /// Reports which replicas of a server must serve a new revision.
    pub(super) fn expect(&mut self, now: Now, server: &str) {
        if self.backend.counted_replicas() == CountedReplicas::All {
            return;
        }
        let Some(known) = self.plane.server(server) else {
            return;
        };
        let members = self.objects.members(server);
        let required = members.filter(|pod| {
            let replica = known.fleet.replica(&pod.meta.name);
            is_required(pod, replica, now.at)
        });
        let replicas: Vec<Name> = required.map(|p| p.meta.name.as_str().into()).collect();
        let name: Arc<str> = server.into();
        let expected = Event::ReplicasExpected {
            server: name,
            replicas,
        };
        self.event(now, expected);
        self.note_features(server);
    }

    /// Deletes pods of StatefulSets whose evaluator is missing or outdated: they were created
    /// while no control plane, or one of another version, injected them, and would stay so.
    pub(super) fn replace_pods(&mut self) {
        let servers = self.dirty.servers.iter();
        let mut replaced: Vec<Meta> = Vec::new();
        for server in servers {
            let members = self.objects.members(server);
            let uninjected = members.filter(|p| !p.injected && !p.meta.deleting);
            let wrong = uninjected.chain(self.objects.outdated_pod(server));
            replaced.extend(wrong.map(|p| p.meta.clone()));
        }
        for meta in replaced {
            if self.replaced_pods.insert(meta.uid.clone()) {
                self.actions.push(Action::DeletePod(meta));
            }
        }
    }
}

/// Whether a pod of the server's own StatefulSet must serve a new revision: it is an endpoint
/// of the Service, has an open stream, or had one until recently. The new revision may have
/// brought it down, and nothing would report that if the rollout did not wait for it.
fn is_required(pod: &PodObject, replica: Option<&Replica>, now: Millis) -> bool {
    let left_recently = |replica: &Replica| {
        // Another pod of the same name was never asked.
        replica.identity == pod.identity
            && matches!(replica.connection, Connection::Grace { until } if until > now)
    };
    match replica.map(|r| r.connection) {
        Some(Connection::Open { .. }) => true,
        _ if pod.meta.deleting => false,
        _ => pod.ready || replica.is_some_and(left_recently),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_000);

    fn mk_pod(ready: bool, deleting: bool) -> PodObject {
        PodObject {
            meta: Meta {
                namespace: "assent-system".into(),
                name: "a".into(),
                uid: "uid-1".into(),
                deleting,
                ..Meta::default()
            },
            server: "default".into(),
            owner: None,
            ready,
            injected: true,
            hash: None,
            template: None,
            ip: None,
            identity: "pod a uid-1".into(),
        }
    }

    fn mk_replica(uid: &str, link: Connection) -> Replica {
        let mut replica = Replica::default();
        replica.identity = format!("pod a {uid}");
        replica.connection = link;
        replica
    }

    #[track_caller]
    fn check(pod: &PodObject, replica: Option<Replica>, expect: bool) {
        assert_eq!(is_required(pod, replica.as_ref(), NOW), expect);
    }

    #[test]
    fn rollout_waits_for_endpoints_and_open_streams() {
        let open = || Some(mk_replica("uid-1", Connection::Open { stream: 1 }));
        check(&mk_pod(true, false), None, true);
        check(&mk_pod(true, false), open(), true);
        check(&mk_pod(false, false), open(), true);
        check(&mk_pod(false, true), open(), true);
        check(&mk_pod(false, false), None, false);
        check(&mk_pod(true, true), None, false);
    }

    #[test]
    fn rollout_waits_for_a_lost_pod_until_its_grace_ends() {
        let left = |uid, until| Some(mk_replica(uid, Connection::Grace { until }));
        check(&mk_pod(false, false), left("uid-1", Millis(1_001)), true);
        check(&mk_pod(false, false), left("uid-1", NOW), false);
        let gone = Some(mk_replica("uid-1", Connection::Gone));
        check(&mk_pod(false, false), gone, false);
        // It is being deleted, or another pod has its name.
        check(&mk_pod(false, true), left("uid-1", Millis(1_001)), false);
        check(&mk_pod(false, false), left("uid-0", Millis(1_001)), false);
    }
}
