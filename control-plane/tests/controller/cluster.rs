//! A cluster whose API server accepts everything at once.

use std::{collections::BTreeMap, time::Duration};

use assent_api::{PolicyRevisionSpec, parse, settings::SettingsKey};
use assent_controller::{
    Action, Backend, Change, Config, Controller, Kind, Now, Object, Outcome,
    action::{RestoreRevision, RouteUpdate, Status, StatusTarget},
    objects::{ObjectRef, RouteObject},
};
use assent_core::{PolicyKey, RevisionId};
use assent_k8s::{
    Cluster,
    convert::{Converter, reference},
    names, watch,
    webhook::{Desired, WebhookDefaults},
};
use serde_json::{Value, json};

use crate::{
    harness::mk_spec,
    world::{Changes, QUOTA, World, policy_key},
};

mod fixtures;
mod objects;

use fixtures::{bump_generation, kind_of, meta_path, parse_options, path, revision_path};
pub(crate) use fixtures::{mk_pod, mk_server, mk_set, uid, webhook_name};

/// An object as the API server stores it.
type DynamicObject = <Cluster as Backend>::Existing;

/// The control plane's namespace.
pub(crate) const NAMESPACE: &str = "assent-system";

pub(crate) struct ClusterWorld {
    pub(crate) backend: Cluster,
    converter: Converter,
    parse: parse::Options,
    /// Objects as the API server stores them, by kind and `namespace/name`.
    objects: BTreeMap<(Kind, String), Value>,
    version: u64,
    created: u64,
}

/// What performing an action led to, in the order in which a controller would see it.
struct Performed {
    outcomes: Vec<Outcome<Cluster>>,
    changes: Changes<ClusterWorld>,
}

impl World for ClusterWorld {
    type Backend = Cluster;

    const STORES_STATUSES: bool = true;

    fn with_replicas(replicas: &[&str]) -> Self {
        let mut world = Self::empty();
        world.store(Kind::Servers, mk_server("default"));
        world.store(Kind::Sets, mk_set("default"));
        for name in replicas {
            world.store(Kind::Pods, mk_pod(name, true));
        }
        world
    }

    fn backend(&self) -> Cluster {
        self.backend.clone()
    }

    fn config(&self) -> Config {
        Config {
            parse: self.parse.clone(),
            kinds: watch::ALL.to_vec(),
            drain: Some(Duration::ZERO),
            grace: Duration::from_secs(60),
            sync_deadline: Duration::from_secs(30),
            max_policies_per_namespace: Some(QUOTA),
            no_context: None,
        }
    }

    fn list(&mut self) -> Changes<Self> {
        let listed = watch::ALL.iter().map(|kind| {
            let own = self.objects.iter().filter(|((k, _), _)| k == kind);
            let own = own.filter_map(|(_, value)| self.convert(*kind, value));
            Change::Listed(*kind, own.collect())
        });
        listed.collect()
    }

    fn restart(self) -> Self {
        self
    }

