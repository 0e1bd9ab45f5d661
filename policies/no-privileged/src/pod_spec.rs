use kubewarden_policy_sdk::request::GroupVersionKind;
use serde_json::Value;

use crate::settings::Settings;

/// The lists that hold containers, in the order a user reads them.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The pod spec inside an object, read as JSON: fields that this policy does not know can't break it.
#[derive(Debug, PartialEq)]
pub struct PodSpec<'a> {
    path: &'static str,
    spec: &'a Value,
}

// === impl PodSpec ===

impl<'a> PodSpec<'a> {
    /// The pod spec of `object`, if its kind has one and it is there.
    pub fn find(kind: &GroupVersionKind, object: &'a Value) -> Option<Self> {
        let pointer = match (kind.group.as_str(), kind.kind.as_str()) {
            ("", "Pod") => "/spec",
            ("", "PodTemplate") => "/template/spec",
            ("", "ReplicationController")
            | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
            | ("batch", "Job") => "/spec/template/spec",
            ("batch", "CronJob") => "/spec/jobTemplate/spec/template/spec",
            _ => return None,
        };
        let spec = object.pointer(pointer)?;
        Some(Self {
            path: &pointer[1..],
            spec,
        })
    }

    /// One sentence for each container that runs privileged and is not exempt.
    pub fn offences(&self, settings: &Settings) -> Vec<String> {
        let windows_host = flag(self.spec, "/securityContext/windowsOptions/hostProcess");
        let mut found = Vec::new();
        for list in CONTAINER_LISTS {
            let containers = self.spec.get(list).and_then(Value::as_array);
            for (i, container) in containers.into_iter().flatten().enumerate() {
                let image = text(container, "image");
                let Some(cause) = offence(container, windows_host) else {
                    continue;
                };
                if !settings.exempts_image(image) {
                    let path = self.path.replace('/', ".");
                    found.push(format!(
                        "container {:?} ({path}.{list}[{i}], image {image:?}) sets {cause}",
                        text(container, "name")
                    ));
                }
            }
        }
        found
    }
}

/// The setting that makes `container` privileged. A Windows container inherits the pod's unless it says otherwise.
fn offence(container: &Value, windows_host: Option<bool>) -> Option<&'static str> {
    if flag(container, "/securityContext/privileged") == Some(true) {
        return Some("securityContext.privileged");
    }
    let host_process =
        flag(container, "/securityContext/windowsOptions/hostProcess").or(windows_host);
    (host_process == Some(true)).then_some("securityContext.windowsOptions.hostProcess")
}

fn flag(value: &Value, pointer: &str) -> Option<bool> {
    value.pointer(pointer).and_then(Value::as_bool)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
