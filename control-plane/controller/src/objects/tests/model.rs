//! A mirror without indexes, and changes to try on both.

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const KINDS: [Kind; 9] = [
    Kind::ClusterPolicies,
    Kind::Servers,
    Kind::Revisions,
    Kind::Validating,
    Kind::Mutating,
    Kind::Pods,
    Kind::Sets,
    Kind::Services,
    Kind::Namespaces,
];

/// All objects by kind and name; every question is answered by a scan.
#[derive(Default)]
pub(super) struct Model {
    objects: BTreeMap<(Kind, Name), Object<()>>,
}

/// The content of each group, as uids and versions in order of names.
pub(super) type Groups = BTreeMap<Affected, Vec<String>>;

impl Model {
    pub(super) fn apply(&mut self, change: Change<()>) {
        match change {
            Change::Applied(object) => self.insert(object),
            Change::Deleted(object) => {
                let name = (object.kind, (object.namespace, object.name));
                let known = self.objects.get(&name).map(|o| o.meta().uid.clone());
                if known.is_some_and(|uid| object.uid.is_empty() || uid == object.uid) {
                    self.objects.remove(&name);
                }
            }
            Change::Listed(kind, objects) => {
                let names: Vec<Name> = objects.iter().map(Object::full_name).collect();
                self.objects
                    .retain(|(k, name), _| *k != kind || names.contains(name));
                for object in objects {
                    self.insert(object);
                }
            }
        }
    }

    fn insert(&mut self, object: Object<()>) {
        let name = (kind_of(&object), object.full_name());
        if matches!(&object, Object::Revision(r) if r.key.is_none()) {
            self.objects.remove(&name);
            return;
        }
        let version = |o: &Object<()>| o.meta().resource_version.parse::<u64>().unwrap();
        let known = self.objects.get(&name);
        let is_newer = |known: &Object<()>| {
            known.meta().uid == object.meta().uid && version(known) > version(&object)
        };
        if !known.is_some_and(is_newer) {
            self.objects.insert(name, object);
        }
    }

    pub(super) fn groups(&self) -> Groups {
        let mut groups = Groups::new();
        for object in self.objects.values() {
            let group = match object {
                Object::Policy(o) => Affected::Policy(o.key.clone()),
                Object::Server(o) => Affected::Server(o.meta.name.clone()),
                Object::Revision(o) => Affected::Revision(o.key.clone().unwrap()),
                Object::Route(o) => Affected::Route(o.key.clone()),
                Object::Pod(o) => Affected::Pods(o.server.clone()),
                Object::Set(o) => Affected::Workload(o.server.clone()),
                Object::Service(..) | Object::Namespace(_) => continue,
            };
            groups.entry(group).or_default().push(words(object.meta()));
        }
        for content in groups.values_mut() {
            content.sort();
        }
        groups
    }

    /// The same names of every kind, and policies by server.
    #[track_caller]
    pub(super) fn check_names(&self, objects: &Objects<()>, why: &str) {
        for kind in KINDS {
            let own = self.objects.keys().filter(|(k, _)| *k == kind);
            let own: BTreeSet<Name> = own.map(|(_, name)| name.clone()).collect();
            let names: BTreeSet<Name> = objects.names(kind).into_iter().collect();
            assert_eq!(names, own, "{kind:?} after {why}");
        }
        for server in NAMES {
            let own = self.objects.values().filter_map(|o| match o {
                Object::Policy(o) if o.server == server => Some(&o.key),
                _ => None,
            });
            let own: Vec<&PolicyKey> = own.collect();
            let indexed: Vec<&PolicyKey> = objects.policies_of(server).collect();
            assert_eq!(indexed, own, "policies of {server} after {why}");
        }
    }
}