    fn put_policy(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self> {
        let kind = kind_of(name);
        let Some(mut object) = self.object(kind, name) else {
            let mut object = self.mk_policy(name);
            edit(&mut object["spec"]);
            return self.apply(kind, object);
        };
        edit(&mut object["spec"]);
        bump_generation(&mut object);
        self.apply(kind, object)
    }

    fn delete_policy(&mut self, name: &str) -> Changes<Self> {
        self.delete(kind_of(name), name)
    }

    fn put_server(&mut self, name: &str, edit: &dyn Fn(&mut Value)) -> Changes<Self> {
        let kind = Kind::Servers;
        let Some(mut object) = self.object(kind, name) else {
            let mut object = mk_server(name);
            edit(&mut object["spec"]);
            return self.apply(kind, object);
        };
        let before = object["spec"].clone();
        edit(&mut object["spec"]);
        if object["spec"] != before {
            bump_generation(&mut object);
        }
        self.apply(kind, object)
    }

    fn delete_server(&mut self, name: &str) -> Changes<Self> {
        self.delete(Kind::Servers, name)
    }

    fn perform(&mut self, controller: &mut Controller<Cluster>, now: Now, action: Action<Cluster>) {
        let Performed { outcomes, changes } = self.respond(action);
        for outcome in outcomes {
            controller.outcome(now, outcome);
        }
        for change in changes {
            controller.change(now, change);
        }
    }

    fn publish(&mut self, controller: &mut Controller<Cluster>, now: Now) -> Vec<Action<Cluster>> {
        controller.publish(now)
    }

    fn spec(&self, policy: &str) -> Option<Value> {
        Some(self.object(kind_of(policy), policy)?["spec"].clone())
    }

    fn generation(&self, policy: &str) -> Option<i64> {
        self.object(kind_of(policy), policy)?["metadata"]["generation"].as_i64()
    }

    fn uid(&self, policy: &str) -> String {
        let object = self.object(kind_of(policy), policy);
        let uid = object.map(|o| o["metadata"]["uid"].as_str().unwrap().to_owned());
        uid.unwrap_or_default()
    }

    fn routed(&self, policy: &str) -> Option<i64> {
        let kinds = [Kind::Validating, Kind::Mutating];
        let paths = kinds.map(|kind| self.webhook_path(kind, policy));
        let mut names = paths.iter().flatten().map(|path| path.rsplit('/').next());
        let name = names.next()??;
        assert!(names.all(|other| other == Some(name)), "{paths:?}");
        name.split('-').next()?.parse().ok()
    }

    fn lose_route(&mut self, policy: &str) {
        let name = webhook_name(policy);
        self.objects.remove(&(Kind::Validating, name));
    }

    fn phases(&self, policy: &str) -> Vec<String> {
        let name = policy_key(policy).name().to_owned();
        let own = self.objects.iter().filter(|((kind, _), object)| {
            *kind == Kind::Revisions && object["spec"]["policyRef"]["name"] == *name
        });
        let mut phases: Vec<(i64, String)> = own
            .map(|(_, object)| {
                let phase = object.pointer("/status/phase").and_then(Value::as_str);
                let generation = object["spec"]["generation"].as_i64().unwrap();
                (
                    generation,
                    format!("{generation} {}", phase.unwrap_or("Candidate")),
                )
            })
            .collect();
        phases.sort();
        phases.into_iter().map(|(_, phase)| phase).collect()
    }
}

impl ClusterWorld {
    /// What the API server makes of an action.
    fn respond(&mut self, action: Action<Cluster>) -> Performed {
        match action {
            Action::StoreRevision(store) => {
                let object =
                    self.store_revision(&store.id.key, &store.policy.revision, &store.spec);
                Performed::outcome(Outcome::Stored(store.id, store.policy, Box::new(object)))
            }
            Action::RestoreRevision(restore) => {
                let RestoreRevision { id, revision, spec } = *restore;
                let object = self.store_revision(&id.key, &revision, &spec);
                Performed::outcome(Outcome::Restored(id, revision, Some(Box::new(object))))
            }
            Action::SetPhase(id, revision, phase) => {
                let changes = self.set_phase(&id.key, &revision, &format!("{phase:?}"));
                Performed {
                    outcomes: vec![Outcome::PhaseSet(id, revision, None)],
                    changes,
                }
            }
            Action::RetireRevision { id, revision, keep } => {
                let changes = match keep {
                    true => self.set_phase(&id.key, &revision, "History"),
                    false => self.gone(Kind::Revisions, &revision_path(&id.key, &revision)),
                };
                Performed {
                    outcomes: vec![Outcome::Retired(id, revision)],
                    changes,
                }
            }
            Action::DeleteRevisions(id, revisions) => {
                let gone = revisions.iter().flat_map(|(namespace, name)| {
                    self.gone(Kind::Revisions, &format!("{namespace}/{name}"))
                });
                let changes = gone.collect();
                Performed {
                    outcomes: vec![Outcome::RevisionsDeleted(id, revisions)],
                    changes,
                }
            }
            Action::CheckReplicas { id, to, .. } => {
                let pods = self.objects.iter().filter(|((k, _), _)| *k == Kind::Pods);
                let pods = pods.filter_map(|(_, value)| self.convert(Kind::Pods, value));
                let pods = pods.collect();
                Performed::outcome(Outcome::ReplicasChecked(id, to, pods))
            }
            Action::Flip(id, to, update) => {
                let changes = self.write_route(&update);
                Performed::outcome(Outcome::Flipped(id, to, changes))
            }
            Action::RepairRoute(id, update) => {
                let changes = self.write_route(&update);
                Performed::outcome(Outcome::Repaired(id, changes))
            }
            Action::RemoveRoutes(id, routes) => {
                let gone = self.remove_routes(&routes);
                Performed::outcome(Outcome::RoutesRemoved(id, gone))
            }
            Action::RemoveServerRoutes(server, routes) => {
                let gone = self.remove_routes(&routes);
                Performed::outcome(Outcome::ServerRoutesRemoved(server, gone))
            }
            Action::RemoveOrphans(routes) => {
                let gone = self.remove_routes(&routes);
                Performed::outcome(Outcome::OrphansRemoved(gone))
            }
            Action::SetFinalizer(kind, meta, true) => {
                let changes = self.edit(kind, &meta_path(&meta), |object| {
                    object["metadata"]["finalizers"] = json!([names::FINALIZER]);
                });
                Performed {
                    outcomes: Vec::new(),
                    changes,
                }
            }
            Action::SetFinalizer(kind, meta, false) => Performed {
                outcomes: Vec::new(),
                changes: self.gone(kind, &meta_path(&meta)),
            },
            Action::DeleteServer(meta) => Performed {
                outcomes: Vec::new(),
                changes: self.gone(Kind::Servers, &meta.name),
            },
            Action::DeletePod(meta) => Performed {
                outcomes: Vec::new(),
                changes: self.gone(Kind::Pods, &format!("{NAMESPACE}/{}", meta.name)),
            },
            Action::ApplyServer(server, _) => {
                Performed::outcome(Outcome::ServerApplied(server, Ok(())))
            }
            Action::RollBack { key, target, .. } => {
                let mut object = self.object(Kind::ClusterPolicies, key.name()).unwrap();
                object["metadata"]["annotations"] = Value::Null;
                let result = target.map(|target| {
                    object["spec"] = Value::Object(target.spec);
                    object["spec"]["module"] = target.module_url.into();
                    bump_generation(&mut object);
                    target.generation
                });
                let object = self.store(Kind::ClusterPolicies, object);
                let changes = vec![Change::Applied(object.clone())];
                let result = result.map(|from| (from, Box::new(object)));
                Performed {
                    outcomes: vec![Outcome::RolledBack(key, result)],
                    changes,
                }
            }
            Action::TakeSettings {
                kind,
                meta,
                version,
            } => {
                let mut object = self.object(kind, &meta_path(&meta)).unwrap();
                if object["spec"]["settingsVersion"] != *version {
                    object["spec"]["settingsVersion"] = version.into();
                    bump_generation(&mut object);
                }
                Performed {
                    outcomes: Vec::new(),
                    changes: self.apply(kind, object),
                }
            }
            Action::WriteStatus(target, Some(update)) => {
                let status = match &update.status {
                    Status::Policy(status) => serde_json::to_value(status).unwrap(),
                    Status::Server(status) => serde_json::to_value(status).unwrap(),
                };
                self.write_status(target, &status)
            }
            _ => Performed::nothing(),
        }
    }

