//! Requests of all kinds, the same in every run.

use serde_json::{Map, Value, json};

/// A linear congruential generator: it must be the same everywhere, and nothing else.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

pub(super) fn requests(count: usize) -> Vec<Value> {
    let mut choices = Choices(1);
    (0..count).map(|_| request(&mut choices)).collect()
}

fn request(choices: &mut Choices) -> Value {
    let (group, kind, path) = choices.one(&[
        ("", "Pod", ""),
        ("", "Pod", ""),
        ("apps", "Deployment", "/template/spec"),
        ("batch", "CronJob", "/jobTemplate/spec/template/spec"),
        ("", "ConfigMap", ""),
    ]);
    let mut spec = pod_spec(choices);
    for part in path.rsplit('/').filter(|part| !part.is_empty()) {
        let mut outer = Map::new();
        outer.insert(part.to_owned(), spec);
        spec = Value::Object(outer);
    }
    let mut object =
        json!({"apiVersion": "v1", "kind": kind, "metadata": metadata(choices), "spec": spec});
    if choices.below(12) == 0 {
        object["spec"] = Value::Null;
    }
    let operation = choices.one(&["CREATE", "UPDATE"]);
    let old = match choices.below(4) {
        0 if operation == "UPDATE" => {
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        }
        1 if operation == "UPDATE" => json!({"metadata": {"name": "n"}}),
        _ => Value::Null,
    };
    json!({
        "uid": "1", "operation": operation, "name": "n", "namespace": "default",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": "things"},
        "userInfo": {"username": "u"}, "object": object, "oldObject": old,
    })
}

fn metadata(choices: &mut Choices) -> Value {
    let mut metadata = json!({"name": "n"});
    let annotations = [
        Value::Null,
        json!({}),
        json!({"example.com/owner": "team-a"}),
        json!({"example.com/owner": "team-7"}),
        json!({"example.com/owner": "Ünïcode"}),
        json!({"example.com/owner": "", "other": "x"}),
        json!({"other": "\"quoted\"\n"}),
    ];
    let labels = [
        Value::Null,
        json!({}),
        json!({"tenant": "shop"}),
        json!({"tenant": "docs", "app": "x"}),
        json!({"tenant": "else\\where"}),
    ];
    for (field, values) in [("annotations", &annotations[..]), ("labels", &labels[..])] {
        match choices.one(values) {
            Value::Null if choices.below(2) == 0 => {}
            value => metadata[field] = value,
        }
    }
    metadata
}

fn pod_spec(choices: &mut Choices) -> Value {
    let mut spec = json!({});
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        match choices.below(4) {
            0 => {}
            count => {
                let containers: Vec<_> = (1..count).map(|n| container(choices, n)).collect();
                spec[list] = containers.into();
            }
        }
    }
    spec
}

fn container(choices: &mut Choices, number: usize) -> Value {
    let image = choices.one(&[
        "nginx",
        "nginx:latest",
        "nginx:1.27",
        "registry.example.com",
        "registry.example.com/a:v1",
        "registry.example.com.evil.test/a:v1",
        "registry.example.com:5000/a",
        "docker.io/library/nginx@sha256:00",
        "docker.io/library:latest",
        "",
    ]);
    let mut container = json!({"name": format!("c{number}"), "image": image});
    let contexts = [
        Value::Null,
        json!({}),
        json!({"privileged": true}),
        json!({"privileged": false}),
        json!({"privileged": null}),
        json!({"privileged": "yes"}),
    ];
    match choices.one(&contexts) {
        Value::Null => {}
        context => container["securityContext"] = context,
    }
    container
}