/// What the indexes answer.
pub(super) fn groups_of(objects: &Objects<()>) -> Groups {
    let mut groups = Groups::new();
    for name in NAMES {
        let (key, server) = (PolicyKey::cluster(name), name.to_owned());
        let policy = objects.policy(&key).map(|o| words(&o.meta));
        groups.insert(Affected::Policy(key.clone()), policy.into_iter().collect());
        let known = objects.server(name).map(|o| words(&o.meta));
        groups.insert(
            Affected::Server(server.clone()),
            known.into_iter().collect(),
        );
        let revisions = NAMES.iter().flat_map(|uid| objects.revisions(&key, uid));
        let revisions = revisions.map(|o| words(&o.meta)).collect();
        groups.insert(Affected::Revision(key.clone()), revisions);
        let routes = objects.routes(&key).map(|o| words(&o.meta)).collect();
        groups.insert(Affected::Route(key), routes);
        let pods = objects.pods(name).map(|o| words(&o.meta)).collect();
        groups.insert(Affected::Pods(server.clone()), pods);
        let sets = objects.sets.group(name).map(|o| words(&o.meta)).collect();
        groups.insert(Affected::Workload(server), sets);
    }
    groups.retain(|_, content| {
        content.sort();
        !content.is_empty()
    });
    groups
}

fn words(meta: &Meta) -> String {
    format!("{} {} {}", meta.name, meta.uid, meta.resource_version)
}

fn kind_of(object: &Object<()>) -> Kind {
    match object {
        Object::Policy(_) => Kind::ClusterPolicies,
        Object::Server(_) => Kind::Servers,
        Object::Revision(_) => Kind::Revisions,
        Object::Route(route) => route.kind,
        Object::Pod(_) => Kind::Pods,
        Object::Set(_) => Kind::Sets,
        Object::Service(..) => Kind::Services,
        Object::Namespace(_) => Kind::Namespaces,
    }
}

/// Changes out of a seed: few names, so that objects meet often.
pub(super) struct Generator {
    state: u64,
    version: u64,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            version: 100,
        }
    }

    pub(super) fn change(&mut self) -> Change<()> {
        let kind = KINDS[self.below(KINDS.len())];
        match self.below(10) {
            0 => {
                let mut listed: Vec<Object<()>> = Vec::new();
                for name in NAMES {
                    if self.below(2) == 0 {
                        listed.push(self.object(kind, name));
                    }
                }
                Change::Listed(kind, listed)
            }
            1..=3 => {
                let uid = ["", "a", "b", "c"][self.below(4)];
                let namespace = match kind {
                    Kind::Revisions | Kind::Pods | Kind::Sets | Kind::Services => "assent-system",
                    _ => "",
                };
                let name = self.name();
                Change::Deleted(reference(kind, namespace, name, uid))
            }
            _ => {
                let name = self.name();
                Change::Applied(self.object(kind, name))
            }
        }
    }

    /// An object, sometimes in a state that is older than what was seen before.
    fn object(&mut self, kind: Kind, name: &str) -> Object<()> {
        self.version += 1;
        let version = self.version - 5 * u64::try_from(self.below(2)).unwrap();
        let (uid, other, third) = (self.name(), self.name(), self.name());
        match kind {
            Kind::ClusterPolicies
            | Kind::Policies
            | Kind::ClusterRequestPolicies
            | Kind::RequestPolicies => mk_policy(name, other, uid, version),
            Kind::Servers => mk_server(name, uid, version),
            Kind::Revisions => {
                let policy = (self.below(4) > 0).then_some((other, third));
                mk_revision(name, policy, uid, version)
            }
            Kind::Validating | Kind::Mutating => mk_route(kind, name, other, uid, version),
            Kind::Pods => mk_pod(name, other, third, uid, version),
            Kind::Sets => mk_set(name, other, third, uid, version),
            Kind::Services => mk_service(name, other, uid, version),
            Kind::Namespaces => mk_namespace(name, other, uid, version),
        }
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len())]
    }

    /// A number below `n`, by xorshift.
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % 1_000_003).unwrap() % n
    }
}