    fn store_revision(
        &mut self,
        key: &PolicyKey,
        revision: &RevisionId,
        spec: &PolicyRevisionSpec,
    ) -> Object<DynamicObject> {
        let path = revision_path(key, revision);
        let (namespace, name) = path.split_once('/').unwrap();
        self.created += 1;
        let value = json!({
            "metadata": {
                "name": name, "namespace": namespace, "generation": 1,
                "uid": uid(&format!("{name} {}", self.created)),
                "finalizers": [names::FINALIZER],
                "ownerReferences": [{
                    "apiVersion": assent_api::API_VERSION,
                    "kind": spec.policy_ref.kind,
                    "name": spec.policy_ref.name,
                    "uid": spec.policy_ref.uid,
                    "controller": true,
                }],
            },
            "spec": spec,
        });
        self.store(Kind::Revisions, value)
    }

    pub(crate) fn write_route(&mut self, update: &RouteUpdate<Cluster>) -> Changes<Self> {
        let mut changes = Vec::new();
        let mut kinds = Vec::new();
        for desired in &update.desired {
            let (kind, mut value) = match desired {
                Desired::Validating(o) => (Kind::Validating, serde_json::to_value(o).unwrap()),
                Desired::Mutating(o) => (Kind::Mutating, serde_json::to_value(o).unwrap()),
            };
            let name = value["metadata"]["name"].as_str().unwrap().to_owned();
            let existing = self.object(kind, &name);
            let created = || uid(&format!("{kind:?} {name} {}", self.version)).into();
            let uid = existing.map_or_else(created, |o| o["metadata"]["uid"].clone());
            value["metadata"]["uid"] = uid;
            changes.extend(self.apply(kind, value));
            kinds.push(kind);
        }
        let others = update
            .existing
            .iter()
            .filter(|route| !kinds.contains(&route.kind));
        for other in others {
            changes.extend(self.gone(other.kind, &other.meta.name));
        }
        changes
    }

    fn remove_routes(&mut self, routes: &[RouteObject<DynamicObject>]) -> Vec<ObjectRef> {
        let gone = routes
            .iter()
            .flat_map(|route| self.gone(route.kind, &route.meta.name));
        let gone: Vec<Change<DynamicObject>> = gone.collect();
        let references = gone.into_iter().filter_map(|change| match change {
            Change::Deleted(reference) => Some(reference),
            _ => None,
        });
        references.collect()
    }

    fn set_phase(&mut self, key: &PolicyKey, revision: &RevisionId, phase: &str) -> Changes<Self> {
        self.edit(Kind::Revisions, &revision_path(key, revision), |object| {
            object["status"] = json!({ "phase": phase });
        })
    }

    fn write_status(&mut self, target: StatusTarget, status: &Value) -> Performed {
        let path = match target.namespace.as_str() {
            "" => target.name.clone(),
            namespace => format!("{namespace}/{}", target.name),
        };
        let changes = self.edit(target.kind, &path, |object| {
            object["status"] = status.clone();
        });
        let object = changes.into_iter().find_map(|change| match change {
            Change::Applied(object) => Some(Box::new(object)),
            _ => None,
        });
        Performed::outcome(Outcome::StatusWritten(target, object))
    }

    fn convert(&self, kind: Kind, value: &Value) -> Option<Object<DynamicObject>> {
        let object = serde_json::from_value(value.clone()).unwrap();
        self.converter.object(kind, object)
    }
}

impl Performed {
    fn nothing() -> Self {
        Self {
            outcomes: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn outcome(outcome: Outcome<Cluster>) -> Self {
        Self {
            outcomes: vec![outcome],
            changes: Vec::new(),
        }
    }
}
