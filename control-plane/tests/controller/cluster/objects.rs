//! Objects as the API server stores them: creating, editing and deleting them.

use super::*;

impl ClusterWorld {
    pub(crate) fn empty() -> Self {
        Self {
            backend: Cluster {
                defaults: WebhookDefaults {
                    namespace: NAMESPACE.into(),
                    namespace_uid: uid("namespace"),
                    ca_bundle: b"a CA".to_vec(),
                    excluded_namespaces: Vec::new(),
                    service_accounts: Vec::new(),
                },
                base_url: None,
                workload: None,
            },
            converter: Converter::new(NAMESPACE, parse_options()),
            parse: parse_options(),
            objects: BTreeMap::new(),
            version: 0,
            created: 0,
        }
    }

    /// The Secret with the key for settings was deleted, and the next process made another one.
    pub(crate) fn replace_settings_key(&mut self, key: SettingsKey) {
        self.parse.settings_key = Some(key);
        self.converter = Converter::new(NAMESPACE, self.parse.clone());
    }

    /// Every object as text.
    pub(crate) fn dump(&self) -> String {
        let objects = self.objects.values();
        objects.map(ToString::to_string).collect()
    }

    /// A policy of generation 1 that carries the finalizer.
    pub(crate) fn mk_policy(&mut self, name: &str) -> Value {
        self.created += 1;
        let key = policy_key(name);
        let mut object = json!({
            "metadata": {
                "name": key.name(), "uid": uid(&format!("{name} {}", self.created)),
                "generation": 1, "finalizers": [names::FINALIZER],
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.created % 60),
            },
            "spec": mk_spec(),
        });
        if let Some(namespace) = key.namespace() {
            object["metadata"]["namespace"] = namespace.into();
        }
        object
    }

    /// Stores an object without telling anybody.
    pub(crate) fn store(&mut self, kind: Kind, mut object: Value) -> Object<DynamicObject> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let converted = self.convert(kind, &object).expect("it must be one of ours");
        self.objects.insert((kind, path(&object)), object);
        converted
    }

    /// Stores an object; the watch reports it.
    pub(crate) fn apply(&mut self, kind: Kind, object: Value) -> Changes<Self> {
        vec![Change::Applied(self.store(kind, object))]
    }

    pub(crate) fn edit(
        &mut self,
        kind: Kind,
        path: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Changes<Self> {
        let Some(mut object) = self.object(kind, path) else {
            return Vec::new();
        };
        edit(&mut object);
        self.apply(kind, object)
    }

    pub(crate) fn object(&self, kind: Kind, path: &str) -> Option<Value> {
        self.objects.get(&(kind, path.to_owned())).cloned()
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        let own = self.objects.keys().filter(|(k, _)| *k == kind);
        own.map(|(_, path)| path.as_str()).collect()
    }

    /// Somebody deletes an object: it goes when it has no finalizer.
    pub(crate) fn delete(&mut self, kind: Kind, path: &str) -> Changes<Self> {
        let object = self.object(kind, path).expect("it must be there");
        let finalizers = object["metadata"]["finalizers"].as_array();
        if finalizers.is_none_or(Vec::is_empty) {
            return self.gone(kind, path);
        }
        self.edit(kind, path, |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        })
    }

    /// An object is gone, and the revisions that it owned are collected.
    pub(crate) fn gone(&mut self, kind: Kind, path: &str) -> Changes<Self> {
        let Some(object) = self.objects.remove(&(kind, path.to_owned())) else {
            return Vec::new();
        };
        let uid = object["metadata"]["uid"].clone();
        let owned = self.objects.iter().filter(|((kind, _), object)| {
            *kind == Kind::Revisions && object["metadata"]["ownerReferences"][0]["uid"] == uid
        });
        let owned: Vec<String> = owned.map(|((_, path), _)| path.clone()).collect();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut changes = vec![Change::Deleted(reference(kind, &object))];
        for path in owned {
            changes.extend(self.gone(Kind::Revisions, &path));
        }
        changes
    }

    /// The path that a policy's webhook calls.
    pub(crate) fn webhook_path(&self, kind: Kind, policy: &str) -> Option<String> {
        let object = self.object(kind, &webhook_name(policy))?;
        let path = object.pointer("/webhooks/0/clientConfig/service/path")?;
        Some(path.as_str()?.to_owned())
    }
}
