//! Pods of PolicyServers: created by a StatefulSet, started, killed, deleted.

use assent_controller::{Kind, Meta, Object, objects::PodObject};
use assent_core::fleet::feature;

use crate::{
    api::NAMESPACE,
    evaluators::Evaluator,
    world::{Happening, World},
};

impl World {
    /// The StatefulSet controller creates pods that are missing, and counts.
    pub(crate) fn reconcile(&mut self, server: &str) {
        let path = format!("{NAMESPACE}/assent-{server}");
        let Some(Object::Set(set)) = self.api.get(Kind::Sets, &path).cloned() else {
            return;
        };
        let mut ready = 0;
        for n in 0..set.replicas {
            let name = format!("{server}-{n}");
            match self.api.get(Kind::Pods, &format!("{NAMESPACE}/{name}")) {
                Some(Object::Pod(pod)) => ready += i32::from(pod.ready),
                Some(_) => {}
                None => self.create_pod(&name, server, &set.meta.uid),
            }
        }
        if ready != set.ready {
            let edit = |object: &mut Object<_>| {
                if let Object::Set(set) = object {
                    set.ready = ready;
                }
            };
            let _ = self.api.update(Kind::Sets, &path, None, edit);
        }
    }

    fn create_pod(&mut self, name: &str, server: &str, set: &str) {
        let pod = PodObject {
            meta: Meta {
                namespace: NAMESPACE.into(),
                name: name.into(),
                ..Meta::default()
            },
            server: server.into(),
            owner: Some(set.into()),
            ready: false,
            injected: true,
            hash: None,
            template: None,
            ip: None,
            identity: String::new(),
        };
        let Ok(created) = self.api.create(Kind::Pods, Object::Pod(Box::new(pod))) else {
            return;
        };
        let uid = created.meta().uid.clone();
        self.edit_pod(name, |pod| {
            pod.identity = format!("pod {name} {}", pod.meta.uid)
        });
        let evaluator = Evaluator::new(&uid, server);
        self.evaluators.insert(name.into(), evaluator);
        self.within(
            200,
            3_000,
            Happening::Start {
                pod: name.into(),
                uid,
            },
        );
    }

    fn edit_pod(&mut self, name: &str, edit: impl FnOnce(&mut PodObject)) {
        let path = format!("{NAMESPACE}/{name}");
        let _ = self.api.update(Kind::Pods, &path, None, |object| {
            if let Object::Pod(pod) = object {
                edit(pod);
            }
        });
    }

    /// A pod is asked to end: it leaves the Service at once, and ends after a while.
    pub(crate) fn delete_pod(&mut self, name: &str) {
        let known = self.api.get(Kind::Pods, &format!("{NAMESPACE}/{name}"));
        let Some(meta) = known.map(Object::meta).filter(|m| !m.deleting).cloned() else {
            return;
        };
        self.note(|| format!("pod {name} is being deleted"));
        self.edit_pod(name, |pod| {
            pod.ready = false;
            pod.meta.deleting = true;
        });
        let pod = name.to_owned();
        self.within(200, 5_000, Happening::Terminate { pod, uid: meta.uid });
    }

    pub(crate) fn terminate(&mut self, name: &str, uid: &str) {
        let Some(evaluator) = self.evaluators.get(name).filter(|e| e.uid == uid) else {
            return;
        };
        let (server, link) = (evaluator.server.clone(), evaluator.link);
        if let Some(link) = link {
            self.within(0, 500, Happening::Close { link });
        }
        self.evaluators.remove(name);
        self.api.remove(Kind::Pods, &format!("{NAMESPACE}/{name}"));
        self.within(10, 1_000, Happening::Reconcile { server });
    }

    /// An evaluator's process begins, with what its volume kept.
    pub(crate) fn start(&mut self, name: &str, uid: &str) {
        self.instances += 1;
        let instance = self.instances;
        // Processes that start later have the new version.
        let features = match self.now < self.upgraded {
            true => Vec::new(),
            false => vec![feature::CONFIRM.to_owned()],
        };
        let Some(evaluator) = self
            .evaluators
            .get_mut(name)
            .filter(|e| e.uid == uid && !e.up)
        else {
            return;
        };
        evaluator.up = true;
        evaluator.instance = instance;
        evaluator.features = features;
        evaluator.set = evaluator.disk.clone();
        let pod = name.to_owned();
        self.within(10, 300, Happening::Connect { pod, instance });
    }

    /// An evaluator's process is killed; its pod stays.
    pub(crate) fn kill(&mut self, name: &str, keeps_disk: bool) {
        let Some(evaluator) = self.evaluators.get_mut(name).filter(|e| e.up) else {
            return;
        };
        evaluator.up = false;
        evaluator.set = None;
        evaluator.disk = evaluator.disk.take().filter(|_| keeps_disk);
        let (uid, instance, link) = (
            evaluator.uid.clone(),
            evaluator.instance,
            evaluator.link.take(),
        );
        if let Some(link) = link {
            self.within(0, 500, Happening::Close { link });
        }
        let pod = name.to_owned();
        self.within(
            100,
            2_000,
            Happening::Ready {
                pod: pod.clone(),
                instance,
                ready: false,
            },
        );
        self.within(3_000, 40_000, Happening::Start { pod, uid });
    }

    pub(crate) fn set_ready(&mut self, name: &str, instance: u64, ready: bool) {
        let Some(evaluator) = self.evaluators.get(name).filter(|e| e.instance == instance) else {
            return;
        };
        if evaluator.up != ready {
            return;
        }
        let server = evaluator.server.clone();
        let known = self.api.get(Kind::Pods, &format!("{NAMESPACE}/{name}"));
        let changes =
            matches!(known, Some(Object::Pod(pod)) if pod.ready != ready && !pod.meta.deleting);
        if changes {
            self.note(|| format!("pod {name} is ready: {ready}"));
            self.edit_pod(name, |pod| pod.ready = ready);
            self.history.ready_since.insert(name.to_owned(), self.now);
            self.within(10, 300, Happening::Reconcile { server });
        }
    }
}
